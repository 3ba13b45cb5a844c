"""What a probe found, in words."""

from harness.report import numbers
from harness.spec.network import Cost, Estimate


def rate(seconds_per_byte: float) -> str:
    """Return a bandwidth: ``12.3 GB/s``, or a dash where the time does not grow with the bytes."""
    if seconds_per_byte <= 0:
        return numbers.NONE
    return f"{numbers.significant(1e-9 / seconds_per_byte)} GB/s"


def span(estimate: Estimate) -> str:
    """Return the interval of a duration, a dash where there is none."""
    if estimate.low is None or estimate.high is None:
        return numbers.NONE
    return f"{numbers.seconds(estimate.low)} to {numbers.seconds(estimate.high)}"


def rate_span(estimate: Estimate) -> str:
    """Return the interval of a bandwidth whose seconds per byte are `estimate`."""
    if estimate.low is None or estimate.high is None:
        return numbers.NONE
    return f"{rate(estimate.high)} to {rate(estimate.low)}"


def doubt(cost: Cost) -> str:
    """Return what is wrong with the line, an empty text where it fits."""
    if cost.good:
        return ""
    return f"bad fit: off by {numbers.percent(cost.worst_error)} at {cost.worst_bytes:,} B; use the times themselves"


def cost_line(cost: Cost) -> str:
    """Return one line of text about `cost`."""
    who = f"{cost.operation}, {cost.level}, {numbers.ranks(cost.ranks)}"
    fitted = (
        f"alpha {numbers.seconds(cost.alpha_s.value)} ({span(cost.alpha_s)}), "
        f"{rate(cost.beta_s_per_byte.value)} ({rate_span(cost.beta_s_per_byte)})"
    )
    return f"{who}: {fitted}" + (f"; {doubt(cost)}" if doubt(cost) else "")
