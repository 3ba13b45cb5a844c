"""Link costs for a prediction: two numbers, or what `harness probe` measured."""

import re
from pathlib import Path

from harness.base.errors import UserError
from harness.prediction.allreduce import Levels, Link
from harness.prediction.model import Uncertain
from harness.probe.store import read_probe
from harness.schema.message_cost import ALLREDUCE, NETWORK, NODE, POINT_TO_POINT, Cost, Estimate, MessageCosts, Probe

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


def _end(cost: Cost, end: str) -> Link:
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
