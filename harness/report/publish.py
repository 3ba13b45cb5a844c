"""Where pages are written: each whole or not at all, with a summary, and the index and the glossary made anew."""

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import folder_atomic, write_atomic
from harness.report import render
from harness.report.answer import Answer
from harness.report.figure_origin import Origin
from harness.report.render import PAGE, SCREEN, check_replaceable, relative_link, write_figures
from harness.schema.presets import study_name
from harness.schema.record import decode, encode
from harness.schema.sweep import STUDY_FILE, Study, sweep_folders

SUMMARY = "summary.json"  # reports/<page>/summary.json
GLOSSARY_PAGE = "glossary.html"
_MADE_HERE = '<meta name="generator" content="mpi-tf-harness">'
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSummary:
    """A page in the index. `name` is what commands call the sweep that it is of, `sides` the two that it compares.

    `when` is of the last launch that it shows.
    """

    kind: str
    title: str
    answer: str
    when: datetime
    name: str = ""
    machine: str = ""
    data: str = ""
    sides: tuple[str, ...] = ()


def write_page(answer: Answer, reports: Path, results: Path | None = None, *, style: str = SCREEN) -> Answer:
    """Write ``REPORTS/<place>/index.html`` with its files, whole or not at all; return the answer with its `page`.

    The index then lists it beside all other pages, and the sweeps in `results` that have none.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    target = reports / answer.place
    check_replaceable(target)
    content = render.page("page.html.j2", answer=answer, root="/".join([".."] * len(Path(answer.place).parts)))
    summary = PageSummary(
        kind=answer.kind, title=answer.title, answer=answer.sentence, when=answer.when or datetime.now(UTC),
        name=answer.name, machine=answer.machine, data=answer.trained_on, sides=answer.sides,
    )  # fmt: skip
    with folder_atomic(target) as staging:
        for name, text in answer.files.items():
            (staging / name).write_text(text, encoding="utf-8")
        write_figures(staging, answer.figures, answer.origin or Origin(command=answer.command), style)
        (staging / SUMMARY).write_bytes(encode(summary))
        (staging / PAGE).write_text(content, encoding="utf-8")
    write_index(reports, results)
    return replace(answer, page=target / PAGE)


def write_index(reports: Path, results: Path | None = None) -> Path:
    """Write ``REPORTS/index.html``, every page and the sweeps in `results` that have none, and the glossary.

    A file of another origin is left as it is, and that is logged.

    Raises:
        UserError: the folder cannot be written to.
    """
    entries = sorted(
        (*_drawn(reports), *_undrawn(reports, results)), key=lambda entry: entry.summary.when, reverse=True
    )
    _write(reports / PAGE, render.page("index.html.j2", entries=entries, root="."))
    _write(reports / GLOSSARY_PAGE, render.page("glossary.html.j2", root="."))
    return reports / PAGE


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexEntry:
    """A line of the index. `link` is empty for a sweep that has no page."""

    summary: PageSummary
    link: str


def _drawn(reports: Path) -> list[IndexEntry]:
    found = []
    for page in (*reports.glob(f"*/{PAGE}"), *reports.glob(f"*/*/{PAGE}")):
        folder = page.parent
        changed = datetime.fromtimestamp(page.stat().st_mtime, UTC)
        summary = PageSummary(kind="page", title=folder.name, answer="", when=changed)
        if (folder / SUMMARY).exists():
            try:
                summary = decode((folder / SUMMARY).read_bytes(), PageSummary, folder / SUMMARY)
            except UserError as error:
                _LOG.warning("%s", error)
        found.append(IndexEntry(summary=summary, link=relative_link(page, reports)))
    return found


def _undrawn(reports: Path, results: Path | None) -> list[IndexEntry]:
    """Return the sweeps in `results` that have no page."""
    found = []
    for folder in sweep_folders(results) if results else ():
        if not (reports / folder.name / PAGE).exists():
            file = folder / STUDY_FILE
            try:
                title = study_name(decode(file.read_bytes(), Study, file).sweep)
            except (UserError, OSError) as error:
                _LOG.warning("%s", error)
                continue
            when = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
            answer = "No page yet."
            summary = PageSummary(kind="sweep", title=title, answer=answer, when=when, name=folder.name)
            found.append(IndexEntry(summary=summary, link=""))
    return found


def _write(path: Path, content: str) -> None:
    ours = path.is_file() and _MADE_HERE in path.read_text(encoding="utf-8", errors="replace")
    if path.exists() and not ours:
        _LOG.warning("'%s' is there and not of the harness: it is left as it is", path)
        return
    write_atomic(path, content)
