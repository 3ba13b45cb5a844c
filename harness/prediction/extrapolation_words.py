"""What an extrapolation rests on, in sentences for its page."""

from harness.analysis.scaling import PointScaling
from harness.analysis.units import percent
from harness.analysis.units import ranks as rank_words
from harness.prediction.epoch_draws import FIXED, SHARED, WAIT
from harness.prediction.measured_base import MeasuredBase
from harness.prediction.network_cost import OVERHEAD


def what_it_rests_on(
    fewest: PointScaling, most: PointScaling, base: MeasuredBase, network: str = ""
) -> tuple[str, ...]:
    """Return what a series rests on, measured or assumed, a sentence each.

    It goes on from `most`, and `fewest` is the point on the fewest ranks; `network` describes the stated one.
    """
    is_one_rank = most.ranks == 1
    start = rank_words(most.ranks)
    parts = "computation" if is_one_rank else "computation, waits and sums"
    return (
        f"Goes on from {start}: {parts} of a step as measured there.",
        _computation(fewest, most, base, network),
        _wait(base, is_one_rank=is_one_rank),
        _sums(start, network, is_one_rank=is_one_rank),
        "Assumed: every rank has a core like these to itself. The band holds 95 % of what these allow.",
    )


def _computation(fewest: PointScaling, most: PointScaling, base: MeasuredBase, network: str) -> str:
    start = rank_words(most.ranks)
    if base.workload.global_batch is not None:
        cost = "what the measured counts say" if fewest.ranks < most.ranks else f"{percent(FIXED)} of it"
        return f"Assumed: the fixed cost of a step is anything from none to twice {cost}."
    if network:
        return "Assumed: one rank on each node, which has the node's memory to itself."
    if fewest.ranks < most.ranks:
        return (
            f"Assumed: a rank computes as on {start}, or slows with each doubling up to as much as from "
            f"{rank_words(fewest.ranks)} to {start}."
        )
    return f"Assumed: each doubling of the ranks costs up to {percent(SHARED)} of the computation."


def _wait(base: MeasuredBase, *, is_one_rank: bool) -> str:
    if is_one_rank and not base.jitter:
        return f"Assumed, as one rank waits for none: a wait of {percent(WAIT[0], 1)} to {percent(WAIT[1])} on 2 ranks."
    growth = "as the slowest of p drawn from the measured steps" if base.jitter else "as the largest of p normals"
    return f"The wait for the slowest rank grows {growth}, to the power 1/2 to 3/2."


def _sums(start: str, network: str, *, is_one_rank: bool) -> str:
    if network:
        return (
            f"Sums: the cheapest allreduce in closed form with {network}, or up to {percent(OVERHEAD[1] - 1)} more, as "
            f"libraries are not that good, or {percent(1 - OVERHEAD[0])} less, as sums that follow each other overlap."
        )
    if is_one_rank:
        return (
            "Assumed, as one rank sums nothing: sums of 0.5 to 20 µs and 1 to 10 GB/s a message; "
            "NETWORK=ALPHA,BETA states others."
        )
    return (
        f"The cost of the sums is that of the launches on {start}, not probed. Assumed: 0.5 to 50 µs of it are "
        "latency, which grows by log2 p to p - 1, the rest bytes, which grow from (p - 1)/p to p."
    )
