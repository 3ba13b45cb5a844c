"""The pages of a bundle, drawn from its records alone: the same bytes wherever they are drawn."""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd

from harness.base.errors import UserError
from harness.base.files import folder_atomic, resource
from harness.bundle.archive import files_in, unpacked
from harness.bundle.manifest import RECORDS, REPORTS, open_bundle
from harness.claims.evidence import gather
from harness.claims.verdict import Judgement, judge_all
from harness.report.claims_page import FOLDER as CLAIMS_FOLDER
from harness.report.claims_page import write_claims
from harness.report.publish import write_index
from harness.report.render import PAGE, PAPER
from harness.report.sweep_page import write_report
from harness.schema.claim import CLAIMS_FILE, read_published

MARK = ".bundle"  # in a folder that a bundle was drawn into


def draw_pages(root: Path, sweeps: Sequence[str], moment: datetime) -> tuple[dict[str, float], tuple[Judgement, ...]]:
    """Draw the report of each sweep in ``ROOT/results`` and the page of claims into ``ROOT/reports``.

    Return the seconds that each sweep's report took, and the claims' judgements. What depends on this machine (a
    prediction by its newest probe) is on none of the pages. The index calls all of them made at `moment` or before.
    """
    taken = {}
    for name in sweeps:
        began = time.monotonic()
        write_report(root / RECORDS / name, root / REPORTS, style=PAPER)
        taken[name] = time.monotonic() - began
    published = read_published(resource(CLAIMS_FILE))
    evidence = gather(root / RECORDS / name for name in sweeps)
    judgements = judge_all(published.claims, evidence, pd.DataFrame())
    page = write_claims(judgements, evidence, published, root / REPORTS)
    os.utime(page, (moment.timestamp(), moment.timestamp()))
    write_index(root / REPORTS, root / RECORDS)
    return taken, judgements


@dataclass(frozen=True, kw_only=True, slots=True)
class Redrawn:
    """What came of drawing a bundle's pages again: its files, and those that are not the same bytes or not there."""

    files: tuple[str, ...]
    different: tuple[str, ...]
    pages: tuple[Path, ...]
    drawn_with: str


def redraw(archive: Path, target: Path) -> Redrawn:
    """Draw all pages of the bundle `archive` from its records into ``TARGET/reports``, the records beside them.

    Raises:
        UserError: it is no bundle, its checksums are wrong, or `target` holds something else.
    """
    with unpacked(archive) as folder:
        manifest = open_bundle(folder)
        check_own(target)
        with folder_atomic(target) as made:
            shutil.copytree(folder / RECORDS, made / RECORDS)
            draw_pages(made, manifest.sweeps, manifest.moment)
            files = tuple(name for name in files_in(folder) if name.startswith(f"{REPORTS}/"))
            different = tuple(name for name in files if not _same(folder / name, made / name))
            (made / MARK).write_text(manifest.name + "\n", encoding="utf-8")
    pages = tuple(target / REPORTS / name / PAGE for name in (*manifest.sweeps, CLAIMS_FOLDER))
    return Redrawn(files=files, different=different, pages=pages, drawn_with=manifest.drawn_with)


def check_own(target: Path) -> None:
    """Refuse to replace a folder that no bundle was drawn into.

    Raises:
        UserError: it holds something else.
    """
    if target.exists() and not (target / MARK).exists():
        raise UserError(f"'{target}' is there and was not drawn from a bundle: choose another folder with --reports")


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()
