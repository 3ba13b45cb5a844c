"""What must stand beside every figure, a sweep's answer in words, and what a paper says of it: methods, references."""

from collections.abc import Sequence

from harness.analysis import numbers
from harness.analysis.accuracy_times import TimeToAccuracy
from harness.analysis.inference import FEWEST_LAUNCHES
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import PointScaling, Scaling, needed_launches
from harness.analysis.turn_blocks import LEAST_ROUNDS
from harness.datasets import info, names
from harness.prediction.extrapolation import ExtrapolatedPoint, Extrapolation
from harness.report.answer import distinct
from harness.report.publish import render
from harness.report.sweep_facts import DOUBTFUL, commit_words, data_words, days, machine_words
from harness.schema import setting_words
from harness.schema.record import RunRecord
from harness.schema.workload import Workload, is_script

_WIDE = 1.5  # times an interval's lower end: further up it says little more than that there is a speedup


def subject(workload: Workload) -> str:
    """Return the workload's name as papers print it, ``MNIST-DNN``, and that of a file of the user's own as it is."""
    return workload.name if workload.data_file else workload.name.upper()


def question(scaling: Scaling, workload: Workload) -> str:
    """Return what a sweep was run to find out."""
    last, base, name = last_point(scaling), numbers.ranks(scaling.base.ranks), subject(workload)
    if last is None:
        return f"How long does an epoch of {name} take on {base}?"
    if scaling.scaling == "weak":
        return f"How much more of {name} do {numbers.ranks(last.ranks)} train in the time of {base}?"
    return f"How much faster do {numbers.ranks(last.ranks)} train {name} than {base}?"


def last_point(scaling: Scaling) -> PointScaling | None:
    """Return the largest point that has a speedup: the one that the headline speaks of."""
    return next((point for point in reversed(scaling.others) if point.speedup is not None), None)


def headline(scaling: Scaling, workload: Workload, beyond: Sequence[Extrapolation] = ()) -> str:
    """Return the report's first sentence: the largest point against the base, with its doubt, and what is predicted."""
    base, name = scaling.base, subject(workload)
    last = last_point(scaling)
    if last is None:
        only = f"{numbers.ranks(base.ranks)} {_verb(base.ranks, 'train')} an epoch of {name}"
        if beyond:
            return f"{only} in {numbers.seconds(base.seconds)}, measured; {_furthest(beyond, scaling)}."
        lacks = "rank count has a valid launch" if len(scaling.points) == 1 else "point did the same work"
        return f"{only} in {numbers.seconds(base.seconds)}; no other {lacks}, so there is no speedup."
    assert last.speedup is not None and last.efficiency is not None
    ranks, certainty = numbers.ranks(last.ranks), _certainty(last, base, scaling)
    efficiency = f"efficiency {numbers.percent(last.efficiency)}"
    alone = workload.sync == "none"
    verb = f"without synchronisation {_verb(last.ranks, 'compute')}" if alone else _verb(last.ranks, "train")
    if scaling.scaling == "weak":
        work = f"{last.ideal:g} times the rows of {numbers.ranks(base.ranks)}"
        fact = f"{ranks} {verb} {name} on {work} at {last.speedup:.2f} times the rate ({efficiency}), {certainty}"
    else:
        fact = f"{ranks} {verb} {name} {last.speedup:.2f} times as fast as {numbers.ranks(base.ranks)} ({efficiency}), "
        fact += certainty
    if ran_apart(last):
        fact += f"; {ran_words(last)} with what others took of the machine"
    if last.efficiency > DOUBTFUL:
        fact = f"No speedup to rely on, the base is slow for a reason of its own: {fact}"
    elif last.speedup_interval and last.speedup_interval.high > _WIDE * last.speedup_interval.low:
        fact = f"No speedup to rely on, its repetitions differ too much: {fact}"
    fact += f", measured; {_furthest(beyond, scaling)}" if beyond else ""
    return f"{fact}; an upper limit, no training." if alone else f"{fact}."


_APART = 0.02  # relative difference of the two speedups from which a sentence gives both


def ran_apart(point: PointScaling) -> bool:
    """Tell whether the speedup as it ran differs from that on undisturbed cores: by 2 %, or beyond an interval."""
    if point.speedup is None or point.ran_speedup is None:
        return False
    ratio = point.ran_speedup / point.speedup
    beyond = [
        interval is not None and not interval.low <= value <= interval.high
        for value, interval in (
            (point.speedup, point.ran_speedup_interval),
            (point.ran_speedup, point.speedup_interval),
        )
    ]
    return abs(ratio - 1) > _APART or any(beyond)


def ran_words(point: PointScaling) -> str:
    """Return the speedup as it ran and its interval: ``1.55 (1.50 to 1.60)``."""
    interval = f" ({numbers.ratio_span(point.ran_speedup_interval)})" if point.ran_speedup_interval else ""
    return f"{point.ran_speedup:.2f}{interval}"


ESTIMAND = (
    "The speedup of P ranks is the time of one rank, averaged over the cores on which it may run, divided by the time "
    "of P ranks, for the same rows."
)
"""What a speedup is, for every page and docs/method.md."""


def _furthest(beyond: Sequence[Extrapolation], scaling: Scaling) -> str:
    """Return the most ranks that each series predicts, in words: ``8 ranks on a node like this: about 4.9 (...)``."""
    over = " times as fast" if last_point(scaling) is None else ""
    ends = [(one.where, one.points[-1]) for one in beyond]
    said = [f"{numbers.ranks(last.ranks)} {where}: about {predicted_words(last)}{over}" for where, last in ends]
    return f"{'; '.join(said)}, predicted"


def predicted_words(point: ExtrapolatedPoint) -> str:
    """Return a predicted speedup with its band, in as many digits as it has: ``4.9 (4.4 to 5.3)``."""
    return f"{numbers.significant(point.speedup, 2)} ({band_words(point)})"


def band_words(point: ExtrapolatedPoint) -> str:
    """Return the band of a predicted speedup: ``4.4 to 5.3``."""
    found = point.speedup_interval
    return f"{numbers.significant(found.low, 2)} to {numbers.significant(found.high, 2)}"


def foreseen(beyond: Sequence[Extrapolation]) -> str:
    """Return the sentences of a caption about predicted points."""
    return (
        "Hollow markers, dotted: predicted, not measured, from the step's measured parts; shaded: what 95 % of the "
        f"draws over all that is uncertain say. {beyond[0].rests[0]}"
    )


def to_accuracy(scaling: Scaling, targets: Sequence[TimeToAccuracy], goal: float | None) -> str:
    """Return the sentence that follows the headline: the same point's speedup to the test accuracy `goal`.

    `targets` has every layout's time to it (`scaling.speedups_to_accuracy`). Empty where accuracy was not tested.
    """
    found = target_of(scaling, targets)
    if found is None or goal is None:
        return ""
    level, base = f"{numbers.percent(goal, 1)} test accuracy", numbers.ranks(scaling.base.ranks)
    if found.speedup is None:
        reached = f"{found.reached} of {numbers.plural(found.launches, 'launch')}"
        return f"No speedup to equal accuracy: {reached} on {numbers.ranks(found.ranks)} reach {level}."
    doubt = f", 95 % interval {numbers.ratio_span(found.interval)}" if found.interval else ""
    them = f"{numbers.ranks(found.ranks)} {'are' if found.ranks > 1 else 'is'}"
    return f"To {level} {them} {found.speedup:.2f} times as fast as {base}{doubt}."


def target_of(scaling: Scaling, targets: Sequence[TimeToAccuracy]) -> TimeToAccuracy | None:
    """Return the time to accuracy of the point that the headline speaks of."""
    last = last_point(scaling)
    return next((one for one in targets if last is not None and one.layout == last.layout), None)


def speedup_label(scaling: Scaling) -> str:
    """Return what the ratio is called under this kind of scaling."""
    return "Speedup" if scaling.scaling == "strong" else "Scaled speedup"


def conditions(scaling: Scaling, runs: Sequence[RunRecord], *, bars: bool = True) -> str:
    """Return the sentences that every figure's caption ends with; `bars` if it draws intervals."""
    valid = [run for run in runs if not run.invalid]
    base = scaling.base
    per_rank = [rank.batch for run in valid for rank in run.ranks]
    batches = [run.global_batch for run in valid]
    rows = f"{scaling.scaling.capitalize()} scaling, {_rows(scaling)}"
    return (
        f"{rows}; batch {numbers.span(min(per_rank), max(per_rank), 'rows')} per rank, "
        f"{numbers.span(min(batches), max(batches))} global. "
        f"Base: {numbers.ranks(base.ranks)}, {numbers.seconds(base.seconds)} per epoch. {_reductions(valid)}"
        f"{repeats(scaling) if bars else f'{_launches(scaling)}, no interval drawn.'}"
    )


def _reductions(runs: Sequence[RunRecord]) -> str:
    """Return how the ranks of each point summed where that differs between points, else an empty text."""
    found: dict[str, set[int]] = {}
    for run in runs:
        if run.point.layout.ranks > 1:
            found.setdefault(run.provenance.reduction, set()).add(run.point.layout.ranks)
    if len(found) < 2:
        return ""
    parts = [f"{name} on {', '.join(map(str, sorted(ranks)))} ranks" for name, ranks in found.items()]
    return f"The points differ in how ranks sum: {'; '.join(parts)}. "


def repeats(scaling: Scaling) -> str:
    """Return how many launches stand behind each point and what the error bars are."""
    high = scaling.repeats[1]
    times = _launches(scaling)
    if in_turns(scaling):
        return f"{times}, in turns; bars: 95 % interval over blocks, a time's of this session only."
    if high < FEWEST_LAUNCHES:
        return f"{times}: too few for an interval (it needs {FEWEST_LAUNCHES}), every launch is drawn."
    if needed_launches(scaling):
        median = "95 % interval of the median, a time's of this session only"
        return f"{times}; {median}, where there are {FEWEST_LAUNCHES} or more."
    apart = any(point.other_session for point in scaling.points)
    return f"{times}; bars: 95 % interval, a time's of this session only" + (
        ", no ratio's at points of another session." if apart else "."
    )


def in_turns(scaling: Scaling) -> bool:
    """Tell whether every ratio is of launches that trained in turns."""
    return bool(scaling.others) and all(point.blocks for point in scaling.others)


def drawn(layouts: int, most: int) -> str:
    """Return the sentence that not all of `layouts` are drawn, empty where they are at most `most`."""
    return f"{most} of {numbers.count(layouts)} layouts are drawn, all are in the CSV. " if layouts > most else ""


def method(scaling: Scaling) -> str:
    """Return how a time, a ratio and an interval are computed."""
    work = "its epoch time" if scaling.scaling == "strong" else "its epoch time, times the ratio of the ranks"
    rest = (
        "Variation, between launches and within one, is a relative standard deviation. A step's time is its epoch's "
        "over the number of steps. Outliers (Tukey's fences) are marked and counted; invalid launches count nowhere "
        "and are listed below."
    )
    if in_turns(scaling):
        return f"{_method_in_turns(scaling)} {rest}"
    return (
        "A launch's time is the median over its epochs of the slowest rank's training time, without "
        "evaluation. A point's time is the median over its launches. Speedup is the base's median over the "
        f"point's median of {work}; ratios are never averaged. The 95 % interval of a time (binomial order "
        "statistics) is of this session only: in another the machine may have another speed. That of a ratio "
        "is a bootstrap over the launches of both points, paired by the block of the interleaved order; both "
        f"need {FEWEST_LAUNCHES} launches. Points launched in other sessions than the base (nothing ran for an hour "
        "between them) have no interval of a ratio. " + rest
    )


def _method_in_turns(scaling: Scaling) -> str:
    """Return how times and ratios of launches in turns are computed, and how much other work met them."""
    told = ""
    if scaling.disturbed_blocks:
        blocks = numbers.plural(scaling.disturbed_blocks, "block")
        told = f" Left out as a whole: {blocks} with fewer than {LEAST_ROUNDS} other rounds."
        if _as_it_ran_only(scaling):
            told = f" No block has {LEAST_ROUNDS} other rounds, so that all times are as they ran."
    return (
        f"{ESTIMAND} All layouts of a repeat, a block, trained in turns of about 50 ms on the same cores, one turn "
        "each a round, in random order; a single rank takes its turns on the cores of the block, one after the other. "
        "A turn's time is the slowest rank's. On undisturbed cores: rounds in which other work had more than 5 % of a "
        f"rank's core in any turn are left out as a whole, here {numbers.percent(scaling.left_out)} of them.{told} A "
        "block's number is the mean of its rounds' log ratios, to the single rank's mean over its cores. As it ran: "
        "total seconds over total steps of all turns, what a user waits for. Times are geometric means over blocks, "
        "speedups the ratios of the times, 95 % intervals Student's t over blocks."
    )


def _certainty(last: PointScaling, base: PointScaling, scaling: Scaling) -> str:
    launches = numbers.plural(last.launches, "launch")
    text = f"{launches} each" if last.launches == base.launches else f"{launches} against {base.launches}"
    if last.blocks:
        text = f"{numbers.plural(last.blocks, 'block')} in turns"
        if _as_it_ran_only(scaling):
            text += ", as they ran: other work met nearly every round"
        elif ran_apart(last):
            text += ", on undisturbed cores"
    excluded = last.excluded + base.excluded
    if excluded:
        every = excluded + last.launches + base.launches
        text += f" ({excluded} of {numbers.plural(every, 'launch')} invalid and left out)"
    if last.speedup_interval is None:
        apart = "measured more than an hour apart, so no interval: the same command with REPEATS=, in one go, gives one"
        return f"{text}: " + (apart if last.other_session else "too few for an interval")
    return f"95 % interval {numbers.ratio_span(last.speedup_interval)}, {text}"


def _as_it_ran_only(scaling: Scaling) -> bool:
    """Tell whether no block has times on undisturbed cores."""
    return scaling.base.ran_seconds == scaling.base.seconds


def _launches(scaling: Scaling) -> str:
    low, high = scaling.repeats
    return f"{numbers.span(low, high)} {'launch' if high == 1 else 'launches'} per point"


def _rows(scaling: Scaling) -> str:
    if scaling.scaling == "strong":
        return f"{numbers.count(scaling.base.rows)} rows per epoch"
    return f"{numbers.count(scaling.base.rows / scaling.base.ranks)} rows per rank and epoch"


def _verb(count: int, stem: str) -> str:
    return f"{stem}s" if count == 1 else stem


def methods(loaded: Loaded, scaling: Scaling) -> str:
    """Return a paragraph: what was trained, on what, where, with which versions, how often, how it was evaluated."""
    runs, run = loaded.valid, loaded.valid[0]
    workload, origin = run.point.workload, run.provenance
    settings = [f"{name}: {value}" for name, value in setting_words.conditions(workload)]
    settings = ["settings in the script"] if is_script(workload) else settings
    ranks = ", ".join(str(count) for count in dict.fromkeys(point.ranks for point in scaling.points))
    excluded = len(loaded.runs) - len(runs)
    parts = [
        f"We measured the {scaling.scaling} scaling of {workload.name} ({numbers.count(run.weights.parameters)} "
        f"trained parameters; {'; '.join(settings)}) on {data_words(run)} (test rows: "
        f"{numbers.count(run.data.test_rows)}; SHA-256 of the source {run.data.sha256[:16]}).",
        f"Replicas trained synchronously with TensorFlow {distinct(one.provenance.tensorflow for one in runs)} and "
        f"Keras {origin.keras} on {ranks} MPI ranks ({origin.mpi_library}, mpi4py {origin.mpi4py}; "
        f"{distinct(one.provenance.reduction for one in runs if len(one.ranks) > 1) or 'one rank, no allreduce'}), "
        f"with {distinct(one.point.layout.threads for one in runs)} TensorFlow thread(s) on as many cores of its own "
        "for each rank.",
        f"Hardware: {distinct((machine_words(one.provenance.machine) for one in runs), '; ')}; {origin.machine.os}. "
        f"Measured {days(one.started for one in runs)}.",
        *_methods_of_times(scaling),
        f"{numbers.plural(excluded, 'launch')} with invalid times (other load, missing cores) were excluded."
        if excluded
        else "No launch was excluded.",
        f"Software: mpi-tf-harness {origin.harness}, commit {distinct(commit_words(one.provenance) for one in runs)}; "
        f"Python {origin.python}, NumPy {origin.numpy}.",
    ]
    return " ".join(parts).replace("\u00a0", " ")


def _methods_of_times(scaling: Scaling) -> tuple[str, str]:
    """Return how often was launched and how times and ratios were formed, and what the intervals are."""
    low, high = scaling.repeats
    base = f"{numbers.ranks(scaling.base.ranks)} ({numbers.seconds(scaling.base.seconds)})"
    often = f"Each layout was launched {numbers.span(low, high)} times"
    if in_turns(scaling):
        return (
            f"{often}; all layouts of a repeat trained in turns of about 50 ms on the same cores. {ESTIMAND} Rounds of "
            "turns that other work met were left out as a whole; speedup is the mean over such blocks of the mean log "
            f"ratio over rounds, over {base} per epoch.",
            "95 % intervals are Student's t over blocks.",
        )
    intervals = (
        "Intervals are 95 %: binomial order statistics for times, of this session only, a bootstrap over blocks of "
        "launches for ratios."
    )
    if low < FEWEST_LAUNCHES:
        intervals = f"With fewer than {FEWEST_LAUNCHES} launches of a layout we give no intervals there."
    return (
        f"{often}, launches of all layouts interleaved in shuffled order; a launch is the sample. Its time is the "
        "median over its epochs of the slowest rank's training time after compilation and warm-up, without evaluation; "
        f"a point's time is the median over launches; speedup is the ratio of medians over {base}.",
        intervals,
    )


def bibtex(runs: Sequence[RunRecord]) -> str:
    """Return the BibTeX entries of what `runs` (at least one) rest on, with the versions that ran."""
    run = runs[0]
    return render(
        "references.bib.j2",
        run=run,
        origin=run.provenance,
        commits=distinct(commit_words(one.provenance) for one in runs),
        year=runs[-1].started.year,
        data=info(run.data.name) if run.data.name in names() and run.data.kind == "real" else None,
    )
