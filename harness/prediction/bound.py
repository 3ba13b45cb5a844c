"""The least that a step can take on this machine: what its ranks compute, the slowest of them, a probed allreduce."""

from dataclasses import dataclass

from harness.analysis.load import Loaded
from harness.analysis.scaling import PointScaling, Scaling
from harness.prediction.allreduce import BEST
from harness.prediction.links import probe_links
from harness.prediction.model import predict
from harness.prediction.reference import measured_base
from harness.probe.store import newest_probe
from harness.schema.message_cost import NETWORK, NODE, POINT_TO_POINT
from harness.schema.script import is_script


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundPoint:
    """A measured point beside its bound. Seconds of a step; `speedup` is what the base's epoch over the bound's is."""

    point: PointScaling
    compute_s: float
    straggler_s: float
    allreduce_s: float
    step_s: float
    speedup: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """The bound of every point that compares with the base. `network` says which link costs it rests on."""

    network: str
    base: str
    points: tuple[BoundPoint, ...]


def machine_bound(loaded: Loaded, scaling: Scaling) -> Bound | None:
    """Return the bound of the points of `loaded`, None where no probe of their machine lies beside the sweep.

    Computation per row as on the fewest ranks, the wait for the slowest rank from the measured distribution of
    compute times, and the cheapest allreduce in closed form (`prediction.model`). Points of another number of
    threads per rank are left out.

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
    points = [point for point in scaling.points if point.speedup is not None and point.threads == fewest.threads]
    network, said = probe_links(probe, 1)
    rows = predict(base, [point.ranks for point in points], network, BEST).to_dict("records")
    found = [_point(point, {str(name): float(value) for name, value in row.items()}, scaling)
             for point, row in zip(points, rows, strict=True)]  # fmt: skip
    return Bound(network=said, base=base.source, points=tuple(found))


def _point(point: PointScaling, row: dict[str, float], scaling: Scaling) -> BoundPoint:
    gain = scaling.base.seconds / row["epoch_s"]
    return BoundPoint(
        point=point,
        compute_s=row["compute_s"],
        straggler_s=row["straggler_s"],
        allreduce_s=row["allreduce_s"],
        step_s=row["step_s"],
        speedup=gain if scaling.scaling == "strong" else gain * point.ideal,
    )
