"""Everything that explains a sweep, from its records and the newest probe of its machine."""

from dataclasses import dataclass
from pathlib import Path

from harness.analysis.causes import CostOf, Explained, explain_launches
from harness.analysis.efficiency import PointTree, trees
from harness.analysis.frames import launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import Scaling, scale
from harness.analysis.time_breakdown import LAUNCH_CAUSES, Bill, bills
from harness.base.errors import UserError
from harness.probe.probe_store import newest_probe
from harness.schema.message_cost import (
    ALL,
    ALLREDUCE,
    NETWORK,
    NODE,
    OVERLAPPED,
    REDUCTION,
    REDUCTION_NAMES,
    MessageCost,
    Probe,
)
from harness.schema.record import RunRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """A sweep with its reasons. `bills` are of an epoch, `launch_bills` of a whole launch, in the order of the points.

    `network` says what tells the sum's latency from its bandwidth, or why nothing does.
    """

    loaded: Loaded
    scaling: Scaling
    explained: Explained
    trees: tuple[PointTree, ...]
    bills: tuple[Bill, ...]
    launch_bills: tuple[Bill, ...]
    network: str
    probe: Probe | None

    @property
    def main(self) -> Bill | None:
        """The bill of the largest point that has one: what the answer speaks of."""
        return self.bills[-1] if self.bills else None


def explain(folder: Path, base: int | None = None) -> Explanation:
    """Return what explains the sweep in `folder`; ratios are over `base` ranks, by default over the fewest.

    Raises:
        UserError: there is no valid launch, one has no times of single calls, `base` has none, or a probe is damaged.
    """
    loaded = load_sweep(folder)
    if not loaded.valid:
        raise UserError(f"sweep '{folder}' has no valid launch: `harness status {folder.name}` tells why")
    frame = launch_frame(loaded.runs, loaded.epochs)
    scaling = scale(frame, base_ranks=base)
    assert scaling is not None
    machines = {run.provenance.machine.fingerprint for run in loaded.valid}
    probe = newest_probe(folder.resolve().parent, min(machines)) if len(machines) == 1 else None
    found = explain_launches(folder, frame, _costs(probe))
    return Explanation(
        loaded=loaded,
        scaling=scaling,
        explained=found,
        trees=trees(scaling, found.launches),
        bills=bills(scaling, found.launches),
        launch_bills=bills(scaling, found.launches, LAUNCH_CAUSES),
        network=_network(probe, loaded),
        probe=probe,
    )


def cost_of(probe: Probe, run: RunRecord, way: str = "") -> MessageCost | None:
    """Return what a sum by `way` (a choice of HARNESS_REDUCTION, by default the one that `run` took) costs.

    None where the probe did not measure it on as many ranks, `run` had settings of its own, or overlapped its sums,
    whose times are not all of what they cost.
    """
    if OVERLAPPED in run.provenance.reduction and not way:
        return None
    network = probe.by_setting[0]
    level = next((level for level in (ALL, NETWORK, NODE) if level in network.levels), NODE)
    took = way or next((way for way, name in REDUCTION_NAMES.items() if name in run.provenance.reduction), "")
    found = network.find(f"{REDUCTION}{took}", level)
    if found is None and took == "messages":
        found = network.find(ALLREDUCE, level)
    usable = found is not None and found.ranks == run.point.layout.ranks and not run.point.settings
    return found if usable else None


def _costs(probe: Probe | None) -> CostOf:
    return lambda run: cost_of(probe, run) if probe else None


def _network(probe: Probe | None, loaded: Loaded) -> str:
    summing = [run for run in loaded.valid if run.point.layout.ranks > 1]
    if probe is None or not any(cost_of(probe, run) for run in summing):
        return "Latency and bandwidth of the sum are one: no probe of this machine on as many ranks (make probe)"
    return f"Latency and bandwidth of the sum are those of the probe of {probe.measured:%Y-%m-%d %H:%M} UTC"
