"""Markdown for a pull request or a job's summary: sentence, warnings, table, notes and command."""

from harness.report.answer import markdown
from harness.report.formats.format import Format

FORMAT = Format(
    name="markdown",
    commands=frozenset({"bench", "check", "compare", "explain", "history", "predict", "report", "sweep"}),
    render=markdown,
)
