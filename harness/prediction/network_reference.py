"""What a step would take by this machine's probed network: a reference to hold the measured step against, no bound.

Its computation is the harness's own on the fewest ranks, and its allreduce one of three textbook algorithms: a faster
step, or a faster sum (ranks of one host that add in shared memory), goes below it.
"""

from collections import Counter
from dataclasses import dataclass

from harness.analysis.load import Loaded
from harness.analysis.scaling import PointScaling, Scaling
from harness.prediction.allreduce import BEST
from harness.prediction.links import probe_links
from harness.prediction.measured_base import measured_base
from harness.prediction.model import predict
from harness.probe.store import newest_probe
from harness.schema.message_cost import NETWORK, NODE, POINT_TO_POINT
from harness.schema.script import is_script


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
    compute times, and the cheapest allreduce in closed form (`prediction.model`): inside hosts over the links inside a
    host, by where the ranks of each point were. Points of another number of threads per rank are left out.

    Raises:
        UserError: a probe is damaged.
    """
    if is_script(loaded.runs[0].point.workload):
        return None  # what a step of a script computes is in the script
    machines = {run.provenance.machine.fingerprint for run in loaded.valid}
    probe = newest_probe(loaded.folder.resolve().parent, min(machines)) if len(machines) == 1 else None
    if probe is None or not any(probe.by_setting[0].find(POINT_TO_POINT, level) for level in (NETWORK, NODE)):
        return None
    base = measured_base(loaded)
    fewest = min(scaling.points, key=lambda point: point.ranks)
    found, said = [], ""
    for point in scaling.points:
        if point.speedup is None or point.threads != fewest.threads:
            continue
        network, said = probe_links(probe, _ranks_per_host(loaded, point))
        (row,) = predict(base, [point.ranks], network, BEST).to_dict("records")
        found.append(_step(point, {str(name): float(value) for name, value in row.items()}, scaling))
    return NetworkReference(network=said, base=base.source, points=tuple(found))


def _ranks_per_host(loaded: Loaded, point: PointScaling) -> int:
    """Return the most ranks that one host had in a launch of `point`; several nodes may be one host's cores."""
    runs = [run for run in loaded.valid if str(run.point.layout) == point.layout]
    return max(max(Counter(rank.host for rank in run.ranks).values()) for run in runs)


def _step(point: PointScaling, row: dict[str, float], scaling: Scaling) -> ReferenceStep:
    gain = scaling.base.seconds / row["epoch_s"]
    return ReferenceStep(
        point=point,
        compute_s=row["compute_s"],
        straggler_s=row["straggler_s"],
        allreduce_s=row["allreduce_s"],
        step_s=row["step_s"],
        speedup=gain if scaling.scaling == "strong" else gain * point.ideal,
    )
