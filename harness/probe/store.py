"""Where probes are kept, and which one speaks for a machine."""

from pathlib import Path

from harness.errors import UserError
from harness.files import folder_atomic
from harness.probe.execute import Found
from harness.spec.codec import decode, encode
from harness.spec.network import NETWORK_SCHEMA, PROBE_FILE, PROBES, SAMPLES_FILE, Probe
from harness.spec.point import digest


def probe_name(probe: Probe) -> str:
    """Return the name of the probe's folder: the same for the same ranks, hosts, machine and library."""
    hosts = len(set(probe.hosts))
    identity = digest((probe.hosts, probe.machine.fingerprint, probe.mpi_library, probe.launcher))
    return f"{hosts}x{-(-probe.ranks // hosts)}-{identity[:8]}"


def write_probe(found: Found, results: Path) -> Path:
    """Write the record and every sample into ``results/probes/<name>``, replacing an older one; return the folder.

    Columns of samples.parquet: setting, operation, level (text), ranks, bytes, sample (int64), seconds (float64, the
    slowest rank's).

    Raises:
        UserError: the folder cannot be written to.
    """
    import pandas as pd

    rows = [
        (setting, one.operation, one.level, one.ranks, one.bytes, number, seconds)
        for setting, one in found.samples
        for number, seconds in enumerate(one.seconds)
    ]
    columns = ["setting", "operation", "level", "ranks", "bytes", "sample", "seconds"]
    folder = results / PROBES / probe_name(found.probe)
    with folder_atomic(folder) as staging:
        pd.DataFrame(rows, columns=columns).to_parquet(staging / SAMPLES_FILE, index=False)
        (staging / PROBE_FILE).write_bytes(encode(found.probe))
    return folder


def read_probe(path: Path) -> Probe:
    """Read a probe from its folder or its file.

    Raises:
        UserError: it is missing, damaged or of another schema version.
    """
    file = path / PROBE_FILE if path.is_dir() else path
    try:
        probe = decode(file.read_bytes(), Probe, file)
    except OSError as error:
        raise UserError(f"probe '{file}' cannot be read: {error.strerror}; run `harness probe` first") from error
    if probe.schema != NETWORK_SCHEMA:
        raise UserError(f"'{file}' has schema {probe.schema}, this harness reads {NETWORK_SCHEMA}: probe again")
    return probe


def newest_probe(results: Path, fingerprint: str) -> Probe | None:
    """Return the valid probe of the machine with this `fingerprint` that was measured last, None if there is none.

    Raises:
        UserError: a probe in `results` is damaged or of another schema version.
    """
    probes = [read_probe(path) for path in sorted((results / PROBES).glob(f"*/{PROBE_FILE}"))]
    usable = [probe for probe in probes if probe.machine.fingerprint == fingerprint and not probe.invalid]
    return max(usable, key=lambda probe: probe.measured, default=None)
