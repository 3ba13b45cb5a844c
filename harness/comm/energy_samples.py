"""Samples of counters made into energy, mean clocks and shares: arithmetic only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from harness.schema.energy import DeviceEnergy


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergySample:
    """What a device's counters read at `time_s`; None where it has no such counter.

    `counter_j` counts energy from some moment on. `held_down` are the reasons that hold its clock down at this moment.
    """

    device: str
    time_s: float
    counter_j: float | None = None
    power_w: float | None = None
    limit_w: float | None = None
    clock_mhz: float | None = None
    held_down: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def counted(readings: Sequence[float], wrap: float | None = None) -> float | None:
    """Return what a counter went up by from its first to its last reading, None where it went back or has no two.

    `wrap` is where the counter begins at 0 again, None for one that does not: it may do so once between two readings.
    """
    if len(readings) < 2:
        return None
    total = 0.0
    for before, after in pairwise(readings):
        step = after - before
        if step < 0 and wrap is not None:
            step += wrap
        if step < 0:
            return None
        total += step
    return total


def integrated(times: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the integral of `values` over `times` by trapezoids, None of less than two."""
    if len(times) < 2:
        return None
    total = 0.0
    for number in range(1, len(times)):
        total += (times[number] - times[number - 1]) * (values[number] + values[number - 1]) / 2
    return total


Window = tuple[float, float]
"""When something began and ended, by the clock of the samples."""


def samples_within(samples: Sequence[EnergySample], window: Window) -> list[EnergySample]:
    """Return those of one device's `samples`, the oldest first, that are in the window, and its ends between them.

    What counters read at the ends is interpolated. Empty where there are no two samples: too short for what changes in
    between.
    """
    begin, end = window
    inside = [sample for sample in samples if begin <= sample.time_s <= end]
    if len(inside) < 2:
        return []
    before = [sample for sample in samples if sample.time_s < begin]
    after = [sample for sample in samples if sample.time_s > end]
    first = [_between(before[-1], inside[0], begin)] if before and begin < inside[0].time_s else []
    last = [_between(inside[-1], after[0], end)] if after and inside[-1].time_s < end else []
    return [*first, *inside, *last]


def _between(before: EnergySample, after: EnergySample, time_s: float) -> EnergySample:
    """Return `after` with what power and counter, where it did not begin again, were at a moment between the two."""
    share = (time_s - before.time_s) / (after.time_s - before.time_s)
    counter_j = after.counter_j
    if before.counter_j is not None and counter_j is not None and before.counter_j <= counter_j:
        counter_j = before.counter_j + share * (counter_j - before.counter_j)
    power_w = after.power_w
    if before.power_w is not None and power_w is not None:
        power_w = before.power_w + share * (power_w - before.power_w)
    return replace(after, time_s=time_s, counter_j=counter_j, power_w=power_w)


def joined_energy(parts: Sequence[DeviceEnergy]) -> DeviceEnergy:
    """Return what one device used in several windows, at least one, as one: sums, and means over time."""
    seconds = sum(part.seconds for part in parts)
    clocks = [part.clock_mhz for part in parts if part.clock_mhz is not None]
    return replace(
        parts[-1],
        seconds=seconds,
        samples=sum(part.samples for part in parts),
        counter_j=_sum([part.counter_j for part in parts]),
        integral_j=_sum([part.integral_j for part in parts]),
        clock_mhz=_mean(clocks),
        held_down=_held_down_over_time(parts),
        missing=tuple(dict.fromkeys(name for part in parts for name in part.missing)),
    )


def _held_down_over_time(parts: Sequence[DeviceEnergy]) -> dict[str, float]:
    """Return the shares of the parts' time in which the clock was held down, by reason."""
    seconds = sum(part.seconds for part in parts)
    means: dict[str, float] = {}
    for part in parts:
        for reason, share in part.held_down.items():
            means[reason] = means.get(reason, 0.0) + share * part.seconds / seconds
    return means


def _sum(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) if len(present) == len(values) else None


def summarise(host: str, samples: Sequence[EnergySample], wrap_j: float | None = None) -> DeviceEnergy:
    """Return the energy of one device of `host` by its `samples`, the oldest first; `wrap_j` as in `counted`."""
    times = [sample.time_s for sample in samples]
    watts = [sample.power_w for sample in samples if sample.power_w is not None]
    readings = [sample.counter_j for sample in samples if sample.counter_j is not None]
    clocks = [sample.clock_mhz for sample in samples if sample.clock_mhz is not None]
    reasons = {reason for sample in samples for reason in sample.held_down}
    return DeviceEnergy(
        host=host,
        device=samples[0].device,
        seconds=times[-1] - times[0],
        samples=len(samples),
        counter_j=counted(readings, wrap_j) if len(readings) == len(samples) else None,
        integral_j=integrated(times, watts) if len(watts) == len(samples) else None,
        limit_w=samples[-1].limit_w,
        clock_mhz=_mean(clocks),
        held_down={reason: _share(samples, reason) for reason in sorted(reasons)},
        missing=tuple(dict.fromkeys(name for sample in samples for name in sample.missing)),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _share(samples: Sequence[EnergySample], reason: str) -> float:
    return sum(reason in sample.held_down for sample in samples) / len(samples)
