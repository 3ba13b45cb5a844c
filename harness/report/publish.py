"""Pages from templates, written whole or not at all with their figures and a summary; the index and the glossary.

Every name in a template must be known, and every text is escaped. A figure's file tells what it was made of: SVG, PDF
and PNG have it among their metadata as ``Keywords``. A CSV file has no place for it that every reader passes over, so
the folder's ``csv-metadata.json`` has it, where "CSV on the Web" (W3C, 2015, section 5) looks.
"""

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import msgspec
from markupsafe import Markup

from harness.analysis import numbers
from harness.analysis.read_results import Loaded
from harness.base.errors import UserError
from harness.base.files import folder_atomic, read_bytes, resource, write_atomic
from harness.regression.baselines import Measurement
from harness.report.answer import Answer, FigureBlock, FigureSource, Origin
from harness.report.svg import COLUMNS, TONES, printed
from harness.schema.presets import sweep_command
from harness.schema.record import RUN_FILE, RunRecord, decode_file, encode

PAGE = "index.html"
SUMMARY = "summary.json"  # reports/<page>/summary.json
SCREEN, PAPER = "screen", "paper"
"""For whom figures are written: for a paper also as PDF files that fit one column and two."""
_MADE_HERE = '<meta name="generator" content="mpi-tf-harness">'
_LOG = logging.getLogger(__name__)
TABLES = "csv-metadata.json"
_FIELD = "dc:provenance"
_MARK = re.compile(rb'\{"harness":.*?"end":1\}', re.DOTALL)


def render(template: str, **values: Any) -> str:
    """Return the page that `template` (a file of reports/templates) makes of `values`.

    `svg` marks trusted drawings; everything else is escaped. An unknown name in the template is an error. ``root`` is
    the way from the page to the folder of reports, by default its parent.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource("reports/templates")),
        autoescape=lambda name: name is None or not name.endswith(".bib.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"n": numbers, "tones": TONES, "glossary": glossary(), "anchor": anchor}
    environment.filters["svg"] = Markup
    return environment.get_template(template).render(**{"root": ".."} | values)


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


def check_replaceable(target: Path) -> None:
    """Refuse with a UserError to replace a folder that holds something else than a report."""
    known = any((target / name).exists() for name in (PAGE, "index.md"))
    if target.is_dir() and any(target.iterdir()) and not known:
        raise UserError(f"'{target}' exists and is not a report: choose another folder for reports")


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


def write_page(answer: Answer, reports: Path, *, style: str = SCREEN) -> Answer:
    """Write ``REPORTS/<place>/index.html`` with its files, whole or not at all; return the answer with its `page`.

    The index then lists it beside all other pages.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    target = reports / answer.place
    check_replaceable(target)
    content = render("page.html.j2", answer=answer, root="/".join([".."] * len(Path(answer.place).parts)))
    summary = PageSummary(
        kind=answer.kind, title=answer.title, answer=answer.sentence, when=answer.when or datetime.now(UTC),
        name=answer.name, machine=answer.machine, data=answer.trained_on, sides=answer.sides,
        warnings=tuple(banner.text for banner in answer.banners),
    )  # fmt: skip
    with folder_atomic(target) as staging:
        for name, text in answer.files.items():
            (staging / name).write_text(text, encoding="utf-8")
        _write_figures(staging, answer.figures, answer.origin or Origin(command=answer.command), style)
        (staging / SUMMARY).write_bytes(encode(summary))
        (staging / PAGE).write_text(content, encoding="utf-8")
    _write_index(reports)
    return replace(answer, page=target / PAGE)


def _write_figures(folder: Path, blocks: Sequence[FigureBlock], origin: Origin, style: str = SCREEN) -> None:
    """Write each figure's PDF, SVG, PNG and CSV into `folder`; in the style ``paper`` PDFs of COLUMNS too.

    All of them, and the tables that lie there already, tell their `origin`.
    """
    texts: dict[int, str] = {}  # several figures may be of one table, which can be long
    told = origin_text(origin)
    for block in blocks:
        for kind in ("pdf", "svg", "png"):
            (folder / f"{block.name}.{kind}").write_bytes(block.picture.file(kind, told))
        for name, width in COLUMNS.items() if style == PAPER else ():
            (folder / f"{block.name}-{name}.pdf").write_bytes(printed(block.picture, width, told))
        if id(block.table) not in texts:
            texts[id(block.table)] = block.table.to_csv(index=False, lineterminator="\n")
        (folder / f"{block.name}.csv").write_text(texts[id(block.table)])
    tables = [{"url": path.name} for path in sorted(folder.glob("*.csv"))]
    if tables:
        described = {"@context": "http://www.w3.org/ns/csvw", "tables": tables, _FIELD: told}
        write_atomic(folder / TABLES, json.dumps(described, indent=1) + "\n")


def _write_index(reports: Path) -> None:
    """Write ``REPORTS/index.html``, every page, the newest first, and the glossary.

    A file of another origin is left as it is, and that is logged.
    """
    entries = sorted(_drawn(reports), key=lambda one: one[0].when, reverse=True)
    for name, content in (
        (PAGE, render("index.html.j2", entries=entries, root=".")),
        ("glossary.html", render("glossary.html.j2", root=".")),
    ):
        path = reports / name
        if path.exists() and not (path.is_file() and _MADE_HERE in path.read_text("utf-8", errors="replace")):
            _LOG.warning("'%s' is there and not of the harness: it is left as it is", path)
        else:
            write_atomic(path, content)


def _drawn(reports: Path) -> list[tuple[PageSummary, str]]:
    """Return every page with its address in the index."""
    found = []
    for page in (*reports.glob(f"*/{PAGE}"), *reports.glob(f"*/*/{PAGE}")):
        folder = page.parent
        changed = datetime.fromtimestamp(page.stat().st_mtime, UTC)
        summary = None
        try:
            summary = decode_file(folder / SUMMARY, PageSummary)
        except UserError as error:
            _LOG.warning("%s", error)
        summary = summary or PageSummary(kind="page", title=folder.name, answer="", when=changed)
        found.append((summary, relative_link(page, reports)))
    return found


def launch_mark(name: str, started: datetime) -> str:
    """Return what tells a launch from every other, and from one that replaced it: its hash or layout, and its start."""
    return f"{name}@{started.isoformat()}"


def run_mark(run: RunRecord) -> str:
    """Return the `launch_mark` of a record: twelve digits of its point, and its start."""
    return launch_mark(run.point.key, run.started)


def sweeps_origin(command: str, sweeps: Iterable[Loaded]) -> Origin:
    """Return the origin of a figure that `command` draws of all launches in `sweeps`."""
    return Origin(
        command=command,
        sources=tuple(
            FigureSource(
                sweep=one.folder.resolve().name,
                command=sweep_command(one.study.sweep) if one.study else "",
                launches=tuple(map(run_mark, one.runs)),
            )
            for one in sweeps
        ),
    )


def measured_origin(command: str, measurements: Iterable[Measurement]) -> Origin:
    """Return the origin of a figure that `command` draws of `measurements`, whose launches are called by layout."""
    return Origin(
        command=command,
        sources=tuple(
            FigureSource(
                sweep=one.label,
                command="",
                launches=tuple(launch_mark(f"{it.layout}-r{it.repeat}", it.started) for it in one.launches),
            )
            for one in measurements
        ),
    )


def origin_text(origin: Origin) -> str:
    """Return `origin` as one line of ASCII without brackets or angles: it means the same in SVG, PDF and PNG."""
    told = {"harness": origin.harness, "command": origin.command, "sources": origin.sources, "end": 1}
    text = json.dumps(msgspec.to_builtins(told), separators=(",", ":"))
    return re.sub(r"[()<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def read_origin(path: Path) -> Origin | None:
    """Return what the figure or table `path` was made of, None where it does not tell.

    Raises:
        UserError: the file cannot be read.
    """
    content = read_bytes(path)
    if path.suffix == ".csv":
        content = _of_table(path)
    if content.startswith(b"%PDF"):
        content = content.replace(rb"\\", b"\\")  # PDF writes a backslash twice
    found = _MARK.search(content)
    try:
        return msgspec.json.decode(found[0], type=Origin) if found else None
    except msgspec.DecodeError:
        return None


def _of_table(path: Path) -> bytes:
    beside = path.parent / TABLES
    try:
        described = json.loads(beside.read_bytes()) if beside.exists() else {}
        listed = any(table["url"] == path.name for table in described.get("tables", ()))
        return str(described[_FIELD]).encode() if listed else b""
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"'{beside}' is cut or damaged: draw the report again") from error


def find_origin(file: Path, reports: Path) -> Origin | None:
    """Return the `read_origin` of `file`; of a table that was moved, that of its equal in `reports`."""
    found = read_origin(file)
    if found is None and file.suffix == ".csv":
        content = file.read_bytes()
        others = (path for path in sorted(reports.rglob("*.csv")) if path.stat().st_size == len(content))
        found = next(
            (origin for path in others if path.read_bytes() == content and (origin := read_origin(path))), None
        )
    return found


def launches_of(origin: Origin) -> list[tuple[FigureSource, str, str]]:
    """Return every launch that a figure shows: its source, its name, and when it started in ISO 8601."""
    parts = [(source, mark.rpartition("@")) for source in origin.sources for mark in source.launches]
    return [(source, name, started) for source, (name, _, started) in parts]


def launches_in(results: Path) -> dict[str, str]:
    """Return the folders of all records under `results`, those of replaced launches too, by when they started."""
    found = {}
    for path in sorted(results.rglob(RUN_FILE)):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            started = msgspec.json.decode(path.read_bytes(), type=_Started).started
            found[started.isoformat()] = path.parent.relative_to(results).as_posix()
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Started:
    """What of a record tells when its launch began."""

    started: datetime
