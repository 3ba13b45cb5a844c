"""What the devices of a sweep's launches used, over layouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from harness.schema.energy import DeviceEnergy
from harness.schema.record import RunRecord


class DeviceKind(StrEnum):
    """What has counters of its own."""

    GPU = "GPU"
    PROCESSOR = "processor"


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyUse:
    """The devices of one kind in the launches of one layout: means over `launches`; None is what nobody counts.

    `joules` are of all `devices` of a launch in `seconds`, `watts`, `limit_w` and `clock_mhz` of one. `difference` is
    how far the integral of power is from the counter, relative to it, where that is most. `held_down` is as in
    `DeviceEnergy`, means over the devices.
    """

    layout: str
    ranks: int
    kind: DeviceKind
    launches: int
    devices: int
    seconds: float
    joules: float | None
    watts: float | None
    limit_w: float | None
    difference: float | None
    clock_mhz: float | None
    held_down: Mapping[str, float]


def energy_uses(runs: Sequence[RunRecord]) -> tuple[EnergyUse, ...]:
    """Return what the devices of `runs` used, by layout in the order of ranks, and kind; none without counters."""
    groups: dict[tuple[int, str, DeviceKind], list[list[DeviceEnergy]]] = {}
    for run in runs:
        by_kind: dict[DeviceKind, list[DeviceEnergy]] = {}
        for device in run.energy:
            by_kind.setdefault(DeviceKind.GPU if device.is_gpu else DeviceKind.PROCESSOR, []).append(device)
        for kind, devices in by_kind.items():
            key = (run.point.layout.ranks, str(run.point.layout), kind)
            groups.setdefault(key, []).append(devices)
    uses = []
    for (ranks, layout, kind), launches in sorted(groups.items(), key=lambda group: group[0][:2]):
        uses.append(_use(launches, layout=layout, ranks=ranks, kind=kind))
    return tuple(uses)


def _use(launches: Sequence[Sequence[DeviceEnergy]], *, layout: str, ranks: int, kind: DeviceKind) -> EnergyUse:
    every = [device for devices in launches for device in devices]
    differences = [device.difference for device in every if device.difference is not None]
    return EnergyUse(
        layout=layout,
        ranks=ranks,
        kind=kind,
        launches=len(launches),
        devices=max(map(len, launches)),
        seconds=fmean(device.seconds for device in every),
        joules=_mean([_joules(devices) for devices in launches]),
        watts=_mean([device.watts for device in every]),
        limit_w=_mean([device.limit_w for device in every]),
        difference=max(differences, key=abs) if differences else None,
        clock_mhz=_mean([device.clock_mhz for device in every]),
        held_down=_shares([device.held_down for device in every]),
    )


def _joules(devices: Sequence[DeviceEnergy]) -> float | None:
    """Return the energy of all of a launch's devices, None where one was not counted."""
    joules = [device.joules for device in devices if device.joules is not None]
    return sum(joules) if len(joules) == len(devices) else None


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that there are, None of none."""
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


def _shares(devices: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every reason over all devices; one that lacks it was never held down by it."""
    totals: dict[str, float] = {}
    for device in devices:
        for name, share in device.items():
            totals[name] = totals.get(name, 0.0) + share
    return {name: total / len(devices) for name, total in totals.items()}
