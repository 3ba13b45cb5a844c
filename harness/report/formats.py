"""Answers for other tools: Markdown for people's pull requests, JUnit's report for CI; and a sweep's launches as tests.

Everything else is in the JSON of ``--json`` and in the CSV files of a page.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from harness.analysis.read_results import Loaded
from harness.base.errors import UserError, unknown
from harness.base.setting_names import setting
from harness.report.answer import Answer, CaseOutcome, CaseResult, CaseSuite, markdown, plain
from harness.schema.point import Point
from harness.schema.record import Failure, RunRecord
from harness.schema.sweep import Study

_TAGS = {CaseOutcome.FAILED: "failure", CaseOutcome.ERROR: "error", CaseOutcome.SKIPPED: "skipped"}
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # an output may hold any character


def junit(answer: Answer) -> str:
    """Return one test case for each case of `answer`; its sentence, warnings and notes are the suite's output."""
    cases = answer.suite.cases
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=answer.suite.name,
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
    lines = [answer.sentence, *answer.details, *(banner.text for banner in answer.banners), *answer.notes]
    ElementTree.SubElement(suite, "system-out").text = _text("\n".join(filter(None, lines)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _count(answer: Answer, outcome: CaseOutcome) -> str:
    return str(sum(case.outcome == outcome for case in answer.suite.cases))


def _text(text: str) -> str:
    """Return `text` with ordinary blanks and without characters that XML cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", plain(text))


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format of other tools. `commands` are those whose answers have what it needs; `render` returns the text."""

    name: str
    commands: frozenset[str]
    render: Callable[[Answer], str]


_JUNIT = Format(name="junit", commands=frozenset({"check", "report", "sweep"}), render=junit)
_MARKDOWN = Format(
    name="markdown",
    commands=frozenset({"bench", "check", "compare", "explain", "history", "report", "sweep"}),
    render=markdown,
)
FORMATS = {"junit": _JUNIT, "markdown": _MARKDOWN}


def format_of(name: str, command: str) -> Format:
    """Return the format called `name` for the answers of `command`.

    Raises:
        UserError: there is none of that name, or it does not fit the command; the message names those that do.
    """
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    if command not in FORMATS[name].commands:
        fitting = ", ".join(sorted(fit.name for fit in FORMATS.values() if command in fit.commands))
        commands = ", ".join(f"`harness {command}`" for command in sorted(FORMATS[name].commands))
        raise UserError(
            f"{setting('format', name)} does not fit `harness {command}`: it has {fitting or 'none'}; {name} is for "
            f"{commands}"
        )
    return FORMATS[name]


def launches_as_tests(loaded: Loaded) -> CaseSuite:
    """Return the launches of a sweep as tests, with those that failed, were skipped or cannot be read."""
    cases = [_case_of_run(run) for run in loaded.runs]
    cases += [_case_of_failure(failure) for failure in loaded.failures]
    cases += _skipped(loaded.study)
    for sentence in loaded.damaged:
        cases.append(CaseResult(group=loaded.folder.name, name=sentence, outcome=CaseOutcome.ERROR, reason=sentence))
    return CaseSuite(name=loaded.folder.resolve().name, cases=cases)


def _case_of_run(run: RunRecord) -> CaseResult:
    return CaseResult(
        group=run.point.workload.name,
        name=_launch_name(run.point),
        outcome=CaseOutcome.SKIPPED if run.invalid else CaseOutcome.PASSED,
        seconds=(run.ended - run.started).total_seconds(),
        reason=f"its times do not count: {'; '.join(run.invalid)}" if run.invalid else "",
        output=run.point.folder,
    )


def _case_of_failure(failure: Failure) -> CaseResult:
    return CaseResult(
        group=failure.point.workload.name,
        name=_launch_name(failure.point),
        outcome=CaseOutcome.FAILED,
        seconds=failure.seconds,
        reason=f"exit code {failure.exit_code}: {failure.reason}",
        output=failure.tail,
    )


def _launch_name(point: Point) -> str:
    return f"{point.layout}, launch {point.repeat + 1}"


def _skipped(study: Study | None) -> Iterator[CaseResult]:
    if study is None:
        return
    for skipped in study.skipped:
        yield CaseResult(
            group=study.sweep.workload.name,
            name=str(skipped.layout),
            outcome=CaseOutcome.SKIPPED,
            reason=skipped.reason,
        )
