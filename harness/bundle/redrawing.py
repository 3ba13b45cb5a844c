"""Draw the pages of a bundle from its records, and compare them with those in it byte for byte."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd

from harness.base.errors import UserError
from harness.base.files import folder_atomic, resource
from harness.bundle.archive import files_in, sha256, unpacked
from harness.bundle.manifest import RECORDS, REPORTS, open_bundle
from harness.claims.claim_evidence import gather
from harness.claims.judgement import judge_claim
from harness.report.claims_answer import FOLDER as CLAIMS_FOLDER
from harness.report.claims_answer import claims_answer
from harness.report.experiment_results import find_studies, read_experiments
from harness.report.html_pages import PAGE, PAPER, write_page
from harness.report.sweep_answer import report_sweep
from harness.schema.claim import CLAIMS_FILE, read_published

MARK = ".bundle"  # in a folder that a bundle was drawn into


def draw_pages(root: Path, sweeps: Sequence[str], moment: datetime) -> dict[str, float]:
    """Draw the report of each sweep in ``ROOT/results`` and the page of claims into ``ROOT/reports``.

    Return the seconds that each sweep's report took. Nothing on the pages depends on this
    machine (as a prediction by its newest probe does). The index dates all of them `moment` or before.
    """
    drawing_s = {}
    for name in sweeps:
        began = time.monotonic()
        report_sweep(root / RECORDS / name, root / REPORTS, style=PAPER)
        drawing_s[name] = time.monotonic() - began
    published = read_published(resource(CLAIMS_FILE))
    evidence = gather(root / RECORDS / name for name in sweeps)
    judgements = tuple(judge_claim(claim, evidence, pd.DataFrame()) for claim in published.claims)
    reports = root / REPORTS
    experiments = read_experiments(find_studies(root / RECORDS), published, reports / CLAIMS_FOLDER)
    answer = claims_answer(judgements, evidence, experiments, published, reports, moment=moment)
    write_page(answer, reports)
    return drawing_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Redrawn:
    """The files of a bundle whose pages were drawn again, and those of them that are not the same bytes."""

    files: tuple[str, ...]
    different: tuple[str, ...]
    pages: tuple[Path, ...]
    drawn_with: str


def redraw_bundle(archive: Path, target: Path) -> Redrawn:
    """Draw all pages of the bundle `archive` from its records into ``TARGET/reports``, the records beside them.

    Raises:
        UserError: it is not a bundle, its checksums are wrong, or `target` holds something else.
    """
    with unpacked(archive) as folder:
        manifest = open_bundle(folder)
        if target.exists() and not (target / MARK).exists():
            raise UserError(f"'{target}' exists and was not drawn from a bundle: choose another folder with --reports")
        with folder_atomic(target) as staging:
            shutil.copytree(folder / RECORDS, staging / RECORDS)
            draw_pages(staging, manifest.sweeps, manifest.moment)
            files = tuple(name for name in files_in(folder) if name.startswith(f"{REPORTS}/"))
            different = tuple(name for name in files if not _same_bytes(folder / name, staging / name))
            (staging / MARK).write_text(manifest.name + "\n", encoding="utf-8")
    pages = tuple(target / REPORTS / name / PAGE for name in (*manifest.sweeps, CLAIMS_FOLDER))
    return Redrawn(files=files, different=different, pages=pages, drawn_with=manifest.drawn_with)


def _same_bytes(file: Path, drawn: Path) -> bool:
    return drawn.is_file() and sha256(file) == sha256(drawn)
