"""A check as JUnit XML and as Markdown."""

from collections.abc import Sequence
from xml.etree import ElementTree

from harness.regression.check_wording import HEADINGS, cells, headline, place
from harness.regression.significance import INCONCLUSIVE, REGRESSION, CheckRow
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


def _case(suite: ElementTree.Element, check: Check, row: CheckRow) -> None:
    name = f"{row.quantity} {place(row)}"
    case = ElementTree.SubElement(suite, "testcase", classname=check.current.workload.name, name=name)
    if row.verdict == REGRESSION:
        ElementTree.SubElement(case, "failure", message=_text(row))
    elif row.verdict == INCONCLUSIVE:
        more = f"{row.more} more launches needed; " if row.more else ""
        ElementTree.SubElement(case, "skipped", message=f"inconclusive: {more}{_text(row)}")
    else:
        ElementTree.SubElement(case, "system-out").text = _text(row)


def _text(row: CheckRow) -> str:
    return ", ".join(f"{heading}: {cell}" for heading, cell in zip(HEADINGS, cells(row), strict=True))


_EXPLANATION = (
    "Loss of speed or efficiency; skew, wire and the USL's terms as parts of the reference's epoch. Rows in "
    "brackets say where a loss comes from and decide nothing. All intervals of this table hold together with 95 %."
)


def markdown(check: Check, notes: Sequence[str]) -> str:
    """Return the verdict, the table and the notes."""
    return markdown_table(headline(check), HEADINGS, [cells(row) for row in check.rows], notes, _EXPLANATION)


def markdown_table(
    answer: str, headings: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], explanation: str = ""
) -> str:
    """Return an answer in bold, its table, and what is to be said about it."""
    lines = [f"**{answer}**", "", _line(headings), _line(["---"] * len(headings)), *map(_line, rows)]
    lines += ["", explanation] if explanation else []
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]).rstrip("\n") + "\n"


def _line(values: Sequence[str]) -> str:
    escaped = [value.replace("|", "\\|") for value in values]
    return f"| {' | '.join(escaped)} |"
