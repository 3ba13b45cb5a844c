"""The settings with which a sweep's ranks sum fastest, from the newest probe of this machine."""

from pathlib import Path

from harness.errors import UserError
from harness.probe.choose import choose
from harness.probe.plan import NETWORK_BYTES
from harness.probe.store import newest_probe
from harness.provenance import describe_machine
from harness.spec.network import PROBES
from harness.spec.workload import Workload

Settings = tuple[tuple[str, str], ...]


def tuned_settings(workload: Workload, results: Path) -> tuple[Settings, str]:
    """Return the environment variables for `workload`, none where the defaults are best, and one sentence on them.

    Raises:
        UserError: there is no probe of this machine, or the workload's network is none of the papers'.
    """
    if workload.name not in NETWORK_BYTES:
        raise UserError(
            f"TUNED=1 knows how many bytes {', '.join(NETWORK_BYTES)} exchange, not {workload.name}: leave TUNED out"
        )
    probe = newest_probe(results, describe_machine(gpus=()).fingerprint)
    if probe is None:
        raise UserError(f"no valid probe of this machine in '{results / PROBES}': run `harness probe` first")
    choice = choose(probe, NETWORK_BYTES[workload.name])
    sentence = (
        f"tuned by the probe of {probe.measured:%Y-%m-%d %H:%M} UTC on {probe.ranks} ranks: {choice}, "
        f"{choice.seconds * 1e6:,.0f} us a sum"
    )
    if choice.environment:
        sentence += f" against {choice.usual_s * 1e6:,.0f} us by default"
    return tuple(sorted(choice.environment.items())), sentence
