"""Where probes are stored, and which one a machine's predictions use."""

from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.files import folder_atomic, read_bytes
from harness.schema.message_cost import PROBE_FILE, PROBE_SCHEMA, PROBES, SAMPLES_FILE, Probe
from harness.schema.point import digest
from harness.schema.record import decode, encode
from harness.schema.sweep_folder import make_results

if TYPE_CHECKING:
    from harness.probe.probe_runner import ProbeSamples


def write_probe(measured: "ProbeSamples", results: Path) -> Path:
    """Write the record and every sample into ``results/probes/<name>``; return the folder.

    The name is the same for the same ranks, hosts, machine and library: an older probe of these is replaced.
    Columns of samples.parquet: setting, operation, level (text), launch, ranks, bytes, sample (int64), seconds
    (float64, the slowest rank's).

    Raises:
        UserError: the folder cannot be written to.
    """
    import pandas as pd

    rows = [
        (setting, launch, series.operation, series.level, series.ranks, series.bytes, number, seconds)
        for setting, launch, series in measured.samples
        for number, seconds in enumerate(series.seconds)
    ]
    columns = ["setting", "launch", "operation", "level", "ranks", "bytes", "sample", "seconds"]
    probe = measured.probe
    hosts = len(set(probe.hosts))
    identity = digest((probe.hosts, probe.machine.fingerprint, probe.mpi_library, probe.launcher))
    folder = results / PROBES / f"{hosts}x{-(-probe.ranks // hosts)}-{identity[:8]}"
    make_results(results)
    with folder_atomic(folder, "probe") as staging:
        pd.DataFrame(rows, columns=columns).to_parquet(staging / SAMPLES_FILE, index=False)
        (staging / PROBE_FILE).write_bytes(encode(probe))
    return folder


def read_probe(path: Path) -> Probe:
    """Read a probe from its folder or file; raise a UserError if it is missing, damaged or of another schema."""
    file = path / PROBE_FILE if path.is_dir() else path
    probe = decode(read_bytes(file, "probe", "run `harness probe` first"), Probe, file)
    if probe.schema != PROBE_SCHEMA:
        raise UserError(f"'{file}' has schema {probe.schema}, this harness reads {PROBE_SCHEMA}: probe again")
    return probe


def newest_probe(results: Path, fingerprint: str) -> Probe | None:
    """Return the valid probe of the machine with this `fingerprint` that was measured last, None if there is none.

    Raises:
        UserError: a probe in `results` is damaged or of another schema version.
    """
    probes = [read_probe(path) for path in sorted((results / PROBES).glob(f"*/{PROBE_FILE}"))]
    usable = [probe for probe in probes if probe.machine.fingerprint == fingerprint and not probe.invalid]
    return max(usable, key=lambda probe: probe.measured, default=None)
