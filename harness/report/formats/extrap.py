"""The measured points of a sweep in Extra-P's text format, for whoever wants its performance models.

The format (``docs/file-formats.md`` of https://github.com/extra-p/extrap): one parameter, one region for the epoch and
one for each of its parts, and for each region a line of data for each point, one value of every launch.
"""

from harness.base.errors import UserError
from harness.report.answer import Answer
from harness.report.formats.format import Format

EXTRAP_POINTS = 5  # the fewest that Extra-P fits a model to


def render(answer: Answer) -> str:
    """Return the points of `answer`: seconds of an epoch and of its parts.

    Raises:
        UserError: there is no point, several layouts have the same ranks, or layouts differ in threads.
    """
    points = answer.exports.points
    name = answer.exports.name
    if not points:
        raise UserError(f"{name} has no valid launch to write for Extra-P: run `harness sweep` first")
    if len({point.ranks for point in points}) < len(points):
        raise UserError(f"{name} has several layouts of the same ranks: Extra-P needs one of each count")
    if len({point.threads for point in points}) > 1:
        raise UserError(f"{name} has layouts of different threads: Extra-P needs one parameter, the ranks")
    lines = [f"# {name}: seconds of an epoch and of its parts, one value of every launch"]
    if len(points) < EXTRAP_POINTS:
        lines.append(f"# Extra-P asks for at least {EXTRAP_POINTS} rank counts, here are {len(points)}")
    lines.append("PARAMETER p")
    lines.append(f"POINTS {' '.join(f'({point.ranks})' for point in points)}")
    lines.append("METRIC seconds")
    for region in points[0].seconds:
        lines.append(f"REGION {region}")
        for point in points:
            values = " ".join(f"{value:.9f}" for value in point.seconds[region])
            lines.append(f"DATA {values}")
    return "\n".join(lines) + "\n"


FORMAT = Format(name="extrap", commands=frozenset({"report", "sweep"}), render=render)
