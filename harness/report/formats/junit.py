"""JUnit's test report, which every CI system reads: launches of a sweep, or the verdicts of a check."""

import re
from xml.etree import ElementTree

from harness.report.answer import Answer, plain
from harness.report.exports import CaseOutcome
from harness.report.formats.format import Format

_TAGS = {CaseOutcome.FAILED: "failure", CaseOutcome.ERROR: "error", CaseOutcome.SKIPPED: "skipped"}
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # an output may hold any character


def render(answer: Answer) -> str:
    """Return one test case for each case of `answer`; its sentence, warnings and notes are the suite's output."""
    cases = answer.exports.cases
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=answer.exports.name,
        tests=str(len(cases)),
        failures=_count(answer, CaseOutcome.FAILED),
        errors=_count(answer, CaseOutcome.ERROR),
        skipped=_count(answer, CaseOutcome.SKIPPED),
        time=f"{sum(case.seconds for case in cases):.3f}",
    )
    if answer.when is not None:
        suite.set("timestamp", answer.when.isoformat(timespec="seconds"))
    for case in cases:
        element = ElementTree.SubElement(
            suite, "testcase", classname=_text(case.group), name=_text(case.name), time=f"{case.seconds:.3f}"
        )
        if case.outcome in _TAGS:
            verdict = ElementTree.SubElement(element, _TAGS[case.outcome], message=_text(case.reason))
            verdict.text = _text(case.output) or None
        elif case.output:
            ElementTree.SubElement(element, "system-out").text = _text(case.output)
    lines = [answer.sentence, *(banner.text for banner in answer.banners), *answer.notes]
    ElementTree.SubElement(suite, "system-out").text = _text("\n".join(filter(None, lines)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _count(answer: Answer, outcome: CaseOutcome) -> str:
    return str(sum(case.outcome == outcome for case in answer.exports.cases))


def _text(text: str) -> str:
    """Return `text` with ordinary blanks and without characters that XML cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", plain(text))


FORMAT = Format(name="junit", commands=frozenset({"check", "report", "sweep"}), render=render)
