"""Where probes are kept, and which one speaks for a machine."""

from pathlib import Path

from harness.base.errors import UserError
from harness.schema.message_cost import PROBE_FILE, PROBE_SCHEMA, PROBES, Probe
from harness.schema.record import decode


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
