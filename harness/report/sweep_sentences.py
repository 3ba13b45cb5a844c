"""A sweep's answer in words: its question, its first sentence, and the speedup to equal accuracy."""

from collections.abc import Sequence

from harness.analysis import units
from harness.analysis.accuracy_times import TimeToAccuracy
from harness.analysis.confidence_intervals import Interval
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.turn_blocks import LEAST_ROUNDS
from harness.prediction.extrapolation import ExtrapolatedPoint, Extrapolation
from harness.report.sweep_warnings import DOUBTFUL
from harness.schema.workload import Workload

_WIDE = 1.5  # times an interval's lower end: further up it says little more than that there is a speedup
_APART = 0.02  # relative difference of the two speedups from which a sentence gives both


def subject(workload: Workload) -> str:
    """Return the workload's name as papers print it, ``MNIST-DNN``, and that of a file of the user's own as it is."""
    return workload.name.upper() if workload.has_known_data else workload.name


def speedup_label(scaling: Scaling) -> str:
    """Return what the ratio is called under this kind of scaling."""
    return "Speedup" if scaling.scaling == "strong" else "Scaled speedup"


def question(scaling: Scaling, workload: Workload) -> str:
    """Return what a sweep was run to find out."""
    last = last_point(scaling)
    base = units.ranks(scaling.base.ranks)
    name = subject(workload)
    if last is None:
        return f"How long does an epoch of {name} take on {base}?"
    if scaling.scaling == "weak":
        return f"How much more of {name} do {units.ranks(last.ranks)} train in the time of {base}?"
    return f"How much faster do {units.ranks(last.ranks)} train {name} than {base}?"


def last_point(scaling: Scaling) -> PointScaling | None:
    """Return the largest point that has a speedup: the one that the headline speaks of."""
    return next((point for point in reversed(scaling.others) if point.speedup is not None), None)


def headline(scaling: Scaling, workload: Workload, extrapolations: Sequence[Extrapolation] = ()) -> str:
    """Return the report's first sentence: the speedup of the largest point with its interval and efficiency.

    Where only the base was measured, it says how long that takes, and the furthest of what is predicted.
    """
    last = last_point(scaling)
    if last is None:
        base = scaling.base
        measured = f"{units.ranks(base.ranks)} {_verb(base.ranks, 'train')} an epoch of {subject(workload)}"
        measured += f" in {units.seconds(base.seconds)}"
        if extrapolations:
            return f"{measured}, measured; {_furthest(extrapolations, scaling)}."
        missing = "rank count has a valid launch" if len(scaling.points) == 1 else "point did the same work"
        return f"{measured}; no other {missing}, so there is no speedup."
    assert last.speedup is not None and last.efficiency is not None
    interval = last.speedup_interval
    certainty = f" (95 % CI {units.ratio_span(interval)})" if interval else ""
    sentence = f"{_speedup(last, scaling, workload)}{certainty}, efficiency {units.percent(last.efficiency)}"
    if last.efficiency > DOUBTFUL:
        sentence = f"No speedup to rely on, the base is slow for a reason of its own: {sentence}"
    elif interval and interval.high > _WIDE * interval.low:
        sentence = f"No speedup to rely on, its repetitions differ too much: {sentence}"
    return f"{sentence}; an upper limit, no training." if workload.sync == "none" else f"{sentence}."


def details(scaling: Scaling, extrapolations: Sequence[Extrapolation] = ()) -> tuple[str, ...]:
    """Return what stands below the headline: the sample, the speedup including interference, what is predicted."""
    last = last_point(scaling)
    if last is None:
        return ()
    sentences = [f"{_capitalised(_sample(last, scaling))}."]
    if ran_apart(last):
        ran = f"Including interference, so with the time that other work took, the speedup is {ran_words(last)}"
        sentences.append(f"{ran}{_why_apart(last, scaling)}.")
    if extrapolations:
        sentences.append(f"{_capitalised(_furthest(extrapolations, scaling))}.")
    return tuple(sentences)


def _why_apart(last: PointScaling, scaling: Scaling) -> str:
    """Return which side lost more of its time to other work, where the two speedups differ beyond the interval."""
    assert last.speedup is not None and last.ran_speedup is not None
    if not _outside(last.speedup, last.ran_speedup_interval):
        return ""
    loser = scaling.base if last.ran_speedup > last.speedup else last
    return f": {units.ranks(loser.ranks)} lost more time to other work"


def _speedup(last: PointScaling, scaling: Scaling, workload: Workload) -> str:
    """Return the speedup of a point in words, with its efficiency."""
    name = subject(workload)
    base_ranks = units.ranks(scaling.base.ranks)
    verb = _verb(last.ranks, "train")
    if workload.sync == "none":
        verb = f"without synchronisation {_verb(last.ranks, 'compute')}"
    if scaling.scaling == "weak":
        speedup = f"{name} on {last.ideal:g} times the samples of {base_ranks} at {last.speedup:.2f} times the rate"
    else:
        speedup = f"{name} {last.speedup:.2f} times as fast as {base_ranks}"
    return f"{units.ranks(last.ranks)} {verb} {speedup}"


def _sample(last: PointScaling, scaling: Scaling) -> str:
    """Return how many launches or blocks the speedup is of, what was left out, and why it has no interval."""
    sample = _blocks(last, scaling) if scaling.has_turns and last.blocks else _launches(last, scaling)
    excluded = last.excluded + scaling.base.excluded
    if excluded:
        launches = units.plural(excluded + last.launches + scaling.base.launches, "launch")
        sample += f" ({excluded} of {launches} invalid and left out)"
    if last.speedup_interval:
        return f"the interval is over {sample}"
    reason = "too few for an interval"
    if last.other_session:
        reason = "measured more than an hour apart, so no interval: the same command with --repeats, in one go, "
        reason += "gives one"
    return f"{sample}: {reason}"


def _blocks(last: PointScaling, scaling: Scaling) -> str:
    """Return how many blocks the speedup is of, and which of their rounds."""
    blocks = f"{units.plural(last.blocks, 'block')}, in each of which all rank counts trained interleaved"
    if not scaling.is_as_it_ran:
        if not ran_apart(last):
            return blocks
        share = units.percent(scaling.left_out)
        return f"{blocks}; {share} of the rounds are left out, in which other work used more than 5 % of a rank's core"
    if scaling.short_blocks == scaling.disturbed_blocks:
        return f"{blocks}, including interference: too few steps for {LEAST_ROUNDS} rounds"
    return f"{blocks}, including interference: other work met nearly every round"


def _launches(last: PointScaling, scaling: Scaling) -> str:
    """Return how many launches the speedup is of."""
    launches = units.plural(last.launches, "launch")
    if last.launches == scaling.base.launches:
        return f"{launches} each"
    return f"{launches} against {scaling.base.launches}"


def ran_apart(point: PointScaling) -> bool:
    """Return whether the speedup including interference differs from that without: by 2 %, or beyond an interval."""
    if point.speedup is None or point.ran_speedup is None:
        return False
    ratio = point.ran_speedup / point.speedup
    if abs(ratio - 1) > _APART:
        return True
    return _outside(point.speedup, point.ran_speedup_interval) or _outside(point.ran_speedup, point.speedup_interval)


def _outside(value: float, interval: Interval | None) -> bool:
    return interval is not None and not interval.low <= value <= interval.high


def ran_words(point: PointScaling) -> str:
    """Return the speedup including interference and its interval: ``1.55 (95 % CI 1.50 to 1.60)``."""
    interval = f" (95 % CI {units.ratio_span(point.ran_speedup_interval)})" if point.ran_speedup_interval else ""
    return f"{point.ran_speedup:.2f}{interval}"


def _furthest(extrapolations: Sequence[Extrapolation], scaling: Scaling) -> str:
    """Return the most ranks that each series predicts, in words: ``8 ranks on a node like this: about 4.9 (...)``."""
    over = " times as fast" if last_point(scaling) is None else ""
    words = []
    for series in extrapolations:
        last = series.points[-1]
        words.append(f"{units.ranks(last.ranks)} {series.where}: about {predicted_words(last)}{over}")
    return f"{'; '.join(words)}, predicted"


def predicted_words(point: ExtrapolatedPoint) -> str:
    """Return a predicted speedup with its band, in as many digits as it has: ``4.9 (4.4 to 5.3)``."""
    return f"{units.significant(point.speedup, 2)} ({band_words(point)})"


def band_words(point: ExtrapolatedPoint) -> str:
    """Return the band of a predicted speedup: ``4.4 to 5.3``."""
    band = point.speedup_interval
    return f"{units.significant(band.low, 2)} to {units.significant(band.high, 2)}"


def to_accuracy(scaling: Scaling, workload: Workload, targets: Sequence[TimeToAccuracy], goal: float | None) -> str:
    """Return the same point's speedup to the test accuracy `goal`, and why it is lower than that of an epoch.

    `targets` has every layout's time to it (`scaling.speedups_to_accuracy`). Empty where accuracy was not tested.
    """
    target = target_of(scaling, targets)
    if target is None or goal is None:
        return ""
    level = f"{units.percent(goal, 2)} test accuracy"
    if target.speedup is None:
        reached = f"{target.reached} of {units.plural(target.launches, 'launch')}"
        return f"No speedup to equal accuracy: {reached} on {units.ranks(target.ranks)} reach {level}."
    doubt = f" (95 % CI {units.ratio_span(target.interval)})" if target.interval else ""
    ranks = f"{units.ranks(target.ranks)} {'are' if target.ranks > 1 else 'is'}"
    base = units.ranks(scaling.base.ranks)
    reason = _batch_reason(scaling, workload, target)
    counted = _whole_epochs(scaling, target, targets)
    return f"To {level} {ranks} {target.speedup:.2f} times as fast as {base}{doubt}{counted}{reason}."


def _whole_epochs(scaling: Scaling, target: TimeToAccuracy, targets: Sequence[TimeToAccuracy]) -> str:
    """Return how many whole epochs the base and the point of `target` take, as a part of a sentence."""
    base = next((each for each in targets if each.layout == scaling.base.layout), None)
    if base is None or base.epochs is None or target.epochs is None:
        return ""
    on_base = f"{base.epochs:g} on {units.ranks(base.ranks)}"
    return f", counted in whole epochs ({on_base}, {target.epochs:g} on {units.ranks(target.ranks)})"


def _batch_reason(scaling: Scaling, workload: Workload, target: TimeToAccuracy) -> str:
    """Return that more ranks update the weights less often, where the speedup to accuracy is below that of an epoch."""
    last = last_point(scaling)
    assert last is not None and last.speedup is not None and target.speedup is not None
    before = scaling.base.global_batch
    if target.speedup > (1 - _APART) * last.speedup or last.global_batch <= before:
        return ""
    remedy = "" if workload.script else f" (--global-batch {before} keeps it)"
    updates = f"on {units.ranks(last.ranks)} an epoch has fewer updates of the weights"
    return f": {updates}, as the global batch is {last.global_batch} instead of {before}{remedy}"


def target_of(scaling: Scaling, targets: Sequence[TimeToAccuracy]) -> TimeToAccuracy | None:
    """Return the time to accuracy of the point that the headline speaks of."""
    last = last_point(scaling)
    return next((target for target in targets if last is not None and target.layout == last.layout), None)


def _verb(count: int, stem: str) -> str:
    return f"{stem}s" if count == 1 else stem


def _capitalised(text: str) -> str:
    """Return `text` with its first letter as one of a sentence."""
    return text[:1].upper() + text[1:]
