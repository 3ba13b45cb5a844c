"""A check as Markdown, for a pull request."""

from collections.abc import Sequence

from harness.analysis.regression import Check
from harness.guard.words import HEADINGS, cells, headline

_EXPLANATION = (
    "Loss of speed or efficiency; skew, wire and the USL's terms as parts of the reference's epoch. Rows in "
    "brackets say where a loss comes from and decide nothing. All intervals of this table hold together with 95 %."
)


def markdown(check: Check, notes: Sequence[str]) -> str:
    """Return the verdict, the table and the notes."""
    lines = [f"**{headline(check)}**", "", _line(HEADINGS), _line(["---"] * len(HEADINGS))]
    lines += [_line(cells(row)) for row in check.rows]
    lines += ["", _EXPLANATION, "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def _line(values: Sequence[str]) -> str:
    escaped = [value.replace("|", "\\|") for value in values]
    return f"| {' | '.join(escaped)} |"
