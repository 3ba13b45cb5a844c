"""Link costs for a prediction, and the step that a network of such links allows."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.read_results import Loaded
from harness.analysis.scaling import PointScaling, Scaling
from harness.base.errors import UserError
from harness.prediction.allreduce import BEST, Levels, Link
from harness.prediction.measured_base import measured_base
from harness.prediction.model import Uncertain, predict
from harness.probe.probe_store import newest_probe, read_probe
from harness.schema.message_cost import (
    ALLREDUCE,
    NETWORK,
    NODE,
    POINT_TO_POINT,
    Estimate,
    MessageCost,
    MessageCosts,
    Probe,
)
from harness.schema.workload import is_script

_LEFT_OUT = "; the additions of an allreduce are left out"
_PAIR = re.compile(r"([0-9.eE+-]+)\s*,\s*([0-9.eE+-]+)")


def read_links(text: str, node: str | None, ranks_per_node: int) -> tuple[Uncertain, str]:
    """Return the levels that the user's texts describe, and one sentence about them.

    `text` is ``ALPHA,BETA`` (seconds, seconds per byte) or a probe.json; `node` the same pair for inside a node.

    Raises:
        UserError: the text is neither, a cost is negative, or the probe cannot be read or lacks the costs.
    """
    pair = _PAIR.fullmatch(text.strip())
    if pair:
        between = _link("NETWORK", text)
        inside = _link("NODE", node) if node else None
        levels = Levels(network=between, node=inside, ranks_per_node=ranks_per_node)
        said = f"alpha {between.alpha_s * 1e6:g} µs and {_rate(between.beta_s_per_byte)}, as given" + _LEFT_OUT
        return Uncertain.exact(levels), said
    path = Path(text)
    if not path.is_file():
        raise UserError(f"NETWORK={text} is neither ALPHA,BETA in seconds and seconds per byte nor a probe.json")
    return probe_links(read_probe(path), ranks_per_node)


def probe_links(probe: Probe, ranks_per_node: int) -> tuple[Uncertain, str]:
    """Return the levels that `probe` measured from point to point, and one sentence.

    Where the probe saw one host only, a link between two of its ranks stands for every link, and that is said.

    Raises:
        UserError: the probe is invalid or has no point-to-point cost.
    """
    if probe.invalid:
        raise UserError(f"the {_name(probe)} is invalid ({probe.invalid[0]}): run `harness probe` again")
    costs = probe.by_setting[0]
    node, between = costs.find(POINT_TO_POINT, NODE), costs.find(POINT_TO_POINT, NETWORK)
    outer = between or node
    if outer is None:
        raise UserError(f"the {_name(probe)} has no point-to-point cost: run `harness probe` again on 2 ranks or more")
    where = "between hosts" if between else "inside one host, which stands for the network too"
    if not node:
        where += ", which stands for inside a host too"
    adding = _adding(costs)
    ends = [
        Levels(
            network=_end(outer, end),
            node=_end(node, end) if node else None,
            ranks_per_node=ranks_per_node,
            add_s_per_byte=max(0.0, adding[end]),
        )
        for end in ("value", "low", "high")
    ]
    said = f"alpha {outer.alpha_s.value * 1e6:.3g} µs and {_rate(outer.beta_s_per_byte.value)}, probed {where}"
    adds = (
        f"; additions {_rate(ends[0].add_s_per_byte)}, from the probed allreduce" if adding["value"] > 0 else _LEFT_OUT
    )
    said += adds
    return Uncertain(value=ends[0], low=ends[1], high=ends[2]), said


def _adding(costs: MessageCosts) -> dict[str, float]:
    """Return the seconds of adding a byte: what the probed allreduce takes beyond sending 2(p-1)/p of its bytes."""
    for level in (NODE, NETWORK):
        sending, summing = costs.find(POINT_TO_POINT, level), costs.find(ALLREDUCE, level)
        if sending and summing and summing.ranks > 1:
            share = (summing.ranks - 1) / summing.ranks
            others = {"value": "value", "low": "high", "high": "low"}
            return {
                end: _pick(summing.beta_s_per_byte, end) / share - 2 * _pick(sending.beta_s_per_byte, other)
                for end, other in others.items()
            }
    return dict.fromkeys(("value", "low", "high"), 0.0)


def _name(probe: Probe) -> str:
    return f"probe of {probe.measured:%Y-%m-%d %H:%M} UTC on {probe.machine.hostname}"


def _end(cost: MessageCost, end: str) -> Link:
    return Link(alpha_s=_pick(cost.alpha_s, end), beta_s_per_byte=_pick(cost.beta_s_per_byte, end))


def _pick(estimate: Estimate, end: str) -> float:
    value = {"value": estimate.value, "low": estimate.low, "high": estimate.high}[end]
    return max(0.0, estimate.value if value is None else value)


def _link(field: str, text: str) -> Link:
    match = _PAIR.fullmatch(text.strip())
    try:
        alpha, beta = (float(match[1]), float(match[2])) if match else (-1.0, -1.0)
    except ValueError:
        alpha = beta = -1.0
    if not (alpha >= 0 and beta >= 0):
        raise UserError(f"{field}={text} is no ALPHA,BETA: write seconds and seconds per byte, such as 2e-6,1e-10")
    return Link(alpha_s=alpha, beta_s_per_byte=beta)


def _rate(beta: float) -> str:
    return f"{1 / beta / 1e9:.3g} GB/s" if beta > 0 else "no cost per byte"


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
