"""Check all of a bundle: its files and its records."""

from dataclasses import dataclass
from pathlib import Path

from harness.analysis import units
from harness.analysis.read_results import load_sweep
from harness.base.errors import UserError
from harness.bundle.archive import RECORDS, files_in, open_bundle, unpacked, wrong_files


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """One thing that was checked, what its check says, and whether it is right."""

    what: str
    finding: str
    good: bool


def verify_bundle(archive: Path) -> tuple[Verification, ...]:
    """Check all of a bundle, without a network: its files and its records.

    Raises:
        UserError: it is not a bundle, or so damaged that it cannot be unpacked.
    """
    with unpacked(archive) as folder:
        wrong = wrong_files(folder)
        count = f"{len(files_in(folder)) - 1:,} files have their checksums"
        verifications = [Verification(what="files", finding="; ".join(wrong[:3]) or count, good=not wrong)]
        try:
            manifest = open_bundle(folder)
            sweeps = [load_sweep(folder / RECORDS / name, every_code=True) for name in manifest.sweeps]
            damaged = [text for sweep in sweeps for text in sweep.damaged]
            launches = sum(len(sweep.runs) for sweep in sweeps)
            if launches != manifest.launches:
                raise UserError(f"{launches} launches can be read, the bundle states {manifest.launches}")
            losses = f"; {len(damaged)} were damaged before: {damaged[0]}" if damaged else ""
            finding = f"{units.plural(launches, 'launch')} of {units.plural(len(sweeps), 'sweep')} can be read{losses}"
            verifications.append(Verification(what="records", finding=finding, good=True))
        except UserError as error:
            verifications.append(Verification(what="records", finding=str(error), good=False))
    return tuple(verifications)
