"""Which part of the epoch caps a point's speedup, and what removing it would give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.scaling import PointScaling, Scaling

LOSS = 0.01  # a part that takes less of the epoch than this caps nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """What one part of a point's epoch takes beyond its ideal share: seconds, and the speedup without it.

    `part` is a column of `split.split_frame`.
    """

    part: str
    seconds: float
    fraction: float
    speedup_without: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Cap:
    """The losses of one point, greatest first; `cap` is the first, None where nothing is lost."""

    layout: str
    ranks: int
    losses: tuple[Loss, ...]

    @property
    def cap(self) -> Loss | None:
        """The part that costs most beyond its ideal share."""
        return self.losses[0] if self.losses and self.losses[0].fraction >= LOSS else None


def caps(scaling: Scaling, split: Sequence[Mapping[str, Any]], parts: Sequence[str]) -> tuple[Cap, ...]:
    """Return the losses of every point with a speedup, other than the base.

    `split` has a row per layout, `parts` are its columns that add up to the epoch. A part's ideal share is the
    base's seconds of it divided by the ratio of the ranks (strong scaling) or the same seconds (weak scaling).
    """
    rows = {row["layout"]: row for row in split}
    base = rows[scaling.base.layout]
    compared = [point for point in scaling.others if point.speedup is not None and point.layout in rows]
    return tuple(_cap(point, rows[point.layout], base, parts, scaling) for point in compared)


def _cap(
    point: PointScaling, row: Mapping[str, Any], base: Mapping[str, Any], parts: Sequence[str], scaling: Scaling
) -> Cap:
    assert point.speedup is not None
    share = point.ideal if scaling.scaling == "strong" else 1.0
    losses = []
    for part in parts:
        lost = float(row[part] - base[part] / share)
        # A part below its ideal share is a gain, no loss. What is left of the time can never be all of it.
        if 0 < lost < point.seconds:
            without = point.speedup * point.seconds / (point.seconds - lost)
            losses.append(Loss(part=part, seconds=lost, fraction=lost / point.seconds, speedup_without=without))
    ordered = sorted(losses, key=lambda loss: loss.seconds, reverse=True)
    return Cap(layout=point.layout, ranks=point.ranks, losses=tuple(ordered))
