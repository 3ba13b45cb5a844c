"""Pages from templates, written whole or not at all with their figures and a summary; the index and the glossary.

Every name in a template must be known, and every text is escaped. The file of a figure names the command that it comes
from, among its metadata as ``Keywords``.
"""

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from harness.analysis import units
from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import folder_atomic, resource, write_atomic
from harness.base.parallel_work import done_to_each
from harness.base.record_words import below, printable
from harness.base.removal import check_folder, make_place
from harness.report.answer import Answer, PageFigure
from harness.report.svg import COLUMNS, TONES, printed
from harness.schema.record import decode_file, encode
from harness.schema.sweep_folder import MADE_HERE, holds_reports

if TYPE_CHECKING:
    import pandas as pd

# Tables as CSV that a spreadsheet shows and does not compute.

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_COMPUTED = ("=", "+", "-", "@", "\t", "\r")


def csv_cell(value: object) -> object:
    """Return a cell as it is written: a text that a spreadsheet would compute begins with an apostrophe."""
    if not isinstance(value, str):
        return value
    is_computed = value.startswith(_COMPUTED) and not _NUMBER.fullmatch(value)
    return f"'{printable(value)}" if is_computed else printable(value)


def csv_text(frame: "pd.DataFrame") -> str:
    """Return `frame` as CSV, its headings first."""
    cells = frame.rename(columns=csv_cell)
    for place, kind in enumerate(cells.dtypes):
        if getattr(kind, "kind", "O") not in "biufcmM":
            cells.isetitem(place, cells.iloc[:, place].map(csv_cell).to_numpy())
    text: str = cells.to_csv(index=False, lineterminator="\n")
    return text


PAGE = "index.html"
SUMMARY = "summary.json"  # reports/<page>/summary.json
SCREEN, PAPER = "screen", "paper"
"""For whom figures are written: for a paper also as PDF files that fit one column and two."""
_LOG = logging.getLogger(__name__)


def render_page(template: str, **values: Any) -> str:
    """Return the page that `template` (a file of reports/templates) makes of `values`.

    `svg` marks trusted drawings and `prose` sentences; everything else is escaped. An unknown name in the template is
    an error. ``root`` is the way from the page to the folder of reports, by default its parent.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource("reports/templates")),
        autoescape=lambda name: name is None or not name.endswith(".bib.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"n": units, "tones": TONES, "glossary": glossary(), "anchor": anchor}
    environment.filters |= {"svg": Markup, "prose": _prose}
    return printable(environment.get_template(template).render(**{"root": ".."} | values))


def _prose(text: str) -> Markup:
    """Return a sentence as HTML: what stands in backticks as code, a number and its percent sign on one line."""
    escaped = str(escape(text))
    with_code = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return Markup(re.sub(r"(?<=\d) %", "\u00a0%", with_code))


def glossary() -> dict[str, str]:
    """Return every term with its definition."""
    text = resource("docs/glossary.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\*\*(.+?)\*\*: (.+)$", text, flags=re.MULTILINE))


def anchor(term: str) -> str:
    """Return the place of `term` in the page of the glossary."""
    return re.sub(r"\W+", "-", term.lower())


def relative_link(target: Path, page: Path) -> str:
    """Return the address of `target` as a link in a page that will lie in folder `page`."""
    return quote(Path(os.path.relpath(target.resolve(), page.resolve())).as_posix())


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSummary:
    """A page in the index. `name` is what commands call the sweep that it is of, `sides` the two that it compares.

    `when` is of the last launch that it shows, `warnings` stand before its answer.
    """

    kind: str
    title: str
    answer: str
    when: datetime
    name: str = ""
    machine: str = ""
    data: str = ""
    sides: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def write_page(answer: Answer, reports: Path, *, style: str = SCREEN, shared: bool = False) -> Answer:
    """Write ``REPORTS/<place>/index.html`` with its files, whole or not at all; return the answer with its `page`.

    The index then lists it beside all other pages. `shared`: other processes draw the files of figures meanwhile.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    target = below(reports, answer.place)
    make_place(reports, "REPORTS", is_ours=holds_reports(reports))
    check_folder(target, "report")
    summary = PageSummary(
        kind=answer.kind,
        title=answer.title,
        answer=answer.sentence,
        when=answer.when or datetime.now(UTC),
        name=answer.name,
        machine=answer.machine,
        data=answer.trained_on,
        sides=answer.sides,
        warnings=tuple(banner.text for banner in answer.banners),
    )
    root = "/".join([".."] * len(Path(answer.place).parts))
    with folder_atomic(target) as staging:
        draw = partial(_draw, staging, keywords=_keywords(answer.command), style=style)
        figures = answer.figures
        with done_to_each(draw, figures, shared=shared, doing="drawing figures") as drawings:
            for name, text in answer.files.items():
                (staging / name).write_text(text, encoding="utf-8")
            _write_tables(staging, figures)
            (staging / SUMMARY).write_bytes(encode(summary))
            inline = {figure.name: drawing for figure, drawing in zip(figures, drawings, strict=True)}
        page = render_page("page.html.j2", answer=answer, drawings=inline, root=root)
        (staging / PAGE).write_text(page, encoding="utf-8")
    _write_index(reports)
    return replace(answer, page=target / PAGE)


def _draw(folder: Path, figure: PageFigure, *, keywords: str, style: str) -> str:
    """Write the PDF, SVG and PNG of `figure` into `folder`, in the style ``paper`` PDFs of COLUMNS too.

    Return the drawing for the inside of a page.
    """
    drawing = figure.picture.draw()
    for kind in ("pdf", "svg", "png"):
        (folder / f"{figure.name}.{kind}").write_bytes(drawing.file(kind, keywords))
    for name, width in COLUMNS.items() if style == PAPER else ():
        (folder / f"{figure.name}-{name}.pdf").write_bytes(printed(figure.picture, width, keywords))
    return drawing.inline()


def _write_tables(folder: Path, figures: Sequence[PageFigure]) -> None:
    """Write the CSV of each of `figures` into `folder`."""
    texts: dict[int, str] = {}  # several figures may be of one table, which can be long
    for figure in figures:
        if id(figure.table) not in texts:
            texts[id(figure.table)] = csv_text(figure.table)
        (folder / f"{figure.name}.csv").write_text(texts[id(figure.table)])


def _keywords(command: str) -> str:
    """Return `command` as one line of ASCII without brackets or angles: it means the same in SVG, PDF and PNG."""
    text = f"mpi-tf-harness {__version__}: {command}"
    return re.sub(r"[()<>&\\]|[^ -~]", lambda sign: f"%{ord(sign[0]):02x}", text)


def _write_index(reports: Path) -> None:
    """Write ``REPORTS/index.html``, every page, the newest first, and the glossary.

    A file of another origin is left as it is, and that is logged.
    """
    entries = sorted(_pages(reports), key=lambda entry: entry[0].when, reverse=True)
    for name, content in (
        (PAGE, render_page("index.html.j2", entries=entries, root=".")),
        ("glossary.html", render_page("glossary.html.j2", root=".")),
    ):
        path = reports / name
        if path.exists() and not (path.is_file() and MADE_HERE in path.read_text("utf-8", errors="replace")):
            _LOG.warning("'%s' is there and not of the harness: it is left as it is", path)
            continue
        try:
            write_atomic(path, content)
        except UserError as error:  # a link, or another user's: the page itself is written
            _LOG.warning("%s", error)


def _pages(reports: Path) -> list[tuple[PageSummary, str]]:
    """Return every page with its address in the index."""
    entries = []
    for page in (*reports.glob(f"*/{PAGE}"), *reports.glob(f"*/*/{PAGE}")):
        folder = page.parent
        changed = datetime.fromtimestamp(page.stat().st_mtime, UTC)
        summary = None
        try:
            summary = decode_file(folder / SUMMARY, PageSummary)
        except UserError as error:
            _LOG.warning("%s", error)
        summary = summary or PageSummary(kind="page", title=folder.name, answer="", when=changed)
        entries.append((summary, relative_link(page, reports)))
    return entries
