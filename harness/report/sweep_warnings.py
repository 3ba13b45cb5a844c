"""What a reader must know before the numbers of launches are believed."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from harness.analysis import units
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import Scaling
from harness.report.answer import Banner, distinct
from harness.report.run_words import partial
from harness.schema.record import RunRecord
from harness.schema.record_notes import NoteCode

DISTURBED = (
    "trained interleaved beside other work. A round that this met is left out for all launches of its block, but for "
    "the numbers called including interference."
)
_BRIEF_S = 1.0  # of a launch's epochs
_ENOUGH_S = 5.0
DOUBTFUL = 1.25  # efficiency beyond which a rank's rows that fit a cache are hardly the reason
# What must be the same in all launches of a study, and what to call it. None: says nothing about the launch.
_COMMON: tuple[tuple[str, Callable[[RunRecord], object | None]], ...] = (
    ("state of the code", lambda run: run.point.code or "unknown"),
    ("commit", lambda run: run.provenance.commit[:12] or "none"),
    ("machine", lambda run: run.provenance.machine.hostname + " " + run.provenance.machine.fingerprint[:8]),
    ("harness version", lambda run: run.provenance.harness),
    ("TensorFlow version", lambda run: run.provenance.tensorflow),
    ("MPI library", lambda run: run.provenance.mpi_library),
    ("way of summing", lambda run: run.provenance.reduction if run.point.layout.ranks > 1 else None),
    ("data", lambda run: f"{run.data.kind} {run.data.sha256[:12]}"),
    ("number of threads per rank", lambda run: run.point.layout.threads),
)


def mixtures(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return one sentence for each thing that differs between `runs` and should not."""
    sentences = []
    for name, value in _COMMON:
        values = sorted({str(value(run)) for run in runs if value(run) is not None})
        if len(values) > 1:
            sentences.append(f"The launches differ in {name} ({', '.join(values)}): compare them with care.")
    return tuple(sentences)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Doubt:
    """A circumstance of a launch that weakens its numbers; `words` go on after "2 of 7 launches".

    `is_named`: whether the launches are named, for what it changed is seen in the launch alone.
    """

    words: str
    holds: Callable[[RunRecord], bool]
    is_named: bool = False


_DOUBTS = (
    _Doubt(words="ran with uncommitted changes: no commit names their code.", holds=lambda run: run.provenance.dirty),
    _Doubt(
        words="ran without synchronisation: a limit of the machine, no training.",
        holds=lambda run: not _synchronises(run),
    ),
    _Doubt(
        words="summed through Python, several times slower, because no compiler built the native operation: `harness "
        "doctor` says what is missing.",
        holds=lambda run: run.note(NoteCode.BRIDGE) is not None,
    ),
    _Doubt(
        words="summed on GPUs while the host went on: the times of sums and of waiting are not known, and are in the "
        "time of computation.",
        holds=lambda run: not run.sums_timed,
    ),
    _Doubt(words=DISTURBED, holds=lambda run: run.met),
    _Doubt(
        words="had ranks whose cores became twice as near or as far while they trained (core to core), "
        "as where a virtual machine's cores are moved: their allreduces had two speeds.",
        holds=lambda run: run.moved,
        is_named=True,
    ),
    _Doubt(
        words="ended with weights that differ between ranks.",
        holds=lambda run: _synchronises(run) and not run.weights.identical,
    ),
)


def _synchronises(run: RunRecord) -> bool:
    return run.point.workload.sync != "none"


def doubts(runs: Sequence[RunRecord], launches: pd.DataFrame) -> tuple[str, ...]:
    """Return one sentence for each circumstance of `runs` (`launches` is their `launch_frame`) that weakens
    their numbers."""
    sentences = []
    lengths = sorted(set(launches["epochs"]))
    if len(lengths) > 1:
        different = ", ".join(map(str, lengths))
        sentences.append(f"The launches differ in the number of epochs ({different}): compare them with care.")
    for doubt in _DOUBTS:
        met = [run for run in runs if doubt.holds(run)]
        if met:
            sentence = f"{_launches(len(met), len(runs))} {doubt.words}"
            if doubt.is_named:
                names = (f"{units.ranks(run.point.layout.ranks)}, repeat {run.point.repeat + 1}" for run in met)
                sentence += (
                    f" They count all the same where valid, and nothing has to be done: {distinct(names, '; ')}."
                )
            sentences.append(sentence)
    sentences += _doubts_of_times(runs, launches)
    return tuple(sentences)


def _doubts_of_times(runs: Sequence[RunRecord], launches: pd.DataFrame) -> Iterator[str]:
    """Yield the doubts that the epochs of the launches show."""
    total = len(runs)
    without_loss = [run.point.folder for run in runs if run.note(NoteCode.OWN_LOOP) is not None]
    no_loss = int((launches["train_loss"].isna() & ~launches["run"].isin(without_loss)).sum())
    if no_loss:
        yield f"{_launches(no_loss, total)} ended with a training loss that is not finite."
    undivided = int(((launches["ranks"] > 1) & ~launches["parted"]).sum())
    if undivided:
        yield (f"{_launches(undivided, total)} did not record who waited for whom: all of it counts as allreduce time.")
    single = int((launches["epochs"] < 2).sum())
    if single:
        yield f"{_launches(single, total)} had one epoch only: nothing tells a slow epoch from others."
    in_turns = launches["run"].isin([run.point.folder for run in runs if run.block])  # go on for their rounds
    brief = int(((launches["trained_s"] < _BRIEF_S) & ~in_turns).sum())
    if brief and not runs[0].point.workload.script:
        epochs = math.ceil(_ENOUGH_S / launches["seconds"].min())
        yield (
            f"{_launches(brief, total)} trained for less than {_BRIEF_S:g} s, in which a disturbance weighs much: "
            f"--epochs {epochs} makes that {_ENOUGH_S:g} s."
        )


def _launches(count: int, total: int) -> str:
    return f"{count} of {total} launches" if total > 1 else "The launch"


def banners(runs: Sequence[RunRecord], launches: pd.DataFrame) -> tuple[Banner, ...]:
    """Return what a reader must know first: synthetic data, held-out rows, mixed records, doubts.

    `launches` (`launch_frames.launch_frame`) may be of more launches than `runs`.
    """
    folders = {run.point.folder for run in runs}
    sentences = (*mixtures(runs), *doubts(runs, launches[launches["run"].isin(folders)]))
    return (*_data_banners(runs), *(Banner(kind="warning", text=text) for text in sentences))


def _data_banners(runs: Sequence[RunRecord]) -> Iterator[Banner]:
    """Yield what is to be known of the data: that it is synthetic, a piece of the whole, or without a test part."""
    kinds = ((run.data.name, run.data.kind, run.data.held_out, run.point.workload.own_file) for run in runs)
    for data, kind, held_out, file in dict.fromkeys(kinds):
        name = file.name if file else data
        if kind == "synthetic":
            text = (
                f"Synthetic data: made-up samples in the shape of {name}. Times are comparable with those of the real "
                "data; accuracies, and times to an accuracy, are not: they say only that training works."
            )
            yield Banner(kind="data", text=text)
        piece = next((partial(run) for run in runs if run.data.name == data), "")
        if kind == "real" and piece:
            text = f"{piece.capitalize()} of {name}: accuracy and the time of an epoch are not those of the whole set."
            yield Banner(kind="data", text=text)
        if held_out:
            text = f"The test rows of {name} were held out of its training part: no test part was there."
            yield Banner(kind="data", text=text)


def sweep_warnings(
    loaded: Loaded, scaling: Scaling | None = None, launches: pd.DataFrame | None = None
) -> tuple[Banner, ...]:
    """Return all that stands before any number of the sweep `loaded`, the most telling first, for every command.

    `launches` is its `launch_frames.launch_frame` where the caller has it.
    """
    warnings = [Banner(kind="warning", text=text) for text in _warnings_of_sweep(loaded, scaling)]
    if launches is None and loaded.runs:
        launches = launch_frame(loaded.runs, loaded.epochs)
    if launches is not None:
        warnings += banners(loaded.valid or loaded.runs, launches)
    return tuple(warnings)


def _warnings_of_sweep(loaded: Loaded, scaling: Scaling | None) -> Iterator[str]:
    """Yield what makes the sweep as a whole doubtful."""
    doubtful = []
    if scaling:  # more speedup than ranks, beyond what the launches' scatter explains
        doubtful = [point for point in scaling.others if point.efficiency and point.efficiency > DOUBTFUL]
    if doubtful and scaling:
        names = distinct(f"{units.ranks(point.ranks)} ({units.percent(point.efficiency)})" for point in doubtful)
        yield (
            f"Efficiency far above 100 % on {names}, more than caches explain: the launches on "
            f"{units.ranks(scaling.base.ranks)} were slowed by something else. Measure them again."
        )
    invalid = sum(bool(run.invalid) for run in loaded.runs)
    if 0 < invalid < len(loaded.runs):
        launches = units.plural(len(loaded.runs), "launch")
        yield f"{invalid} of {launches} are invalid and left out, mostly: {main_reason(loaded.runs)}."
    if loaded.other_code:
        yield (
            f"{units.plural(loaded.other_code, 'launch')} of this sweep ran a different code version than the last "
            "command's (of the harness, the script or MODEL, TensorFlow, Keras or MPI) and are left out: `harness "
            "history` and `harness check` compare them."
        )
    if loaded.untimed_layouts:
        layouts = distinct(map(str, loaded.untimed_layouts))
        yield (
            f"No launch on {layouts} has interleaved times, so all times are those of whole launches, with "
            "interference: "
            "delete the launches on it and run the sweep again to have all layouts interleaved."
        )
    if loaded.unwitnessed:
        yield (
            "Whether the script trains on several ranks as on one is not known: it takes two launches on one rank "
            "that train to the same numbers (--nodes 1,... --repeats 2, seeds for whatever the script draws)."
        )


def main_reason(runs: Sequence[RunRecord]) -> str:
    """Return why most of the invalid ones of `runs`, at least one, are so."""
    reasons = [reason for run in runs for reason in run.invalid[:1]]
    return max(dict.fromkeys(reasons), key=reasons.count)
