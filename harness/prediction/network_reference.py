"""The reference of measured points: what a step would take with the probed network, which is no bound."""

from collections import Counter
from dataclasses import dataclass

from harness.analysis.read_results import Loaded
from harness.analysis.scaling import PointScaling, Scaling
from harness.prediction.measured_base import measured_base
from harness.prediction.network_cost import BEST, probe_links
from harness.prediction.step_model import predict_network
from harness.probe.probe_store import newest_probe
from harness.schema.message_cost import NETWORK, NODE, POINT_TO_POINT
from harness.schema.record import RunRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceStep:
    """A measured point beside its reference. Seconds of a step; `speedup` is the base's epoch over the reference's."""

    point: PointScaling
    compute_s: float
    straggler_s: float
    allreduce_s: float
    step_s: float
    speedup: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkReference:
    """The reference of every point that compares with the base. `network` says which link costs it rests on."""

    network: str
    base: str
    points: tuple[ReferenceStep, ...]


def network_reference(loaded: Loaded, scaling: Scaling) -> NetworkReference | None:
    """Return the reference of the points of `loaded`, None where no probe of their machine lies beside the sweep.

    Computation per row as on the fewest ranks, the wait for the slowest rank from the measured distribution of
    compute times, and the cheapest allreduce in closed form (`step_model.predict`): inside hosts over the links inside
    a host, by where the ranks of each point were. Points of another number of threads per rank are left out.

    Raises:
        UserError: a probe is damaged.
    """
    if loaded.runs[0].point.workload.script:
        return None  # what a step of a script computes is in the script
    machines = {run.provenance.machine.fingerprint for run in loaded.valid}
    probe = newest_probe(loaded.folder.resolve().parent, min(machines)) if len(machines) == 1 else None
    if probe is None or not any(probe.by_setting[0].find(POINT_TO_POINT, level) for level in (NETWORK, NODE)):
        return None
    base = measured_base(loaded)
    fewest = min(scaling.points, key=lambda point: point.ranks)
    points = []
    words = ""
    for point in scaling.points:
        if point.speedup is None or point.threads != fewest.threads:
            continue
        runs = [run for run in loaded.valid if str(run.point.layout) == point.layout]
        # Several nodes may be cores of one host.
        network, words = probe_links(probe, max(_most_on_a_host(run) for run in runs))
        (row,) = predict_network(base, [point.ranks], network, BEST).to_dict("records")
        gain = scaling.base.seconds / row["epoch_s"]
        points.append(
            ReferenceStep(
                point=point,
                compute_s=float(row["compute_s"]),
                straggler_s=float(row["straggler_s"]),
                allreduce_s=float(row["allreduce_s"]),
                step_s=float(row["step_s"]),
                speedup=gain if scaling.scaling == "strong" else gain * point.ideal,
            )
        )
    return NetworkReference(network=words, base=base.source, points=tuple(points))


def _most_on_a_host(run: RunRecord) -> int:
    """Return the most ranks of `run` that were on one host."""
    return max(Counter(rank.host for rank in run.ranks).values())
