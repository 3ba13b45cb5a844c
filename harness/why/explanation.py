"""A sweep with its reasons: scaling, efficiencies and overheads together, with what a probe says of messages."""

from dataclasses import dataclass
from pathlib import Path

from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import PointScaling, Scaling, scale
from harness.base.errors import UserError
from harness.base.record_words import shell_line
from harness.probe.probe_store import newest_probe
from harness.schema.message_cost import ALLREDUCE, REDUCTION, MessageCost, Probe
from harness.schema.record import RunRecord
from harness.why.efficiencies import Detailed, PointEfficiencies, detailed, efficiencies
from harness.why.overheads import LAUNCH_CAUSES, PointOverheads, overheads


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """A sweep with its reasons. `overheads` are of an epoch, `launch_overheads` of a whole launch, by point.

    `network` says where the latency and the bandwidth of the allreduce are from, or why there are none.
    """

    loaded: Loaded
    scaling: Scaling
    detail: Detailed
    efficiencies: tuple[PointEfficiencies, ...]
    overheads: tuple[PointOverheads, ...]
    launch_overheads: tuple[PointOverheads, ...]
    network: str
    probe: Probe | None

    @property
    def main(self) -> PointOverheads | None:
        """The overheads of the largest point that has them: what the answer is about."""
        return self.overheads[-1] if self.overheads else None

    def point_of(self, overheads: PointOverheads) -> PointScaling | None:
        """The row of the scaling table whose overheads these are."""
        return next((point for point in self.scaling.points if point.layout == overheads.layout), None)


def explain_sweep(folder: Path, base: int | None = None) -> Explanation:
    """Return what explains the sweep in `folder`; ratios are over `base` ranks, by default over the fewest.

    Raises:
        UserError: there is no valid launch, one has no times of single calls, `base` has none, or a probe is damaged.
    """
    loaded = load_sweep(folder)
    if not loaded.valid:
        raise UserError(
            f"sweep '{folder}' has no valid launch: `{shell_line(['harness', 'status', folder.name])}` says why"
        )
    frame = launch_frame(loaded.runs, loaded.epochs)
    scaling = scale(frame, base_ranks=base)
    assert scaling is not None
    machines = {run.provenance.machine.fingerprint for run in loaded.valid}
    probe = newest_probe(folder.resolve().parent, min(machines)) if len(machines) == 1 else None
    detail = detailed(folder, frame, lambda run: cost_of(probe, run) if probe else None)
    return Explanation(
        loaded=loaded,
        scaling=scaling,
        detail=detail,
        efficiencies=efficiencies(scaling, detail.launches),
        overheads=overheads(scaling, detail.launches),
        launch_overheads=overheads(scaling, detail.launches, LAUNCH_CAUSES),
        network=_network(probe, loaded),
        probe=probe,
    )


def cost_of(probe: Probe, run: RunRecord, algorithm: str = "") -> MessageCost | None:
    """Return what an allreduce by `algorithm` (a choice of HARNESS_REDUCTION, by default the one of `run`) costs.

    None where the probe did not measure it on as many ranks, no line describes what it measured, `run` had settings of
    its own, or overlapped them with computation, so that their times are not all that they cost.
    """
    if run.provenance.overlapped and not algorithm:
        return None
    network = probe.by_setting[0]
    algorithm = algorithm or run.provenance.algorithm
    cost = network.find(f"{REDUCTION}{algorithm}", network.widest)
    if cost is None and algorithm == "messages":
        cost = network.find(ALLREDUCE, network.widest)
    if cost is None or cost.ranks != run.point.layout.ranks or run.point.settings:
        return None
    return cost if cost.good else None


def _network(probe: Probe | None, loaded: Loaded) -> str:
    summing = [run for run in loaded.valid if run.point.layout.ranks > 1]
    if probe is None or not any(cost_of(probe, run) for run in summing):
        return (
            "Latency and bandwidth of the allreduce are one: no probe of this machine on as many ranks has times that "
            f"a line describes (`{shell_line(['harness', 'probe'])}`)"
        )
    return f"Latency and bandwidth of the allreduce are those of the probe of {probe.measured:%Y-%m-%d %H:%M} UTC"
