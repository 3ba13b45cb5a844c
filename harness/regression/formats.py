"""A check as JUnit XML, as Markdown and as tables for a terminal."""

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.regression.check_wording import HEADINGS, cells, headline, place
from harness.regression.judging import INCONCLUSIVE, REGRESSION, Row
from harness.regression.verdict import Check


def junit(check: Check, notes: Sequence[str]) -> str:
    """Return one test case for each row that decides: failed is a regression, skipped is inconclusive.

    Rows that only explain, and the notes, are the suite's output.
    """
    verdicts = [row.verdict for row in check.deciding]
    suite = ElementTree.Element(
        "testsuite",
        name=f"harness check against {check.reference.label}",
        tests=str(len(verdicts) + len(check.unmeasured)),
        failures=str(verdicts.count(REGRESSION)),
        errors="0",
        skipped=str(verdicts.count(INCONCLUSIVE) + len(check.unmeasured)),
    )
    for row in check.deciding:
        _case(suite, check, row)
    for layout in check.unmeasured:
        case = ElementTree.SubElement(suite, "testcase", classname=check.current.workload.name, name=str(layout))
        ElementTree.SubElement(case, "skipped", message="not measured now")
    explaining = [_text(row) for row in check.rows if not row.decides]
    output = ElementTree.SubElement(suite, "system-out")
    output.text = "\n".join([headline(check), *explaining, *notes])
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, check: Check, row: Row) -> None:
    name = f"{row.quantity} {place(row)}"
    case = ElementTree.SubElement(suite, "testcase", classname=check.current.workload.name, name=name)
    if row.verdict == REGRESSION:
        ElementTree.SubElement(case, "failure", message=_text(row))
    elif row.verdict == INCONCLUSIVE:
        more = f"{row.more} more launches needed; " if row.more else ""
        ElementTree.SubElement(case, "skipped", message=f"inconclusive: {more}{_text(row)}")
    else:
        ElementTree.SubElement(case, "system-out").text = _text(row)


def _text(row: Row) -> str:
    return ", ".join(f"{heading}: {cell}" for heading, cell in zip(HEADINGS, cells(row), strict=True))


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


_LOG_WIDTH = 140  # where the output is no terminal
_COLOURS = {"regression": "bold red", "improvement": "bold green", "pass": "green", "inconclusive": "yellow"}


def console() -> Console:
    """Return where tables go."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_LOG_WIDTH)


def print_table(to: Console, headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """Print a table; the first `left` columns and the last one are text, the others numbers. Verdicts in colour."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        text = number < left or number == len(headings) - 1
        table.add_column(heading, justify="left" if text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_COLOURS.get(cell.strip("()"), "")) for cell in row))
    to.print(table)


def print_check(check: Check, notes: Sequence[str]) -> None:
    """Print the table, the notes and the verdict."""
    to = console()
    print_table(to, HEADINGS, [cells(row) for row in check.rows])
    for note in notes:
        to.print(note, markup=False)
    to.print(headline(check), markup=False, style="bold")
