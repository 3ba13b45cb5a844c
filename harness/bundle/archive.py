"""A bundle's archive: packed the same for the same files, unpacked without trust, checked, its pages drawn again."""

import contextlib
import gzip
import hashlib
import json
import platform
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from harness.analysis import numbers
from harness.analysis.read_results import load_sweep
from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import file_atomic, folder_atomic, resource, user_errors
from harness.base.provenance import package_version
from harness.claims.claim_evidence import gather
from harness.claims.judgement import Judgement, judge_claim
from harness.report.claims_page import FOLDER as CLAIMS_FOLDER
from harness.report.claims_page import claims_answer
from harness.report.experiment_results import find_studies, read_experiments
from harness.report.publish import PAGE, PAPER, write_page
from harness.report.sweep_page import report_sweep
from harness.schema.claim import CLAIMS_FILE, read_published
from harness.schema.record import decode

SUMS = "SHA256SUMS"  # as `sha256sum --check` reads it
MANIFEST = "bundle.json"
CRATE, ROOT, RO_CRATE = "ro-crate-metadata.json", "./", "https://w3id.org/ro/crate/1.1"
SCHEMA = 1
RECORDS, REPORTS = "results", "reports"
MARK = ".bundle"  # in a folder that a bundle was drawn into
SUFFIX = ".tar.gz"
_DRAWING = ("matplotlib", "numpy", "pandas", "scipy")


def files_in(folder: Path) -> list[str]:
    """Return the plain files below `folder` by their names relative to it, in the order of the archive."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path) -> None:
    """Write the checksums of all files in `folder` beside them."""
    lines = [f"{sha256(folder / name)}  {name}\n" for name in files_in(folder) if name != SUMS]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def pack(folder: Path, target: Path, moment: datetime) -> None:
    """Write the files of `folder` to the archive `target`, whole or not at all, below the archive's own name.

    All of them have the time `moment` and no owner, so that equal files make equal archives.

    Raises:
        UserError: it cannot be written.
    """
    top = target.name.removesuffix(SUFFIX)
    with (
        file_atomic(target, "bundle") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in files_in(folder):
            path, entry = folder / name, tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime = path.stat().st_size, int(moment.timestamp())
            entry.mode = 0o755 if path.suffix == ".sh" else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)


@contextlib.contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """Yield a temporary folder with the files of `archive`, without its top folder.

    Raises:
        UserError: it is cut, damaged or larger than the free disk, or has anything but plain files below one folder.
    """
    with tempfile.TemporaryDirectory(prefix="harness-bundle-") as name:
        folder = Path(name)
        with user_errors("temporary folder", folder):
            _unpack(archive, folder)
        yield folder


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive, "r:gz") as opened:
            room, tops = shutil.disk_usage(folder).free, set()
            for entry in opened:
                parts = PurePosixPath(entry.name).parts
                if not entry.isreg() or len(parts) < 2 or entry.name.startswith("/") or {"..", "."} & set(parts):
                    raise UserError(f"'{archive}' holds '{entry.name}', not a plain file in its folder: not a bundle")
                place = folder.joinpath(*parts[1:])
                tops.add(parts[0])
                room -= entry.size
                if room < 0:
                    raise UserError(f"'{archive}' is larger than the free disk below '{folder.parent}': set TMPDIR")
                if len(tops) > 1 or place.exists():
                    raise UserError(f"'{archive}' has '{entry.name}' twice or in a second folder: not a bundle")
                content = opened.extractfile(entry)
                assert content is not None
                place.parent.mkdir(parents=True, exist_ok=True)
                with content, place.open("xb") as file:
                    shutil.copyfileobj(content, file)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"'{archive}' cannot be read: {error.strerror}") from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, FileExistsError, NotADirectoryError) as error:
        raise UserError(f"'{archive}' is cut, damaged or not an archive of `harness bundle`: {error}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a bundle holds (``bundle.json``). `moment` is the end of its newest launch, `launches` counts the records.

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
    """One thing that was checked, what was found, and whether it is right."""

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
        UserError: a file is missing, changed or unknown, or the manifest is damaged or of another version.
    """
    wrong = wrong_files(folder)
    if wrong:
        raise UserError(f"{wrong[0]}{f' (and {len(wrong) - 1} more)' if wrong[1:] else ''}: get the bundle again")
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"the archive has no {MANIFEST}: it is not a bundle")
    manifest = decode(path.read_bytes(), Manifest, Path(MANIFEST))
    if manifest.schema != SCHEMA:
        raise UserError(f"the bundle has schema {manifest.schema}, this harness reads {SCHEMA}: use a newer harness")
    if any("/" in name or name.startswith(".") or not (folder / RECORDS / name).is_dir() for name in manifest.sweeps):
        raise UserError(f"{MANIFEST} names a sweep that is not in the bundle")
    return manifest


def wrong_files(folder: Path) -> list[str]:
    """Return a sentence on every file of an unpacked bundle that does not have its stated checksum.

    Raises:
        UserError: the checksums are missing or damaged.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the archive has no readable {SUMS}: it is not a bundle, or a damaged one") from error
    stated = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    there = set(files_in(folder)) - {SUMS}
    absent = [f"'{name}' is missing from the bundle" for name in sorted(set(stated) - there)]
    strange = [f"'{name}' is in the bundle and has no checksum" for name in sorted(there - set(stated))]
    other = [f"'{name}' was changed" for name in sorted(there & set(stated)) if sha256(folder / name) != stated[name]]
    return [*absent, *strange, *other]


def verify_bundle(archive: Path) -> tuple[Verification, ...]:
    """Check all of a bundle, without a network: its files, its records and its RO-Crate.

    Raises:
        UserError: it is not a bundle, or so damaged that it cannot be unpacked.
    """
    with unpacked(archive) as folder:
        wrong = wrong_files(folder)
        count = f"{len(files_in(folder)) - 1:,} files have their checksums"
        found = [Verification(what="files", found="; ".join(wrong[:3]) or count, good=not wrong)]
        for what, examine in (("records", _records), ("RO-Crate", _entities)):
            try:
                found.append(Verification(what=what, found=examine(folder), good=True))
            except UserError as error:
                found.append(Verification(what=what, found=str(error), good=False))
    return tuple(found)


def _entities(folder: Path) -> str:
    return f"{check_crate(folder):,} entities, and all they refer to exists"


def check_crate(folder: Path) -> int:
    """Return how many entities the crate in `folder` describes, if it is well-formed and all it refers to exists.

    Raises:
        UserError: it is not.
    """
    try:
        graph = json.loads((folder / CRATE).read_text(encoding="utf-8"))["@graph"]
        known = {entity["@id"]: entity for entity in graph}
        parts = [part["@id"] for part in known[ROOT]["hasPart"]]
        specification = known[CRATE]["conformsTo"][0]["@id"]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{CRATE} is missing or not an RO-Crate: {error!r}") from error
    if len(known) != len(graph) or specification != RO_CRATE:
        raise UserError(f"{CRATE} names an entity twice or is not of {RO_CRATE}")
    absent = [part for part in parts if part not in known or not (folder / part).exists()]
    absent += [at for at in _references(graph) if at not in known and "://" not in at]
    if absent:
        raise UserError(f"{CRATE} refers to '{absent[0]}', which does not exist")
    return len(known)


def _references(value: Any) -> Iterable[str]:
    if isinstance(value, list):
        for one in value:
            yield from _references(one)
    elif isinstance(value, dict):
        if set(value) == {"@id"}:
            yield value["@id"]
        for one in value.values():
            yield from _references(one)


def _records(folder: Path) -> str:
    manifest = open_bundle(folder)
    sweeps = [load_sweep(folder / RECORDS / name, every_code=True) for name in manifest.sweeps]
    damaged = [text for one in sweeps for text in one.damaged]
    launches = sum(len(one.runs) for one in sweeps)
    if launches != manifest.launches:
        raise UserError(f"{launches} launches can be read, the bundle states {manifest.launches}")
    left = f"; {len(damaged)} were damaged before: {damaged[0]}" if damaged else ""
    return f"{numbers.plural(launches, 'launch')} of {numbers.plural(len(sweeps), 'sweep')} can be read{left}"


def draw_pages(root: Path, sweeps: Sequence[str], moment: datetime) -> tuple[dict[str, float], tuple[Judgement, ...]]:
    """Draw the report of each sweep in ``ROOT/results`` and the page of claims into ``ROOT/reports``.

    Return the seconds that each sweep's report took, and the claims' judgements. Nothing on the pages depends on this
    machine (as a prediction by its newest probe does). The index dates all of them `moment` or before.
    """
    taken = {}
    for name in sweeps:
        began = time.monotonic()
        report_sweep(root / RECORDS / name, root / REPORTS, style=PAPER)
        taken[name] = time.monotonic() - began
    published = read_published(resource(CLAIMS_FILE))
    evidence = gather(root / RECORDS / name for name in sweeps)
    judgements = tuple(judge_claim(claim, evidence, pd.DataFrame()) for claim in published.claims)
    reports = root / REPORTS
    experiments = read_experiments(find_studies(root / RECORDS), published, reports / CLAIMS_FOLDER)
    answer = claims_answer(judgements, evidence, experiments, published, reports, moment=moment)
    write_page(answer, reports)
    return taken, judgements


@dataclass(frozen=True, kw_only=True, slots=True)
class Redrawn:
    """The files of a bundle whose pages were drawn again, and those of them that are not the same bytes."""

    files: tuple[str, ...]
    different: tuple[str, ...]
    pages: tuple[Path, ...]
    drawn_with: str


def redraw(archive: Path, target: Path) -> Redrawn:
    """Draw all pages of the bundle `archive` from its records into ``TARGET/reports``, the records beside them.

    Raises:
        UserError: it is not a bundle, its checksums are wrong, or `target` holds something else.
    """
    with unpacked(archive) as folder:
        manifest = open_bundle(folder)
        if target.exists() and not (target / MARK).exists():
            raise UserError(f"'{target}' exists and was not drawn from a bundle: choose another folder with --reports")
        with folder_atomic(target) as made:
            shutil.copytree(folder / RECORDS, made / RECORDS)
            draw_pages(made, manifest.sweeps, manifest.moment)
            files = tuple(name for name in files_in(folder) if name.startswith(f"{REPORTS}/"))
            again = set(files_in(made))
            different = tuple(one for one in files if one not in again or sha256(made / one) != sha256(folder / one))
            (made / MARK).write_text(manifest.name + "\n", encoding="utf-8")
    pages = tuple(target / REPORTS / name / PAGE for name in (*manifest.sweeps, CLAIMS_FOLDER))
    return Redrawn(files=files, different=different, pages=pages, drawn_with=manifest.drawn_with)
