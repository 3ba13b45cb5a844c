"""Named training settings, the workloads that they make, and what a workload has beyond them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any

from harness.base.errors import UserError, unknown
from harness.base.setting_names import setting
from harness.schema.option import Option, options
from harness.schema.workload import IMAGENET, OF_ALL_RANKS, PER_RANK, SCRIPT, UserScript, Workload

# Which of the groups' public scripts made the papers' figures is not stated (docs/settings.md):
# March 2016: weights averaged once per epoch, Adagrad, squared error, N(0, 1/fan_in), partial batch dropped.
# April 2016: cross-entropy and plain SGD. December 2016 (MaTEx): gradients averaged every step.
_MARCH: Mapping[str, Any] = {
    "loss": "squared-error",
    "optimizer": "adagrad",
    "learning_rate": 0.01,
    "init": "fan-in",
    "batch_per_rank": 10,
    "drop_remainder": True,
    "epochs": 30,
    "sync": "weights:epoch",
    "distribution": "scatter",  # paper A, section 3.3.1
}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper-2016-03": _MARCH,
    "paper-2016-04": {**_MARCH, "loss": "cross-entropy", "optimizer": "sgd"},
    "matex-2016-12": {
        "loss": "cross-entropy",
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "init": "fan-in",
        "batch_per_rank": 128,
        "drop_remainder": True,
        "epochs": 30,
        "sync": "gradients",
    },
    # MaTEx's ImageNet networks; the batch is ours, the scripts' own differs from network to network.
    "matex-imagenet": {
        "loss": "cross-entropy",
        "optimizer": "momentum",
        "learning_rate": 0.02,
        "schedule": "exponential",
        "decay": 0.999964,
        "weight_decay": 1e-4,
        "augment": "flip",
        "batch_per_rank": 16,
        "epochs": 3,
        "sync": "gradients",
    },
    # The JUPITER suite's ResNet-50 (docs/jupiter-resnet.md): its batch per GPU, its 100 batches, here in 10 epochs.
    "jupiter": {
        "loss": "cross-entropy",
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "weight_decay": 4e-5,
        "precision": "mixed_float16",
        "xla": True,
        "data": "synthetic",
        "batch_per_rank": 512,
        "samples": 5120,
        "drop_remainder": True,
        "epochs": 10,
        "sync": "gradients",
    },
    "default": {"loss": "cross-entropy", "init": "glorot", "batch_per_rank": 64, "sync": "gradients"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PresetSubject:
    """What a preset is for: what is trained and how it is scaled where nobody says so."""

    dataset: str
    model: str
    scaling: str


JUPITER = "jupiter"
SUBJECTS: Mapping[str, PresetSubject] = {JUPITER: PresetSubject(dataset=IMAGENET, model="resnet50", scaling="weak")}


def usual_scaling(preset: str) -> str:
    """Return how launches of `preset` are scaled where nobody says so."""
    subject = SUBJECTS.get(preset)
    return subject.scaling if subject else "strong"


SOURCES: Mapping[str, str] = {
    "paper-2016-03": (
        "Optimizer, rate, loss, batch and initial weights are those of a public script of the paper's group, of "
        "March 2016; that the figures were made with it is not stated. The rate is constant: no schedule is stated."
    ),
    "paper-2016-04": (
        "Plain SGD and cross-entropy are those of a public script of the paper's group, of April 2016; that the "
        "figures were made with it is not stated. Rate, batch and initial weights are those of March's script, the "
        "rate is constant: ours, for no others are stated."
    ),
    "matex-2016-12": (
        "Optimizer, rate, loss and batch are those of MaTEx's public script of December 2016, paper B's; paper A's "
        "figures are older."
    ),
    JUPITER: (
        "Batch, precision, XLA and the number of batches are those of the JUPITER procurement suite's script, "
        "optimizer and L2 the defaults of its program; the rate is ours."
    ),
    "default": "Optimizer, rate, schedule, loss, batch and initial weights are this harness's own, none the paper's.",
}
"""Where a preset's settings come from, for readers of a page that says what is the paper's and what is not."""

# ImageNet: momentum, label smoothing and linear scaling as in Goyal et al. 2017 (0.1 for 256 rows), few epochs.
_IMAGENET: Mapping[str, Any] = {
    "optimizer": "momentum",
    "learning_rate": 0.00625,
    "rate_scaling": "linear",
    "warmup_epochs": 1,
    "schedule": "cosine",
    "weight_decay": 1e-4,
    "label_smoothing": 0.1,
    "augment": "flip",
    "batch_per_rank": 16,
    "epochs": 3,
}
_ALEXNET = {**_IMAGENET, "learning_rate": 0.00125}  # its publication's: 0.01 for 128 rows
# The best settings found for each workload; every other one trains with `_IMAGENET` or `_OTHER`.
_OTHER: Mapping[str, Any] = {"optimizer": "adam", "learning_rate": 1e-3, "schedule": "cosine", "epochs": 5}
_BEST: Mapping[str, Mapping[str, Any]] = {
    "higgs-dnn": {**_OTHER, "learning_rate": 1e-2, "epochs": 2},  # millions of rows: a block in turns takes a minute
    "cifar10-dnn": {**_OTHER, "augment": "flip", "weight_decay": 3e-4},
    "cifar10-cnn": {**_OTHER, "augment": "flip"},
    "imagenet-inceptionv3": {**_IMAGENET, "learning_rate": 0.0015},  # on small images a larger rate diverges at first
    "imagenet-alexnet": _ALEXNET,
    "imagenet-alexnet-grouped": _ALEXNET,
}


def resolve(*, dataset: str, model: str, preset: str = "default", **overrides: Any) -> Workload:
    """Return the workload of `dataset` and `model` under `preset`, with every override that is not None.

    A `batch_per_rank` replaces the preset's global batch and the other way round.

    Raises:
        UserError: the preset is unknown or for another data set, or a setting is out of range.
    """
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    if preset in SUBJECTS and dataset != SUBJECTS[preset].dataset:
        raise UserError(
            f"{setting('preset', preset)} is for {setting('dataset', SUBJECTS[preset].dataset)}, not for {dataset}"
        )
    settings = dict(PRESETS[preset])
    if preset == "default":
        settings |= _BEST.get(f"{dataset}-{model}", _IMAGENET if dataset == IMAGENET else _OTHER)
    asked = {name: value for name, value in overrides.items() if value is not None}
    if "global_batch" in asked and "batch_per_rank" not in asked:
        settings.pop("batch_per_rank", None)
        settings.pop("rate_scaling", None)  # the batch does not grow with the ranks
    return Workload(dataset=dataset, model=model, preset=preset, **(settings | asked))


def script_workload(
    script: Path,
    arguments: Sequence[str],
    *,
    sync: str,
    batch: str,
    note: str | None = None,
    own_rate: str | None = None,
    shared_files: bool = False,
) -> Workload:
    """Return the workload of a script with its arguments. `batch`: its batch size is ``per-rank`` or ``global``.

    Whichever of the two batch fields is set is 1: the size itself is in the script. A number is that of a rank's rows
    in a step, which cannot be seen in a loop that the script writes itself.
    """
    rows = int(batch) if batch.isdecimal() else 1
    sizes = {"global_batch": 1} if batch == OF_ALL_RANKS else {"batch_per_rank": rows}
    batch_of = OF_ALL_RANKS if batch == OF_ALL_RANKS else PER_RANK
    program = UserScript(path=script.resolve(), arguments=tuple(arguments), batch=batch_of)
    return Workload(
        dataset=SCRIPT,
        model=script.stem,
        preset=SCRIPT,
        data_file=program.command,
        sync=sync,
        note=note,
        own_rate=own_rate,
        shared_files=shared_files,
        **sizes,  # type: ignore[arg-type]
    )


_IN_EVERY_COMMAND = frozenset({"dataset", "model", "preset", "data_file"})


def changed_settings(workload: Workload) -> Iterator[tuple[Field[Any], Option]]:
    """Yield the fields whose values are not those of the workload's preset.

    Data set, network, preset and file are left out: what names a workload names them before all other settings.
    """
    usual = resolve(
        dataset=workload.dataset, model=workload.model, preset=workload.preset, global_batch=workload.global_batch
    )
    for field, asked in options(Workload):
        value = getattr(workload, field.name)
        is_changed = field.name == "global_batch" or value != getattr(usual, field.name)
        if field.name not in _IN_EVERY_COMMAND and value is not None and is_changed:
            yield field, asked
