"""The bill: from the ideal time of a point to the measured one, every part of the loss with its cause."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.breakdown import LAUNCH_PARTS, LOSS, median_launches
from harness.analysis.causes import COMPUTE_COLUMNS, SKEW_COLUMNS, WIRE_COLUMNS
from harness.analysis.scaling import PointScaling, Scaling, alike
from harness.analysis.stats import NEEDED, Interval, percentiles, resamples

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class OverheadLine:
    """One line of every bill: its column (seconds), its name, and the column of the breakdown that it is a part of."""

    column: str
    name: str
    part: str


_SKEW = ("unequal rows", "a slow rank", "rare delays", "jitter of every step", "leaving the last sum apart")
_WIRE = ("sum: latency", "sum: bandwidth", "sum (wire)")
_COMPUTE = ("slower computation", "cores taken by others", "not explained")


def _causes(columns: Sequence[str], names: Sequence[str], part: str) -> tuple[OverheadLine, ...]:
    return tuple(OverheadLine(column=column, name=name, part=part) for column, name in zip(columns, names, strict=True))


CAUSES = (
    *_causes(COMPUTE_COLUMNS[:2], _COMPUTE[:2], "compute_seconds"),
    OverheadLine(column="input_seconds", name="input", part="input_seconds"),
    *_causes(SKEW_COLUMNS, _SKEW, "skew_seconds"),
    *_causes(WIRE_COLUMNS, _WIRE, "wire_seconds"),
    *_causes(COMPUTE_COLUMNS[2:], _COMPUTE[2:], "compute_seconds"),
)
"""The causes of the loss of an epoch: those of a part of the breakdown sum to it, all to the epoch's time."""
LAUNCH_CAUSES = tuple(
    OverheadLine(column=part, name=part.removesuffix("_s").removeprefix("trained_"), part=part) for part in LAUNCH_PARTS
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """What one cause costs a point beyond its ideal share: seconds, part of the measured time, part of the loss.

    Below zero it is a gain. `share` is None where too little is lost to divide it; intervals are bootstraps over the
    launches of both points, None below 6 or where sittings differ; that of `share` also where the loss may be nothing.
    """

    cause: OverheadLine
    seconds: float
    fraction: float
    fraction_interval: Interval | None
    share: float | None
    share_interval: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """The loss of one point: `ideal` and `measured` seconds, and all its items, in the order of the causes.

    `fraction_interval` is that of the loss as part of the measured time, None where the items have none.
    """

    layout: str
    ranks: int
    ideal: float
    measured: float
    fraction_interval: Interval | None
    items: tuple[Item, ...]

    @property
    def loss(self) -> float:
        """Seconds that the point takes beyond the ideal."""
        return self.measured - self.ideal

    @property
    def told(self) -> tuple[Item, ...]:
        """The items that are worth a line, dearest first: those of at least 0.1 % of the measured time."""
        worth = [item for item in self.items if abs(item.fraction) >= _WORTH]
        return tuple(sorted(worth, key=lambda item: -item.seconds))

    @property
    def explained(self) -> float | None:
        """The part of the loss that has a cause; 1 is all, None where too little is lost."""
        shares = [item.share for item in self.items if item.cause.column != "unexplained_seconds"]
        return None if None in shares else sum(share for share in shares if share is not None)


_WORTH = 0.001


def bills(scaling: Scaling, launches: pd.DataFrame, causes: Sequence[OverheadLine] = CAUSES) -> tuple[Bill, ...]:
    """Return the bill of every point with a speedup, other than the base; `launches` are `causes.Explained`'s.

    The ideal share of a part is the base's divided by the ratio of the ranks (strong scaling) or the same (weak), as
    in `breakdown.caps`, of which these are the details. The `LAUNCH_CAUSES` make the bill of a whole launch, whose
    parts are all in `frames.launch_frame`.
    """
    launches = launches.assign(whole=launches[[cause.column for cause in causes]].sum(axis=1))
    groups = {str(layout): group for layout, group in launches.groupby("layout", sort=False)}
    compared = [point for point in scaling.others if point.speedup is not None]
    return tuple(_bill(point, groups[point.layout], groups[scaling.base.layout], scaling, causes) for point in compared)


def _bill(
    point: PointScaling, group: pd.DataFrame, base: pd.DataFrame, scaling: Scaling, causes: Sequence[OverheadLine]
) -> Bill:
    share = point.ideal if scaling.scaling == "strong" else 1.0
    columns = [cause.column for cause in causes]
    first, second = np.arange(len(base))[None], np.arange(len(group))[None]
    ideal, measured, lost = _lost(base, group, first, second, columns, share)
    loss = float(measured[0] - ideal[0])
    divided = loss >= LOSS * measured[0]
    pair = alike(base, group) if min(len(base), len(group)) >= NEEDED else None
    fractions = shares = whole = None
    if pair is not None:
        first, second = resamples(len(pair.base), len(pair.group), paired=pair.paired)
        drawn_ideal, drawn, drawn_lost = _lost(pair.base, pair.group, first, second, columns, share)
        fewest = min(len(pair.base), len(pair.group))
        fractions = [percentiles(one, fewest) for one in (drawn_lost / drawn[:, None]).T]
        losses = drawn - drawn_ideal
        whole = percentiles(losses / drawn, fewest)
        if divided and whole.low >= LOSS:  # else some draws lose next to nothing, which nothing can be a part of
            shares = [percentiles(one, fewest) for one in (drawn_lost / losses[:, None]).T]
    return Bill(
        layout=point.layout,
        ranks=int(point.ranks),
        ideal=float(ideal[0]),
        measured=float(measured[0]),
        fraction_interval=whole,
        items=tuple(
            Item(
                cause=cause,
                seconds=float(lost[0, number]),
                fraction=float(lost[0, number] / measured[0]),
                fraction_interval=fractions[number] if fractions else None,
                share=float(lost[0, number] / loss) if divided else None,
                share_interval=shares[number] if shares else None,
            )
            for number, cause in enumerate(causes)
        ),
    )


def _lost(
    base: pd.DataFrame,
    group: pd.DataFrame,
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    columns: Sequence[str],
    share: float,
) -> tuple[Array, Array, Array]:
    """Return ideal and measured seconds [draws], and what each column costs beyond its ideal share [draws, columns]."""
    base_seconds, base_parts = median_launches(base, first, columns, "whole")
    seconds, parts = median_launches(group, second, columns, "whole")
    return base_seconds / share, seconds, parts - base_parts / share
