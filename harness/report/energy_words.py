"""A launch's energy in words."""

from collections.abc import Sequence

from harness.analysis import units
from harness.analysis.device_use import energy_of
from harness.schema.energy import DeviceEnergy
from harness.schema.record import RunRecord


def energy_words(run: RunRecord) -> str:
    """Return what the devices of `run` used, by kind; empty where nothing was counted."""
    gpus = [device for device in run.energy if device.is_gpu]
    processors = [device for device in run.energy if not device.is_gpu]
    parts = [_kind(gpus, "GPU"), _kind(processors, "processor")]
    words = "; ".join(filter(None, parts))
    return f"{run.point.layout}: {words}" if words else ""


def _kind(devices: Sequence[DeviceEnergy], name: str) -> str:
    energy = energy_of(devices)
    if energy is None:
        return ""
    words = [
        f"{units.plural(len(devices), name)} used {units.significant(energy.joules, 3)} J",
        f"in {units.seconds(energy.seconds)}",
        f"{units.significant(len(devices) * energy.watts, 3)} W",
    ]
    words += [*_difference(devices), *_use(devices)]
    return ", ".join(words)


def _difference(devices: Sequence[DeviceEnergy]) -> list[str]:
    """Return how far the integral of power is from the counter, where it is furthest."""
    differences = [device.difference for device in devices if device.difference is not None]
    if not differences:
        return []
    furthest = max(differences, key=abs)
    return [f"the integral of power {100 * furthest:+.1f} % from the counter"]


def _use(devices: Sequence[DeviceEnergy]) -> list[str]:
    """Return limits, clocks, what held them down and how far units were in use, of the first device."""
    device = devices[0]
    words = []
    if device.limit_w is not None:
        words.append(f"limit {units.significant(device.limit_w, 3)} W each")
    if device.clock_mhz is not None:
        words.append(f"{device.clock_mhz:.0f} MHz")
    words += [f"held down by {reason} {100 * share:.0f} % of the time" for reason, share in device.held_down.items()]
    for name, value in device.utilisation.items():
        words.append(f"{name} {value:.0f} MiB/s" if name == "nvlink" else f"{name} {100 * value:.0f} %")
    return words
