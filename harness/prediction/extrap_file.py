"""The measured points of a sweep as a file that Extra-P reads, for whoever wants its performance models.

The format is Extra-P's text format (``docs/file-formats.md`` of https://github.com/extra-p/extrap): one parameter, one
region for the epoch and one for each of its parts, and for each region a line of data for each point.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.frames import launch_frame
from harness.analysis.read_results import Loaded
from harness.analysis.time_parts import EPOCH_PARTS
from harness.base.errors import UserError

EXTRAP_POINTS = 5  # the fewest that Extra-P fits a model to
_EPOCH = "seconds"
_REGIONS = {_EPOCH: "epoch"} | {part: f"epoch->{part.removesuffix('_seconds')}" for part in EPOCH_PARTS}


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtrapPoint:
    """What the valid launches on `ranks` ranks measured.

    `seconds` has, for the epoch and each of its parts (`time_parts.EPOCH_PARTS`), one value of every launch: the median
    over its epochs.
    """

    ranks: int
    seconds: dict[str, tuple[float, ...]]


def extrap_points(loaded: Loaded) -> tuple[ExtrapPoint, ...]:
    """Return the measured points of the valid launches of `loaded`, fewest ranks first.

    Raises:
        UserError: several layouts have the same ranks, or layouts differ in threads.
    """
    launches = launch_frame(loaded.valid, loaded.epochs)
    if launches.groupby("ranks")["layout"].nunique().max() > 1:
        raise UserError(f"{loaded.folder.name} has several layouts of the same ranks: Extra-P needs one of each count")
    if launches["threads"].nunique() > 1:
        raise UserError(
            f"{loaded.folder.name} has layouts of different threads: Extra-P needs one parameter, the ranks"
        )
    points = []
    for ranks in sorted(set(launches["ranks"])):
        group = launches[launches["ranks"] == ranks]
        seconds = {column: tuple(map(float, group[column])) for column in _REGIONS}
        points.append(ExtrapPoint(ranks=int(ranks), seconds=seconds))
    return tuple(points)


def extrap_text(points: Sequence[ExtrapPoint], sweep: str) -> str:
    """Return `points` of the `sweep` in Extra-P's text format: seconds of an epoch, one value of every launch."""
    lines = [f"# {sweep}: seconds of an epoch and of its parts, one value of every launch", "PARAMETER p"]
    lines.append(f"POINTS {' '.join(f'({point.ranks})' for point in points)}")
    lines.append("METRIC seconds")
    for column, region in _REGIONS.items():
        lines.append(f"REGION {region}")
        for point in points:
            values = " ".join(f"{value:.9f}" for value in point.seconds[column])
            lines.append(f"DATA {values}")
    return "\n".join(lines) + "\n"
