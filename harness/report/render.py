"""Pages from templates: figures, tables, banners; every name must be known, every text is escaped."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from harness.analysis import numbers
from harness.base.errors import UserError
from harness.base.files import resource
from harness.report.answer import FigureBlock
from harness.report.figure_origin import Origin, describe_tables, origin_text
from harness.report.svg import COLUMNS, TONES, printed

TEMPLATES = "reports/templates"


def page(template: str, **values: Any) -> str:
    """Return the page that `template` (a file of reports/templates) makes of `values`.

    `svg` marks trusted drawings; everything else is escaped. An unknown name in the template is an error. ``root`` is
    the way from the page to the folder of reports, by default its parent.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource(TEMPLATES)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"n": numbers, "tones": TONES, "glossary": glossary(), "anchor": anchor}
    environment.filters["svg"] = Markup
    return environment.get_template(template).render(**{"root": ".."} | values)


PAGE = "index.html"


SCREEN, PAPER = "screen", "paper"
"""For whom figures are written: for a paper also as PDF files that fit one column and two."""


def write_figures(folder: Path, blocks: Sequence[FigureBlock], origin: Origin, style: str = SCREEN) -> None:
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
    describe_tables(folder, origin)


def check_replaceable(target: Path) -> None:
    """Refuse to replace a folder that holds something else than a report.

    Raises:
        UserError: the folder holds something else.
    """
    known = any((target / name).exists() for name in (PAGE, "index.md"))
    if target.is_dir() and any(target.iterdir()) and not known:
        raise UserError(f"'{target}' is there and is no report: choose another folder for reports")


def relative_link(target: Path, page: Path) -> str:
    """Return the address of `target` as a link in a page that will lie in folder `page`."""
    return quote(Path(os.path.relpath(target.resolve(), page.resolve())).as_posix())


def distinct(values: Iterable[object], joint: str = ", ") -> str:
    """Return the different `values` as one text, in order of first appearance."""
    return joint.join(dict.fromkeys(str(value) for value in values))


SOURCE = "docs/glossary.md"


def glossary() -> dict[str, str]:
    """Return every term with its definition."""
    text = resource(SOURCE).read_text(encoding="utf-8")
    return dict(re.findall(r"^\*\*(.+?)\*\*: (.+)$", text, flags=re.MULTILINE))


def anchor(term: str) -> str:
    """Return the place of `term` in the page of the glossary."""
    return re.sub(r"\W+", "-", term.lower())
