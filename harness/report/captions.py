"""What must stand below every figure of a sweep: kind of scaling, samples, batch, base, repeats, and what bars are."""

from collections.abc import Sequence

from harness.analysis import units
from harness.analysis.confidence_intervals import FEWEST_BLOCKS
from harness.analysis.scaling import Scaling, needed_launches
from harness.prediction.extrapolation import Extrapolation
from harness.report.run_words import batch_words
from harness.schema.record import RunRecord

OF_THIS_SESSION = "Intervals of times hold for this session: on another day the machine may have another speed."


def conditions_caption(scaling: Scaling, runs: Sequence[RunRecord], *, bars: bool = True) -> str:
    """Return the sentences that every figure's caption ends with; `bars` if it draws intervals."""
    return f"{conditions(scaling, runs)} {repeats(scaling) if bars else f'{_launches(scaling)}, no interval drawn.'}"


def conditions(scaling: Scaling, runs: Sequence[RunRecord]) -> str:
    """Return kind of scaling, samples, batch and base of `runs`, and how their ranks sum where that differs."""
    valid = [run for run in runs if not run.invalid]
    base = scaling.base
    counted = f"{units.count(base.rows)} samples per epoch"
    if scaling.scaling != "strong":
        counted = f"{units.count(base.rows / base.ranks)} samples per rank and epoch"
    samples = f"{scaling.scaling.capitalize()} scaling, {counted}"
    return (
        f"{samples}; batch {batch_words(valid)}. "
        f"Base: {units.ranks(base.ranks)}, {units.seconds(base.seconds)} per epoch.{_reductions(valid)}"
    )


def _reductions(runs: Sequence[RunRecord]) -> str:
    """Return how the ranks of each point summed where that differs between points, else an empty text."""
    counts: dict[str, set[int]] = {}
    for run in runs:
        if run.point.layout.ranks > 1:
            counts.setdefault(run.provenance.reduction, set()).add(run.point.layout.ranks)
    if len(counts) < 2:
        return ""
    parts = [f"{name} on {', '.join(map(str, sorted(ranks)))} ranks" for name, ranks in counts.items()]
    return f" The points differ in how ranks sum: {'; '.join(parts)}."


def repeats(scaling: Scaling) -> str:
    """Return how many launches each point is made of, and what the error bars are."""
    high = scaling.repeats[1]
    times = _launches(scaling)
    bars = "bars: 95 % CI over blocks"
    if scaling.has_turns:
        return f"{times}, interleaved; {bars}."
    if high < FEWEST_BLOCKS:
        return f"{times}: too few for an interval (it needs {FEWEST_BLOCKS}), every launch is drawn."
    if needed_launches(scaling):
        return f"{times}; {bars}, where there are {FEWEST_BLOCKS} or more."
    apart = any(point.other_session for point in scaling.points)
    return f"{times}; {bars}" + (", no ratio's at points of another session." if apart else ".")


def _launches(scaling: Scaling) -> str:
    low, high = scaling.repeats
    return f"{units.span(low, high)} {'launch' if high == 1 else 'launches'} per point"


def drawn(layouts: int, most: int) -> str:
    """Return the sentence that not all of `layouts` are drawn, empty where they are at most `most`."""
    return f"{most} of {units.count(layouts)} layouts are drawn, all are in the CSV. " if layouts > most else ""


def foreseen(extrapolations: Sequence[Extrapolation]) -> str:
    """Return the sentences of a caption about predicted points."""
    return (
        "Hollow markers, dotted: predicted, not measured, from the step's measured parts; shaded: what 95 % of the "
        f"draws over all that is uncertain say. {extrapolations[0].rests[0]}"
    )
