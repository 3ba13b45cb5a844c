"""``bundle.json``: what a bundle is of, and whether all of it is there."""

import platform
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.analysis.load import load_sweep
from harness.base import __version__
from harness.base.errors import UserError
from harness.base.provenance import package_version
from harness.bundle.archive import SUMS, files_in, read_sums, sha256, unpacked
from harness.bundle.crate import check_crate
from harness.schema.record import decode

MANIFEST = "bundle.json"
SCHEMA = 1
RECORDS, REPORTS = "results", "reports"
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
class Check:
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


def verify(archive: Path) -> tuple[Check, ...]:
    """Return what a look at all of a bundle finds: its files, its records and its description. Needs no network.

    Raises:
        UserError: it is no bundle, or so damaged that it cannot be unpacked.
    """
    with unpacked(archive) as folder:
        wrong = wrong_files(folder)
        count = f"{len(files_in(folder)) - 1:,} files have their checksums"
        found = [Check(what="files", found="; ".join(wrong[:3]) or count, good=not wrong)]
        for what, check in (("records", _records), ("RO-Crate", _crate)):
            try:
                said, good = check(folder), True
            except UserError as error:
                said, good = str(error), False
            found.append(Check(what=what, found=said, good=good))
    return tuple(found)


def _records(folder: Path) -> str:
    manifest = open_bundle(folder)
    sweeps = [load_sweep(folder / RECORDS / name, every_code=True) for name in manifest.sweeps]
    damaged = [text for one in sweeps for text in one.damaged]
    launches = sum(len(one.runs) for one in sweeps)
    if launches != manifest.launches:
        raise UserError(f"{launches} launches can be read, the bundle states {manifest.launches}")
    left = f"; {len(damaged)} were damaged before: {damaged[0]}" if damaged else ""
    return f"{launches:,} launches of {len(sweeps)} sweeps can be read{left}"


def _crate(folder: Path) -> str:
    return f"{check_crate(folder):,} entities, all they point at is there"
