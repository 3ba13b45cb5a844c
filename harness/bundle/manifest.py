"""What a bundle says it holds: ``bundle.json``."""

import platform
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.base import __version__
from harness.base.errors import UserError
from harness.base.provenance import package_version
from harness.bundle.archive import wrong_files
from harness.schema.record import decode

MANIFEST = "bundle.json"
SCHEMA = 1
RECORDS = "results"
REPORTS = "reports"
_DRAWING = ("matplotlib", "numpy", "pandas", "scipy")


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
