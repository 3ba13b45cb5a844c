"""Two or more measurements side by side: ratios with intervals, and whether they matter."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.stats import LEVEL, NEEDED, Interval
from harness.regression.hodges_lehmann import shift, shift_interval
from harness.regression.noise import Noise, learn
from harness.regression.quantities import EFFICIENCY, RELATIVE, TIME, CostSample, samples
from harness.regression.significance import PRACTICAL
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement

BETTER = "better"
WORSE = "worse"
ALIKE = "alike"
OPEN = "open"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One quantity at one layout of `other` over the first. `ratio` above 1 is better: faster, more efficient.

    `values` are medians in seconds or fractions. `meaning`: ``better`` or ``worse`` where the interval leaves
    out 1 and the ratio is of a practical size; ``alike`` where the whole interval is within it; ``open`` else.
    `assumed` says that what lies between sittings was assumed.
    """

    other: Measurement
    quantity: str
    layout: Layout | None
    values: tuple[float, float]
    launches: tuple[int, int]
    ratio: float
    interval: Interval | None
    assumed: bool
    meaning: str


def compare(
    first: Measurement, other: Measurement, alike: Sequence[Measurement] = (), *, practical: float = PRACTICAL
) -> tuple[Comparison, ...]:
    """Return time and efficiency of `other` over `first` at every layout that both launched.

    They may differ in anything but the rows of an epoch: layouts where these differ are left out. They count as
    measured in different sittings; `alike` are A/A launches that tell how far sittings differ.
    """
    shared = [layout for layout in first.layouts if _same_rows(first, other, layout)]
    if not shared:
        return ()
    before = {sample.key: sample for sample in samples(first, first, shared)}
    found = samples(other, first, shared)
    known = [*before.values(), *found, *(sample for one in alike for sample in samples(one, one, one.layouts))]
    rows = []
    for sample in found:
        if sample.quantity in RELATIVE and sample.key in before:
            noise = learn([one.by_sitting for one in known if one.key == sample.key])
            rows.append(_comparison(other, before[sample.key], sample, noise, practical))
    return tuple(rows)


def _same_rows(first: Measurement, other: Measurement, layout: Layout) -> bool:
    one, two = first.of(layout), other.of(layout)
    return bool(one and two) and math.isclose(one[0].rows, two[0].rows, rel_tol=0.01)


def _comparison(
    other: Measurement, before: CostSample, now: CostSample, noise: Noise | None, practical: float
) -> Comparison:
    counts = (len(before.costs), len(now.costs))
    enough = min(counts) >= NEEDED
    distance = shift(now.costs, before.costs)
    found = shift_interval(now.costs, before.costs, LEVEL) if enough and noise else None
    if found and noise:
        found = noise.widened(found, distance, now.size, before.size, LEVEL)
    interval = Interval(low=math.exp(-found.high), high=math.exp(-found.low)) if found else None
    ratio = math.exp(-distance)
    return Comparison(
        other=other,
        quantity=before.quantity,
        layout=before.layout,
        values=(before.value, now.value),
        launches=counts,
        ratio=ratio,
        interval=interval,
        assumed=noise is None or noise.assumed,
        meaning=_meaning(ratio, interval, practical),
    )


def _meaning(ratio: float, interval: Interval | None, practical: float) -> str:
    if interval is None:
        return OPEN
    low, high = 1 / (1 + practical), 1 + practical
    if low <= interval.low and interval.high <= high:
        return ALIKE
    if interval.low > 1 and ratio > high:
        return BETTER
    if interval.high < 1 and ratio < low:
        return WORSE
    return OPEN


def sentence(name: str, first: str, comparisons: Sequence[Comparison]) -> str:
    """Return in plain words what `comparisons` (of one measurement, called `name`) say over `first`.

    The point with the most ranks speaks: it is what a scaling study is about.
    """
    times = [one for one in comparisons if one.quantity == TIME]
    if not times:
        return f"{name} and {first} share no layout with the same rows: nothing to compare."
    last = times[-1]
    assert last.layout is not None
    ranks = f"{last.layout.ranks} rank{'s' if last.layout.ranks > 1 else ''}"
    span = f" (95 % interval {last.interval.low:.2f} to {last.interval.high:.2f})" if last.interval else ""
    if last.meaning == OPEN:
        why = "the interval leaves it open" if last.interval else f"{NEEDED} launches of each are needed to judge"
        return f"On {ranks} {name} is {last.ratio:.2f} times as fast as {first}{span}: {why}."
    if last.meaning == ALIKE:
        return f"On {ranks} {name} is as fast as {first}: {last.ratio:.2f} times{span}."
    word = "faster" if last.meaning == BETTER else "slower"
    efficient = next((one for one in comparisons if one.quantity == EFFICIENCY and one.layout == last.layout), None)
    cause = (
        ""
        if efficient is None
        else f", efficiency {100 * efficient.values[0]:.0f} to {100 * efficient.values[1]:.0f} %"
    )
    return f"On {ranks} {name} is {word} than {first}: {last.ratio:.2f} times as fast{span}{cause}."
