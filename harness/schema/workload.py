"""Workload: what is trained, on what, and how.

It is one of three kinds: a network on a data set that the harness knows, a network on a file of the user's own
(`Workload.own_file`), or a user's script (`Workload.script`), whose network and rows are its own. Records keep file and
script in the same field, `data_file`, which nothing outside of this module reads.
"""

import re
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.base.errors import UserError
from harness.base.record_words import LINE, TEXT, check_text
from harness.base.setting_names import setting
from harness.schema.option import WHAT, WRITTEN, check_options, is_own_code, option
from harness.schema.sync_policies import Gradients, NoSync, check_sync, is_own_policy

# A user's script as what is trained: its path, its arguments, and what the batch size in it is of.

SCRIPT = "script"
"""Data set, preset and kind of data of a workload that is a user's script."""
PER_RANK = "per-rank"
OF_ALL_RANKS = "global"


@dataclass(frozen=True, kw_only=True, slots=True)
class UserScript:
    """The script at `path` with its `arguments`; its batch size is of each rank (`PER_RANK`) or of all."""

    path: Path
    arguments: tuple[str, ...]
    batch: str

    @property
    def command(self) -> str:
        """Path and arguments as one line for a shell."""
        return shlex.join([str(self.path), *self.arguments])


def parse_script(command: str, batch: str) -> UserScript:
    """Return the script that `UserScript.command` gave the line of.

    Raises:
        UserError: it is no such line.
    """
    try:
        path, *arguments = shlex.split(command)
    except ValueError as error:
        raise UserError(
            f"{setting('script', command)} is not a script and its arguments ({error}): quote them"
        ) from error
    check_text("script", path, LINE)
    return UserScript(path=Path(path), arguments=tuple(arguments), batch=batch)


def check_own_rate(pattern: str) -> None:
    """Check the expression that finds a script's own rate in what it prints.

    Raises:
        UserError: it is no regular expression, or has not one group.
    """
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise UserError(f"{setting('own_rate', pattern)} is no regular expression ({error}): write one") from error
    if groups != 1:
        raise UserError(
            f"{setting('own_rate', pattern)} has {groups} groups: put parentheses around the number, as in ([0-9.]+)"
        )


IMAGENET = "imagenet"
INPUTS = ("auto", "resident", "files")
"""Where training images come from: held in memory, decoded from files in every epoch, or (``auto``) from files
where the data is real and from memory where it is synthetic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageNetwork:
    """A network of paper B: its name there, the image size it was published with and the smallest it takes (pixels)."""

    title: str
    size: int
    least: int


# AlexNet's paper says 224, but its own first layer (55 x 55 maps of 11 x 11 windows at stride 4) needs 227.
IMAGE_NETWORKS = {
    "alexnet": ImageNetwork(title="AlexNet", size=227, least=32),
    "alexnet-grouped": ImageNetwork(title="AlexNet", size=227, least=32),
    "googlenet": ImageNetwork(title="GoogLeNet", size=224, least=32),
    "inceptionv3": ImageNetwork(title="InceptionV3", size=299, least=75),
    "resnet50": ImageNetwork(title="ResNet-50", size=224, least=32),
}
_OTHER = ImageNetwork(title="", size=224, least=8)
_LARGEST = 4096


def image_size(model: str, asked: int | None) -> int:
    """Return the side of the images in pixels: what was `asked` for, else the network's own."""
    return asked or IMAGE_NETWORKS.get(model, _OTHER).size


_USUAL = "10m"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointInterval:
    """Between two checkpoints: `steps`, or `seconds`; with neither none is written.

    `asked` says that the user named it: then every stop is worth one, however young the launch.
    """

    steps: int | None = None
    seconds: float | None = None
    asked: bool = False

    @property
    def never(self) -> bool:
        """Whether no checkpoint is written."""
        return self.steps is None and self.seconds is None


def parse_interval(text: str | None) -> CheckpointInterval:
    """Return the interval of ``500`` (steps), ``10m`` (minutes) or ``none``; of None the usual one, 10 minutes.

    Raises:
        UserError: it is none of these.
    """
    asked = text is not None
    text = text or _USUAL
    if text == "none":
        return CheckpointInterval(asked=asked)
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(m?)", text, flags=re.ASCII)
    number = float(match[1]) if match else 0.0
    if not match or not number or (not match[2] and not number.is_integer()):
        raise UserError(f"{setting('checkpoint', text)} is not an interval: write steps (500), minutes (10m) or none")
    if match[2]:
        return CheckpointInterval(seconds=60 * number, asked=asked)
    return CheckpointInterval(steps=int(number), asked=asked)


# Name: the class, which takes the learning rate. This line is all that another optimizer needs.
OPTIMIZERS = {
    "sgd": "harness.train.optimizer:FusedSGD",
    "momentum": "harness.train.optimizer:FusedMomentum",
    "adagrad": "keras.optimizers:Adagrad",
    "adam": "harness.train.optimizer:FusedAdam",
}
LOSSES = ("cross-entropy", "squared-error")
SCHEDULES = ("constant", "cosine", "exponential")
RATE_SCALINGS = ("none", "linear")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
INITIALISERS = ("glorot", "fan-in")
AUGMENTATIONS = ("none", "flip", "crop")
DISTRIBUTIONS = ("parallel", "scatter")
WIRES = ("float32", "bf16", "fp16")
DATA_KINDS = ("auto", "real", "synthetic")
CSV_SEPARATORS = ("comma", "semicolon", "tab", "bar", "blank")
CSV_DECIMALS = ("point", "comma")
_LONGEST = 80  # characters of a workload's name: a folder's may have 255 bytes
what = partial(option, group=WHAT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Data set, network and training settings of one run; independent of how many ranks train it.

    Exactly one of `batch_per_rank` (rows per rank and step: the global batch grows with the ranks) and
    `global_batch` (rows per step over all ranks) is set. `samples` is the number of training rows over all
    ranks, None for all there are. `init`: ``glorot`` is Keras's default, ``fan-in`` is N(0, 1/fan_in) as in
    the paper groups' March 2016 script. `distribution`: ``parallel`` (each rank reads its own rows) or
    ``scatter`` (rank 0 reads and sends point to point, paper A section 3.3.1). `optimizer` is one of OPTIMIZERS or
    ``package.module:function``, a user's function of the learning rate that returns a Keras optimizer. `augment`:
    ``flip`` mirrors every second training image at random; ``crop``, for images in files, also takes a random part
    of each.

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

    dataset: str = what("A data set; see `harness data list`.", listed=False, common=True)
    model: str = what(
        "The network [default: the data set's own].",
        values="dnn|cnn|resnet50|...|package.module:function",
        listed=False,
        common=True,
    )
    preset: str = what("Training settings by name.", "default", listed=False)
    loss: str = option("Loss that is minimised.", "cross-entropy", choices=LOSSES)
    optimizer: str = option("Optimizer.", "sgd", choices=tuple(OPTIMIZERS), own_code=True, common=True)
    learning_rate: float = option("Learning rate.", 0.1, above=0, common=True)
    schedule: str = option("Learning rate over the run.", "constant", choices=SCHEDULES)
    decay: float = option(
        "Factor of the learning rate at every step, with --schedule exponential.",
        0.999964,
        above=0,
        most=1,
        when=("schedule", "exponential"),
    )
    rate_scaling: str = option("linear: the learning rate times the number of ranks.", "none", choices=RATE_SCALINGS)
    warmup_epochs: int = option(
        "Epochs over which the scaled learning rate is reached.", 0, least=0, when=("rate_scaling", "linear")
    )
    weight_decay: float = option("Factor of L2 regularisation.", 0.0, least=0)
    label_smoothing: float = option("Share of a label that is spread over all classes.", 0.0, least=0)
    init: str = option(
        "Initial weights; fan-in is N(0, 1/fan_in).", "glorot", choices=INITIALISERS, title="Initial weights"
    )
    augment: str = option(
        "flip: mirror images at random; crop: also take random parts of image files.", "none", choices=AUGMENTATIONS
    )
    batch_per_rank: int | None = option("Samples per rank and step.", None, least=1, common=True)
    global_batch: int | None = option(
        "Samples per step over all ranks, instead of a batch per rank.", None, least=1, common=True
    )
    drop_remainder: bool = option("Leave out each epoch's partial last batch.", False, title="Partial batch dropped")
    epochs: int = option("Passes over the training samples.", 1, least=1, common=True)
    seconds: float | None = option(
        "Train for this many seconds: the epoch in which they end is the last, EPOCHS are the most.",
        None,
        above=0,
        title="Time budget (s)",
    )
    samples: int | None = what("Training samples; under weak scaling, of each rank.", None, least=1, common=True)
    seed: int | None = option(
        "Seed of the initial weights and of the order of samples [default: each repeat's own].",
        None,
        least=0,
        most=2**31 - 1,
    )
    sync: str = option(
        "What is averaged over the ranks, and when; K, H: every so many steps; R: rank of gradients.",
        "gradients",
        values="gradients|none|weights:K|weights:epoch|diloco:H|powersgd:R|module:Class",
        title="Synchronisation",
        common=True,
    )
    wire: str = option("Type in which the ranks exchange gradients.", "float32", choices=WIRES, title="Wire type")
    distribution: str = option(
        "parallel: each rank reads its samples; scatter: rank 0 sends them.",
        "parallel",
        choices=DISTRIBUTIONS,
        title="Reading of samples",
    )
    data: str = what(
        "Real or synthetic samples; auto: real where they are here.",
        "auto",
        name="data-kind",
        choices=DATA_KINDS,
        listed=False,
    )
    data_file: str | None = what(
        "Train on a file of your own: .csv, .tsv, .parquet, .npz or .h5.",
        None,
        name="data",
        values="FILE",
        listed=False,
        common=True,
    )
    label: str | None = what(
        "Column of the label in a table of your own, by name or number [default: the one named label, target or "
        "class, or the first].",
        None,
        values="COLUMN",
        title="Label column",
    )
    drop: str | None = what(
        "Columns of a table of your own to leave out, by name or number.",
        None,
        values="COLUMN,...",
        title="Columns left out",
    )
    separator: str | None = what(
        "Column separator of a .csv file of your own [default: found].",
        None,
        choices=CSV_SEPARATORS,
        title="Column separator",
    )
    decimal: str | None = what(
        "Decimal mark of a .csv file of your own [default: found].",
        None,
        choices=CSV_DECIMALS,
        title="Decimal mark",
    )
    header: str | None = what(
        "Whether the first line of a .csv file of your own names the columns [default: found].",
        None,
        choices=("yes", "no"),
        title="Header",
    )
    image_size: int | None = what("ImageNet: side of the images in pixels [default: the network's].", None)
    classes: int | None = what("ImageNet: classes of synthetic images [default: 1000].", None)
    input: str = what(
        "ImageNet: images held in memory, or decoded from files in every epoch.", "auto", choices=INPUTS, listed=False
    )
    precision: str = option("Type of the computation.", "float32", choices=PRECISIONS)
    sync_bn: bool = option("Batch normalisation over all ranks.", False, title="Batch normalisation over all ranks")
    xla: bool = option("Compile the step with XLA, on GPUs.", False, title="XLA")
    checkpoint: str | None = option(
        "How often a checkpoint is written beside the record: steps (500), minutes (10m) or none [default: 10m].",
        None,
        values="STEPS|MINUTESm|none",
        group=WRITTEN,
    )
    on_failure: str | None = option(
        "A rank that fails ends the launch, or the others go on without it [default: abort].",
        None,
        choices=("abort", "shrink"),
        title="When a rank fails",
    )
    own_rate: str | None = option(
        "A script's own rate in samples per second, read from what it prints: a regular expression with one group.",
        None,
        counts=False,
        values="REGEX",
        words=True,
        listed=False,
        group=WRITTEN,
    )
    shared_files: bool = option(
        "All ranks of a script write the real files, as under plain mpirun.",
        False,
        counts=False,
        listed=False,
        group=WRITTEN,
    )
    peak_tflops: float | None = option(
        "Peak of a rank's GPU or cores in TFLOP/s, which the report compares with; GPUs have their vendor's.",
        None,
        counts=False,
        above=0,
        title="Peak (TFLOP/s)",
        listed=False,
        group=WRITTEN,
    )
    note: str | None = option(
        "Why it is run, in words for the record and the report; launches stay the same with another or none.",
        None,
        values="TEXT",
        counts=False,
        words=True,
        listed=False,
        group=WRITTEN,
    )

    def __post_init__(self) -> None:
        check_options(self)
        self._check_texts()
        check_sync(self.sync)
        parse_interval(self.checkpoint)
        if self.wire != "float32" and self.sync != Gradients.form:
            raise UserError(
                f"{setting('wire', self.wire)} is for {setting('sync', 'gradients')}: weights need full precision, "
                "leave it "
                "out"
            )
        if self.precision == "mixed_float16" and self.sync.startswith("powersgd:"):
            raise UserError(
                f"{setting('sync', self.sync)} adds what it leaves out of a step to the next, whose scale "
                "mixed_float16 "
                f"may change: use {setting('precision', 'mixed_bfloat16')}"
            )
        if (self.batch_per_rank is None) == (self.global_batch is None):
            raise UserError("set exactly one of batch per rank and global batch")
        if self.sync_bn and (self.sync == NoSync.form or self.xla):
            raise UserError("synchronised batch normalisation needs a sync policy and no XLA: leave one of them out")
        if survives(self) and self.checkpoint not in (None, "none"):
            raise UserError(
                f"{setting('checkpoint', self.checkpoint)} is for {setting('on_failure', 'abort')}: leave one of them "
                "out"
            )
        self._check_rates()
        self._check_images()
        if self.own_rate is not None:
            check_own_rate(self.own_rate)
        if self.shared_files and self.script is None:
            raise UserError(
                f"{setting('shared_files', True)} is for scripts ({setting('script')}), which write files: leave it out"
            )

    def _check_texts(self) -> None:
        check_text("dataset", self.dataset)
        check_text("preset", self.preset)
        check_text("model", self.model, LINE)
        check_text("label column", self.label or "", TEXT, optional=True)
        check_text("columns left out", self.drop or "", TEXT, optional=True)
        if self.data_file is not None:
            check_text("data file or script", self.data_file, LINE)
            self.script  # noqa: B018, its words can be told apart

    def _check_rates(self) -> None:
        if self.warmup_epochs > self.epochs:
            raise UserError(f"warmup epochs {self.warmup_epochs} is out of range: use 0 to {self.epochs}, the epochs")
        if self.label_smoothing >= 1:
            raise UserError(f"label smoothing {self.label_smoothing} is out of range: use 0 or more, below 1")
        if self.label_smoothing and self.loss != "cross-entropy":
            raise UserError(f"label smoothing {self.label_smoothing} needs loss cross-entropy, not {self.loss}")
        if self.rate_scaling == "linear" and self.global_batch is not None:
            raise UserError("rate scaling linear needs a batch per rank: with a global batch the batch does not grow")

    def _check_images(self) -> None:
        size = self.image_size
        source = self.input if self.input != "auto" else None
        for field, value in (("image size", size), ("classes", self.classes), ("input", source)):
            if value is not None and self.dataset != IMAGENET:
                say = f"is a setting of dataset {IMAGENET}, not of {self.dataset}"
                raise UserError(f"{field} {value} {say}: leave it out")
        least = IMAGE_NETWORKS.get(self.model, _OTHER).least
        if size is not None and not least <= size <= _LARGEST:
            raise UserError(f"image size {size} is out of range for {self.model}: use {least} to {_LARGEST} pixels")
        if self.classes is not None and self.classes < 2:
            raise UserError(f"classes {self.classes} is too small: use at least 2")

    @property
    def script(self) -> UserScript | None:
        """The user's script that is trained, None of a network."""
        if self.dataset != SCRIPT or self.preset != SCRIPT or self.data_file is None:
            return None
        return parse_script(self.data_file, PER_RANK if self.global_batch is None else OF_ALL_RANKS)

    @property
    def own_file(self) -> Path | None:
        """The file of the user's own with the rows, None of a data set that the harness knows and of a script."""
        return Path(self.data_file) if self.data_file is not None and self.script is None else None

    @property
    def has_known_data(self) -> bool:
        """Whether it trains on a data set that the harness knows."""
        return self.data_file is None

    @property
    def own_code(self) -> dict[str, str]:
        """The code of the user's own that a MODEL, a SYNC or an OPTIMIZER names, by these."""
        named = {}
        if is_own_code(self.model):
            named["MODEL"] = self.model
        if is_own_policy(self.sync):
            named["SYNC"] = self.sync
        if is_own_code(self.optimizer):
            named["OPTIMIZER"] = self.optimizer
        return named

    @property
    def own_modules(self) -> tuple[str, ...]:
        """The modules of `own_code`."""
        return tuple(text.partition(":")[0] for text in self.own_code.values())

    @property
    def name(self) -> str:
        """The workload's short name, ``mnist-dnn`` or, of a file of the user's own, ``iris.csv-dnn``.

        It names folders and jobs, and stands in scripts: letters, digits, ``_``, ``.``, ``-``, whatever a file or a
        script is called.
        """
        data = self.own_file.name if self.own_file else self.dataset
        model = self.model.rpartition(":")[2]
        letters = re.sub(r"[^\w.-]+", "_", f"{data}-{model}", flags=re.ASCII)[:_LONGEST]
        return letters.lstrip(".-") or "workload"  # neither hidden nor an option

    def batch(self, ranks: int) -> int:
        """Return the global batch (rows per step over all ranks) at `ranks` ranks."""
        if self.global_batch is not None:
            return self.global_batch
        assert self.batch_per_rank is not None
        return self.batch_per_rank * ranks


def survives(workload: Workload) -> bool:
    """Return whether a launch of `workload` goes on when a rank fails."""
    return workload.on_failure == "shrink"
