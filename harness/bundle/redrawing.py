"""Draw the pages of a bundle from its records, and compare the numbers of their tables and summaries."""

import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd

from harness.base.files import folder_atomic, resource
from harness.bundle.archive import files_in, unpacked
from harness.bundle.manifest import RECORDS, REPORTS, open_bundle
from harness.claims.claim_evidence import gather
from harness.claims.judgement import judge_claim
from harness.report.claims_answer import FOLDER as CLAIMS_FOLDER
from harness.report.claims_answer import claims_answer
from harness.report.experiment_results import find_studies, read_experiments
from harness.report.html_pages import PAGE, PAPER, write_page
from harness.report.sweep_answer import report_sweep
from harness.schema.claim import CLAIMS_FILE, read_published

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def draw_pages(root: Path, sweeps: Sequence[str], moment: datetime) -> None:
    """Draw the report of each sweep in ``ROOT/results`` and the page of claims into ``ROOT/reports``.

    Nothing on the pages depends on this machine (as a prediction by its newest probe does). The index dates all of
    them `moment` or before.
    """
    for name in sweeps:
        report_sweep(root / RECORDS / name, root / REPORTS, style=PAPER)
    published = read_published(resource(CLAIMS_FILE))
    evidence = gather(root / RECORDS / name for name in sweeps)
    judgements = tuple(judge_claim(claim, evidence, pd.DataFrame()) for claim in published.claims)
    reports = root / REPORTS
    experiments = read_experiments(find_studies(root / RECORDS), published, reports / CLAIMS_FOLDER)
    answer = claims_answer(judgements, evidence, experiments, published, reports, moment=moment)
    write_page(answer, reports)


@dataclass(frozen=True, kw_only=True, slots=True)
class Redrawn:
    """The tables and summaries of a bundle whose pages were drawn again, and those whose numbers are `different`."""

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
        with folder_atomic(target, "--reports") as staging:
            shutil.copytree(folder / RECORDS, staging / RECORDS)
            draw_pages(staging, manifest.sweeps, manifest.moment)
            files = tuple(name for name in files_in(folder) if _has_numbers(name))
            different = tuple(name for name in files if not _is_same(folder / name, staging / name))
    pages = tuple(target / REPORTS / name / PAGE for name in (*manifest.sweeps, CLAIMS_FOLDER))
    return Redrawn(files=files, different=different, pages=pages, drawn_with=manifest.drawn_with)


def _has_numbers(name: str) -> bool:
    return name.startswith(f"{REPORTS}/") and name.endswith((".csv", ".json"))


def _is_same(file: Path, drawn: Path) -> bool:
    return drawn.is_file() and same_numbers(file.read_text(encoding="utf-8"), drawn.read_text(encoding="utf-8"))


def same_numbers(text: str, redrawn: str) -> bool:
    """Return whether two tables or summaries have the same words, and numbers that differ by a millionth at most."""
    if _NUMBER.sub("0", text) != _NUMBER.sub("0", redrawn):
        return False
    pairs = zip(_NUMBER.findall(text), _NUMBER.findall(redrawn), strict=True)
    return all(math.isclose(float(number), float(another), rel_tol=1e-6) for number, another in pairs)
