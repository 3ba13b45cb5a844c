"""What the devices of a sweep's launches used, over layouts."""

from collections.abc import Sequence
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

    `joules` are of all `devices` of a launch in `seconds`, `watts` of one.
    """

    layout: str
    ranks: int
    kind: DeviceKind
    launches: int
    devices: int
    seconds: float
    joules: float | None
    watts: float | None


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
    return EnergyUse(
        layout=layout,
        ranks=ranks,
        kind=kind,
        launches=len(launches),
        devices=max(map(len, launches)),
        seconds=fmean(device.seconds for device in every),
        joules=_mean([_joules(devices) for devices in launches]),
        watts=_mean([device.watts for device in every]),
    )


def _joules(devices: Sequence[DeviceEnergy]) -> float | None:
    """Return the energy of all of a launch's devices, None where one was not counted."""
    joules = [device.joules for device in devices if device.joules is not None]
    return sum(joules) if len(joules) == len(devices) else None


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that there are, None of none."""
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
