"""Samples of counters made into energy, mean clocks and shares: arithmetic only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from harness.schema.energy import DeviceEnergy


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergySample:
    """What a device's counters read at `time_s`; None where it has no such counter.

    `counter_j` counts energy from some moment on. `held_down` are the reasons that hold its clock down at this moment,
    `utilisation` is as in `DeviceEnergy`, since the sample before.
    """

    device: str
    time_s: float
    counter_j: float | None = None
    power_w: float | None = None
    limit_w: float | None = None
    clock_mhz: float | None = None
    held_down: tuple[str, ...] = ()
    utilisation: Mapping[str, float] = field(default_factory=dict)
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
        utilisation=_mean_utilisation(samples),
        missing=tuple(dict.fromkeys(name for sample in samples for name in sample.missing)),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _share(samples: Sequence[EnergySample], reason: str) -> float:
    return sum(reason in sample.held_down for sample in samples) / len(samples)


def _mean_utilisation(samples: Sequence[EnergySample]) -> dict[str, float]:
    """Return the means over time of what the counters said of the time since the sample before."""
    totals: dict[str, float] = {}
    durations: dict[str, float] = {}
    for before, sample in pairwise(samples):
        duration = sample.time_s - before.time_s
        for name, value in sample.utilisation.items():
            totals[name] = totals.get(name, 0.0) + duration * value
            durations[name] = durations.get(name, 0.0) + duration
    return {name: total / durations[name] for name, total in sorted(totals.items()) if durations[name]}
