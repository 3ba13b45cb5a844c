"""Workload: what is trained, on what, and how."""

import math
import re
from dataclasses import dataclass

from harness.base.errors import UserError, unknown
from harness.schema.images import INPUTS, check_images
from harness.schema.sync import Gradients, NoSync, check_sync

OPTIMIZERS = ("sgd", "momentum", "adagrad", "adam")
LOSSES = ("cross-entropy", "squared-error")
SCHEDULES = ("constant", "cosine", "exponential")
RATE_SCALINGS = ("none", "linear")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
INITIALISERS = ("glorot", "fan-in")
AUGMENTATIONS = ("none", "flip", "crop")
DISTRIBUTIONS = ("parallel", "scatter")
WIRES = ("float32", "bf16", "fp16")
DATA_KINDS = ("auto", "real", "synthetic")
_LONGEST = 80  # signs of a workload's name: a folder's may have 255 bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Data set, network and training settings of one run; independent of how many ranks train it.

    Exactly one of `batch_per_rank` (rows per rank and step: the global batch grows with the ranks) and
    `global_batch` (rows per step over all ranks) is set. `samples` is the number of training rows over all
    ranks, None for all there are. `init`: ``glorot`` is Keras's default, ``fan-in`` is N(0, 1/fan_in) as in
    the paper groups' March 2016 script. `distribution`: ``parallel`` (each rank reads its own rows) or
    ``scatter`` (rank 0 reads and sends point to point, paper A section 4). `augment`: ``flip`` mirrors every
    second training image at random; ``crop``, for images in files, also takes a random part of each.

    The learning rate: `schedule` ``exponential`` multiplies it by `decay` every step; `rate_scaling` ``linear``
    multiplies it by the number of ranks and `warmup_epochs` raises it evenly from the unscaled rate (Goyal et al.
    2017, sections 2.1 and 2.2). `weight_decay` is the factor of L2 regularisation, on kernels only.

    `precision` is Keras's dtype policy. `sync_bn` takes batch normalisation's moments over all ranks. `xla`
    compiles the step's computation, on GPUs. `image_size`, `classes` and `input` are for ``imagenet``
    (`harness.schema.workload`).

    `wire` is the type in which gradients are summed over the ranks: ``bf16`` and ``fp16`` halve the bytes.

    Raises:
        UserError: a field is out of its range, naming it.
    """

    dataset: str
    model: str
    preset: str = "default"
    loss: str = "cross-entropy"
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    schedule: str = "constant"
    decay: float = 0.999964
    rate_scaling: str = "none"
    warmup_epochs: int = 0
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    init: str = "glorot"
    augment: str = "none"
    batch_per_rank: int | None = None
    global_batch: int | None = None
    drop_remainder: bool = False
    epochs: int = 1
    samples: int | None = None
    seed: int = 0
    sync: str = "gradients"
    wire: str = "float32"
    distribution: str = "parallel"
    data: str = "auto"
    data_file: str | None = None
    image_size: int | None = None
    classes: int | None = None
    input: str = "auto"
    precision: str = "float32"
    sync_bn: bool = False
    xla: bool = False

    def __post_init__(self) -> None:
        for field, choices in (
            ("optimizer", OPTIMIZERS),
            ("loss", LOSSES),
            ("schedule", SCHEDULES),
            ("init", INITIALISERS),
            ("augment", AUGMENTATIONS),
            ("distribution", DISTRIBUTIONS),
            ("data", DATA_KINDS),
            ("wire", WIRES),
            ("rate_scaling", RATE_SCALINGS),
            ("precision", PRECISIONS),
            ("input", INPUTS),
        ):
            if getattr(self, field) not in choices:
                raise unknown(field, getattr(self, field), choices)
        check_sync(self.sync)
        if self.wire != "float32" and self.sync != Gradients.form:
            raise UserError(f"WIRE={self.wire} is for SYNC=gradients: weights must keep their digits, leave WIRE out")
        if (self.batch_per_rank is None) == (self.global_batch is None):
            raise UserError("set exactly one of batch per rank and global batch")
        for field in ("batch_per_rank", "global_batch", "epochs", "samples"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise UserError(f"{field.replace('_', ' ')} {value} is too small: use at least 1")
        if self.sync_bn and (self.sync == NoSync.form or self.xla):
            raise UserError("synchronised batch normalisation needs a sync policy and no XLA: leave one of them out")
        self._check_rates()
        check_images(self.dataset, self.model, self.image_size, self.classes, self.input)
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed {self.seed} is out of range: use 0 to {2**31 - 1}")

    def _check_rates(self) -> None:
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UserError(f"learning rate {self.learning_rate} must be a positive number")
        if not 0 < self.decay <= 1:
            raise UserError(f"decay {self.decay} is out of range: use a factor above 0, at most 1")
        if not 0 <= self.warmup_epochs <= self.epochs:
            raise UserError(f"warmup epochs {self.warmup_epochs} is out of range: use 0 to {self.epochs}, the epochs")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UserError(f"weight decay {self.weight_decay} must be 0 or a positive number")
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"label smoothing {self.label_smoothing} is out of range: use 0 or more, below 1")
        if self.label_smoothing and self.loss != "cross-entropy":
            raise UserError(f"label smoothing {self.label_smoothing} needs loss cross-entropy, not {self.loss}")
        if self.rate_scaling == "linear" and self.global_batch is not None:
            raise UserError("rate scaling linear needs a batch per rank: with a global batch the batch does not grow")

    @property
    def name(self) -> str:
        """The workload's short name, ``mnist-dnn``: letters, digits, ``_``, ``.``, ``-``, whatever a script is called.

        It names folders and jobs, and stands in scripts.
        """
        model = self.model.rpartition(":")[2]
        return re.sub(r"[^\w.-]+", "_", f"{self.dataset}-{model}", flags=re.ASCII)[:_LONGEST]

    def batch(self, ranks: int) -> int:
        """Return the global batch (rows per step over all ranks) at `ranks` ranks."""
        if self.global_batch is not None:
            return self.global_batch
        assert self.batch_per_rank is not None
        return self.batch_per_rank * ranks
