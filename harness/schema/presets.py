"""Named training settings, and what a workload has beyond them: the command that gives it again, and its name."""

import contextlib
import itertools
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

import msgspec

from harness.base.errors import unknown
from harness.schema.option import Option, options
from harness.schema.sweep import SUBMISSION_FILE, Layout, Sweep
from harness.schema.workload import DATASET, IMAGENET, Workload, batch_mode, is_script, script_command

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
    "default": {"loss": "cross-entropy", "init": "glorot", "batch_per_rank": 64, "sync": "gradients"},
}

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
        UserError: the preset is unknown or a setting is out of range.
    """
    if preset not in PRESETS:
        raise unknown("PRESET", preset, PRESETS)
    settings = dict(PRESETS[preset])
    if preset == "default":
        settings |= _BEST.get(f"{dataset}-{model}", _IMAGENET if dataset == IMAGENET else _OTHER)
    given = {name: value for name, value in overrides.items() if value is not None}
    if "global_batch" in given and "batch_per_rank" not in given:
        settings.pop("batch_per_rank", None)
        settings.pop("rate_scaling", None)  # the batch does not grow with the ranks
    return Workload(dataset=dataset, model=model, preset=preset, **(settings | given))


def script_workload(
    script: Path, arguments: Sequence[str], *, sync: str, batch: str, note: str | None = None
) -> Workload:
    """Return the workload of a script with its arguments. `batch`: its batch size is ``per-rank`` or ``global``.

    Whichever of the two batch fields is set is 1: the size itself is in the script.
    """
    sizes = {"global_batch": 1} if batch == "global" else {"batch_per_rank": 1}
    return Workload(
        dataset=DATASET,
        model=script.stem,
        preset=DATASET,
        data_file=shlex.join([str(script.resolve()), *arguments]),
        sync=sync,
        note=note,
        **sizes,  # type: ignore[arg-type]
    )


_NAMED = frozenset({"dataset", "model", "preset", "data_file"})  # shown before all other settings
Words = list[tuple[str, object]]
"""Settings of a command by their names in make, BATCH_PER_RANK; a value of True or False is a switch."""


def sweep_command(sweep: Sweep) -> str:
    """Return the ``make sweep`` command of `sweep`, a line for each part of its layouts that no single one gives."""
    return "\n".join(_make_line(words) for words in _sweep_words(sweep))


def harness_command(sweep: Sweep, more: Iterable[tuple[str, object]] = ()) -> str:
    """Return the ``harness sweep`` command of `sweep` with `more` settings, a line for each part of its layouts."""
    return "\n".join(_harness_line([*words, *more]) for words in _sweep_words(sweep))


def _sweep_words(sweep: Sweep) -> Iterator[Words]:
    """Yield the settings that give `sweep`, once for each part of its layouts that no single command gives."""
    training = _script(sweep.workload) if is_script(sweep.workload) else _training(sweep.workload)
    training += [("SCALING", sweep.scaling)] if sweep.scaling != "strong" else []
    last: Words = [("REPEATS", sweep.repeats)]
    last += [(name, True) for name, on in (("OVERSUBSCRIBE", sweep.oversubscribe), ("TUNED", sweep.settings)) if on]
    yield from ([*training, *part, *last] for part in _layouts(sweep.layouts))


def study_name(sweep: Sweep) -> str:
    """Return what is studied with every setting that is not its preset's: ``MNIST-DNN, synchronisation none``."""
    workload = sweep.workload
    words = [workload.name if workload.data_file else workload.name.upper()]
    if is_script(workload):
        words += [shlex.join(script_command(workload)[1]), "" if workload.sync == "gradients" else workload.sync]
    else:
        words += [f"preset {workload.preset}" if workload.preset != "default" else ""]
        for field, asked in filter(_counts, _changed(workload)):
            words.append(f"{_title(field.name, asked)} {setting_words(getattr(workload, field.name))}")
    words += ["weak scaling" if sweep.scaling == "weak" else "", "oversubscribed" if sweep.oversubscribe else ""]
    return ", ".join(filter(None, [*words, "tuned sums" if sweep.settings else ""]))


def distinguishing_names(workloads: Sequence[Workload]) -> tuple[str, ...]:
    """Return a name for each of `workloads` that says only what differs among them: ``weights:epoch``, ``epochs 5``.

    A value stands alone where a single setting differs and its values are words other than none. Empty texts where no
    setting differs.
    """
    apart = [
        (field, asked)
        for field, asked in filter(_counts, options(Workload))
        if len({getattr(w, field.name) for w in workloads}) > 1
    ]
    values = [getattr(w, field.name) for field, _ in apart for w in workloads]
    alone = len(apart) == 1 and all(isinstance(value, str) and value != "none" for value in values)
    words = ([(_title(f.name, asked), setting_words(getattr(w, f.name))) for f, asked in apart] for w in workloads)
    return tuple(", ".join(value if alone else f"{title} {value}" for title, value in each) for each in words)


def _counts(one: tuple[Field[Any], Option]) -> bool:
    return one[0].compare


def _title(name: str, asked: Option) -> str:
    title = (asked.title or name.replace("_", " ")).removesuffix(" over all ranks")
    return f"{title[0].lower()}{title[1:]}"


def setting_words(value: object) -> str:
    """Return a setting's value in words."""
    return "not set" if value is None else f"{value:,}" if type(value) is int else str(value)


def _changed(workload: Workload) -> Iterator[tuple[Field[Any], Option]]:
    """Yield the fields whose values are not those of the workload's preset."""
    usual = resolve(
        dataset=workload.dataset, model=workload.model, preset=workload.preset, global_batch=workload.global_batch
    )
    for field, asked in options(Workload):
        value = getattr(workload, field.name)
        given = field.name == "global_batch" or value != getattr(usual, field.name)
        if field.name not in _NAMED and value is not None and given:
            yield field, asked


def _training(workload: Workload) -> Words:
    found: Words = [("DATA", workload.data_file)] if workload.data_file else [("DATASET", workload.dataset)]
    found += [("MODEL", workload.model)]
    found += [("PRESET", workload.preset)] if workload.preset != "default" else []
    for field, asked in _changed(workload):
        found.append(((asked.name or field.name).replace("-", "_").upper(), getattr(workload, field.name)))
    return found


def _script(workload: Workload) -> Words:
    script, arguments = script_command(workload)
    found: Words = [("SCRIPT", script)]
    found += [("SCRIPT_ARGUMENTS", shlex.join(arguments))] if arguments else []
    found += [("SCRIPT_BATCH", "global")] if batch_mode(workload) == "global" else []
    found += [("SYNC", workload.sync)] if workload.sync != "gradients" else []
    return found + ([("NOTE", workload.note)] if workload.note else [])


def _make_line(words: Words) -> str:
    """Return a command line for a shell; make takes a dollar from two."""
    texts = ((name, str(int(value)) if isinstance(value, bool) else str(value)) for name, value in words)
    return " ".join(["make sweep", *(f"{name}={shlex.quote(text.replace('$', '$$'))}" for name, text in texts)])


def _harness_line(words: Words) -> str:
    line = ["harness", "sweep"]
    for name, value in words:
        option = name.lower().replace("_", "-")
        line.append(
            f"--{'' if value else 'no-'}{option}"
            if isinstance(value, bool)
            else f"--{option}={shlex.quote(str(value))}"
        )
    return " ".join(line)


def _layouts(layouts: Sequence[Layout]) -> Iterator[Words]:
    """Yield the settings that give `layouts`, see `harness.sweep.plan.combine`."""
    left = list(layouts)
    uneven = [layout for layout in layouts if layout.gpus_per_rank or layout.last_node]
    for kind in dict.fromkeys((one.threads, one.gpus_per_rank, one.shares) for one in uneven):
        same = [one for one in left if (one.threads, one.gpus_per_rank, one.shares) == kind]
        per_node = max(one.ranks_per_node for one in same)
        filled = [one for one in same if one.ranks_per_node == min(one.ranks, per_node)]
        left = [one for one in left if one not in filled]
        gpus = kind[1]
        units = [one.ranks if gpus else one.cores for one in filled]
        yield [("GPUS" if gpus else "CORES", _list(units)), *_per_rank([per_node], [kind[0]], kind[2], always=True)]
    groups: dict[tuple[int, int, tuple[int, ...] | None], list[int]] = {}
    parts = next((one.shares for one in left if one.shares), None)
    for one in left:  # a single rank has no parts, whatever is asked for
        key = (one.ranks_per_node, one.threads, parts if one.ranks == 1 else one.shares)
        groups.setdefault(key, []).append(one.nodes)
    per_node_counts, threads = {per_node for per_node, _, _ in groups}, {count for _, count, _ in groups}
    product = set(itertools.product(per_node_counts, threads, [None]))
    if len(groups) > 1 and set(groups) == product and len({frozenset(nodes) for nodes in groups.values()}) == 1:
        nodes = next(iter(groups.values()))
        yield [("NODES", _list(nodes)), *_per_rank(sorted(per_node_counts), sorted(threads), None)]
        return
    for (per_node, count, shares), nodes in groups.items():
        yield [("NODES", _list(nodes)), *_per_rank([per_node], [count], shares)]


def _per_rank(
    per_node: Sequence[int], threads: Sequence[int], shares: tuple[int, ...] | None, *, always: bool = False
) -> Words:
    found: Words = [("RANKS_PER_NODE", _list(per_node))] if always or list(per_node) != [1] else []
    found += [("THREADS", _list(threads))] if list(threads) != [1] else []
    return found + ([("SHARES", ":".join(map(str, shares)))] if shares else [])


def _list(counts: Iterable[int]) -> str:
    return ",".join(map(str, sorted(set(counts))))


def repeat_command(folder: Path, sweep: Sweep) -> str:
    """Return the ``make sweep`` line that repeats `sweep`, with the folder of the originals that `folder` was given."""
    data = None
    with contextlib.suppress(OSError, msgspec.DecodeError):  # then data is taken from the cache
        data = msgspec.json.decode((folder / SUBMISSION_FILE).read_bytes(), type=dict[str, Any]).get("data_dir")
    return sweep_command(sweep) + (f" {shlex.quote(f'DATA_DIR={data}')}" if data else "")
