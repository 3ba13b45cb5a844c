"""Write a bundle: records, pages, scripts, code and words in one folder, then in one archive."""

import logging
import math
import re
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd

from harness.analysis.read_results import Loaded, load_sweep
from harness.base.errors import UserError
from harness.base.files import folder_atomic, resource
from harness.bundle.archive import (
    MANIFEST,
    RECORDS,
    REPORTS,
    SCHEMA,
    Manifest,
    drawn_with,
    files_in,
    open_bundle,
    pack,
    unpacked,
    write_sums,
)
from harness.bundle.bundled_files import copy_plain_files, refuse_secrets_in_files
from harness.bundle.bundled_sweep import BundledSweep, bundled_sweep
from harness.bundle.instructions import write_instructions
from harness.bundle.source_code import CHANGES, LOCK, add_code
from harness.claims.claim_evidence import gather
from harness.claims.judgement import judge_claim
from harness.report.claims_answer import FOLDER as CLAIMS_FOLDER
from harness.report.claims_answer import claims_answer
from harness.report.experiment_results import find_studies, read_experiments
from harness.report.html_pages import PAGE, PAPER, write_page
from harness.report.sweep_answer import report_sweep
from harness.schema.claim import CLAIMS_FILE, read_published
from harness.schema.code_identity import harness_identity
from harness.schema.command_lines import harness_command
from harness.schema.message_cost import PROBES
from harness.schema.record import encode
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.sweep_lock import is_locked

# Draw the pages of a bundle from its records, and compare the numbers of their tables and summaries.

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


_LOG = logging.getLogger(__name__)


def write_bundle(folders: Sequence[Path], target: Path, allowed: Collection[str] = ()) -> Path:
    """Write the sweeps in `folders` to the archive `target` and return it.

    The same records, code and versions make the same bytes. `allowed` are what looks like secrets and is none.

    Raises:
        UserError: a sweep runs now or has no finished launch, a link or what looks like a secret is in its folder, or
            the archive cannot be written.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise UserError("SWEEP names one sweep twice, or two of one name: name each once")
    with tempfile.TemporaryDirectory(prefix="harness-bundle-") as temporary:
        root = Path(temporary)
        loaded = [_copy(folder, root / RECORDS / name) for folder, name in zip(folders, names, strict=True)]
        # The probes beside the sweeps, which predictions rest on.
        for probes in sorted({folder.resolve().parent / PROBES for folder in folders}):
            if probes.is_dir():
                copy_plain_files(probes, root / RECORDS / PROBES, _is_hidden)
        refuse_secrets_in_files(root, files_in(root), allowed)
        runs = [run for sweep in loaded for run in sweep.runs]
        moment = max(run.ended for run in runs)
        draw_pages(root, names, moment)
        sweeps = [_describe(copy) for copy in loaded]
        code = add_code(root, sorted({run.provenance.commit for run in runs} - {""}))
        refuse_secrets_in_files(root, [name for name in files_in(root) if name == f"source/{CHANGES}"], allowed)
        write_instructions(root, target.name, sweeps, code)
        for name in (LOCK, "LICENSE", "CITATION.cff"):
            shutil.copyfile(resource(name), root / name)
        manifest = Manifest(
            schema=SCHEMA,
            name=target.name,
            moment=moment,
            sweeps=tuple(names),
            launches=sum(len(load_sweep(copy.folder, every_code=True).runs) for copy in loaded),
            harness=harness_identity(),
            drawn_with=drawn_with(),
        )
        (root / MANIFEST).write_bytes(encode(manifest))
        write_sums(root)
        pack(root, target, moment)
    return target


def _copy(folder: Path, target: Path) -> Loaded:
    """Copy a sweep's folder, without what only a command that works on it needs, and read the copy."""
    if is_locked(SweepFolder(folder)):
        raise UserError(f"sweep '{folder.name}' is being run now: wait for it or end it")
    files = SweepFolder(folder)
    unshared = (files.running.name, files.checkpoints.name)
    copy_plain_files(folder.resolve(), target, lambda name: _is_hidden(name) or name in unshared)
    loaded = load_sweep(target)
    if not loaded.runs or loaded.study is None:
        raise UserError(f"sweep '{folder}' holds no finished launch of its last command: run it first")
    return loaded


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _describe(copy: Loaded) -> BundledSweep:
    """Return what is said of the sweep `copy` in the bundle."""
    assert copy.study is not None
    return bundled_sweep(copy, harness_command(copy.study.sweep))
