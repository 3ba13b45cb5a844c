"""What a bundle is of (``bundle.json``), whether all of it is there, and its pages, drawn from its records alone."""

import platform
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd

from harness.analysis import numbers
from harness.analysis.read_results import load_sweep
from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import folder_atomic, resource
from harness.base.provenance import package_version
from harness.bundle.archive import SUMS, files_in, read_sums, sha256, unpacked
from harness.bundle.crate import check_crate
from harness.claims.evidence import gather
from harness.claims.verdict import Judgement, judge_all
from harness.report.claims_page import FOLDER as CLAIMS_FOLDER
from harness.report.claims_page import write_claims
from harness.report.render import PAGE, PAPER
from harness.report.sweep_page import write_report
from harness.schema.claim import CLAIMS_FILE, read_published
from harness.schema.record import decode

MANIFEST = "bundle.json"
SCHEMA = 1
RECORDS, REPORTS = "results", "reports"
MARK = ".bundle"  # in a folder that a bundle was drawn into
_DRAWING = ("matplotlib", "numpy", "pandas", "scipy")


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a bundle holds. `moment` is the end of its newest launch, `launches` counts the whole records.

    `drawn_with` are the versions that the figures' bytes depend on.
    """

    schema: int
    name: str
    moment: datetime
    sweeps: tuple[str, ...]
    launches: int
    harness: str
    drawn_with: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """One thing that was checked, what was found, and whether it is as it should be."""

    what: str
    found: str
    good: bool


def drawn_with() -> str:
    """Return the versions, here and now, that the bytes of a figure depend on."""
    parts = [f"Python {platform.python_version()}", f"harness {__version__}"]
    return ", ".join([*parts, *(f"{name} {package_version(name)}" for name in _DRAWING)])


def open_bundle(folder: Path) -> Manifest:
    """Return the manifest of an unpacked bundle all of whose files have their checksums.

    Raises:
        UserError: a file is missing, another, or unknown; or the manifest is damaged or of another version.
    """
    wrong = wrong_files(folder)
    if wrong:
        raise UserError(f"{wrong[0]}{f' (and {len(wrong) - 1} more)' if wrong[1:] else ''}: take the bundle again")
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"the archive has no {MANIFEST}: it is no bundle")
    manifest = decode(path.read_bytes(), Manifest, Path(MANIFEST))
    if manifest.schema != SCHEMA:
        raise UserError(f"the bundle has schema {manifest.schema}, this harness reads {SCHEMA}: use a newer harness")
    if any("/" in name or name.startswith(".") or not (folder / RECORDS / name).is_dir() for name in manifest.sweeps):
        raise UserError(f"{MANIFEST} names a sweep that is not in the bundle")
    return manifest


def wrong_files(folder: Path) -> list[str]:
    """Return a sentence on every file of an unpacked bundle that does not have its stated checksum."""
    stated, there = read_sums(folder), set(files_in(folder)) - {SUMS}
    lost = [f"'{name}' is missing from the bundle" for name in sorted(set(stated) - there)]
    strange = [f"'{name}' is in the bundle and has no checksum" for name in sorted(there - set(stated))]
    other = [f"'{name}' was changed" for name in sorted(there & set(stated)) if sha256(folder / name) != stated[name]]
    return [*lost, *strange, *other]


def verify(archive: Path) -> tuple[Verification, ...]:
    """Return what a look at all of a bundle finds: its files, its records and its description. Needs no network.

    Raises:
        UserError: it is no bundle, or so damaged that it cannot be unpacked.
    """
    with unpacked(archive) as folder:
        wrong = wrong_files(folder)
        count = f"{len(files_in(folder)) - 1:,} files have their checksums"
        found = [Verification(what="files", found="; ".join(wrong[:3]) or count, good=not wrong)]
        for what, check in (("records", _records), ("RO-Crate", _crate)):
            try:
                said, good = check(folder), True
            except UserError as error:
                said, good = str(error), False
            found.append(Verification(what=what, found=said, good=good))
    return tuple(found)


def _records(folder: Path) -> str:
    manifest = open_bundle(folder)
    sweeps = [load_sweep(folder / RECORDS / name, every_code=True) for name in manifest.sweeps]
    damaged = [text for one in sweeps for text in one.damaged]
    launches = sum(len(one.runs) for one in sweeps)
    if launches != manifest.launches:
        raise UserError(f"{launches} launches can be read, the bundle states {manifest.launches}")
    left = f"; {len(damaged)} were damaged before: {damaged[0]}" if damaged else ""
    return f"{numbers.plural(launches, 'launch')} of {numbers.plural(len(sweeps), 'sweep')} can be read{left}"


def _crate(folder: Path) -> str:
    return f"{check_crate(folder):,} entities, all they point at is there"


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
    write_claims(judgements, evidence, published, root / REPORTS, moment=moment, results=root / RECORDS)
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
