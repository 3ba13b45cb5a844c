"""What a reader must know before believing the numbers."""

from collections.abc import Callable, Sequence

import pandas as pd

from harness.schema.record import RunRecord

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
        found = sorted({str(value(run)) for run in runs if value(run) is not None})
        if len(found) > 1:
            sentences.append(f"The launches differ in {name} ({', '.join(found)}): compare them with care.")
    return tuple(sentences)


def doubts(runs: Sequence[RunRecord], launches: pd.DataFrame) -> tuple[str, ...]:
    """Return one sentence for each circumstance of `runs` (`launches` is their `frames.launch_frame`) that weakens
    their numbers."""
    sentences = []
    lengths = sorted(set(launches["epochs"]))
    if len(lengths) > 1:
        different = ", ".join(map(str, lengths))
        sentences.append(f"The launches differ in the number of epochs ({different}): compare them with care.")
    dirty = sum(run.provenance.dirty for run in runs)
    if dirty:
        sentences.append(f"{_launches(dirty, len(runs))} ran with uncommitted changes: no commit names their code.")
    alone = sum(run.point.workload.sync == "none" for run in runs)
    if alone:
        sentences.append(
            f"{_launches(alone, len(runs))} ran without synchronisation: a limit of the machine, no training."
        )
    differing = sum(not run.weights.identical and run.point.workload.sync != "none" for run in runs)
    if differing:
        sentences.append(f"{_launches(differing, len(runs))} ended with weights that differ between ranks.")
    diverged = int(launches["train_loss"].isna().sum())
    if diverged:
        sentences.append(f"{_launches(diverged, len(runs))} ended with a training loss that is not finite.")
    whole = int(((launches["ranks"] > 1) & ~launches["parted"]).sum())
    if whole:
        sentences.append(
            f"{_launches(whole, len(runs))} did not record who waited for whom: all synchronisation counts as wire."
        )
    short = int((launches["epochs"] < 2).sum())
    if short:
        sentences.append(f"{_launches(short, len(runs))} had one epoch only: nothing tells a slow epoch from others.")
    return tuple(sentences)


def notes(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return every note that a launch or its data carries, once, in order of first appearance."""
    found = [note for run in runs for note in (run.data.note, *run.notes) if note]
    return tuple(dict.fromkeys(found))


def _launches(count: int, total: int) -> str:
    return f"{count} of {total} launches" if total > 1 else "The launch"
