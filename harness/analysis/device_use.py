"""What the ranks' devices do: rows and floating-point operations a second, and their energy."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

import numpy as np
import pandas as pd

from harness.analysis.confidence_intervals import Interval
from harness.analysis.scaling import PointScaling, Scaling
from harness.schema.record import DeviceEnergy, RunRecord

# The peak rates of GPUs as their vendor states them: dense matrix products, without sparsity.
#
# float32 is computed in TF32 where the GPU has it, which is TensorFlow's default. Sources are NVIDIA's own, where most
# figures of Ampere and later are with sparsity, which doubles them:
#
# * "NVIDIA V100 Tensor Core GPU" (data sheet, 2020): SXM2, PCIe and V100S; "NVIDIA T4" (data sheet, 2019).
# * "NVIDIA A100 Tensor Core GPU", "A30", "A40", "A10" (data sheets, 2021): 312, 165, 149.7 and 125 without sparsity.
# * "NVIDIA L4", "L40", "L40S" (data sheets, 2023): 242, 362 and 733 with sparsity, in TF32 half of that.
# * "NVIDIA H100 Tensor Core GPU Architecture" (white paper): 989.4 and 494.7 of the SXM module, whose data sheet
#   rounds them; "NVIDIA H100" (data sheet): 1,513 of the PCIe card and 1,671 of the NVL card with sparsity.
# * "NVIDIA H200" (data sheet): as H100 SXM, and 1,671 of the NVL card.
# * "NVIDIA GH200 Grace Hopper Superchip" (data sheet): 990 and 494 without sparsity, the same chip as the SXM module.
#
# Copies of these sheets in public tables agree; none was found of A30, GH200 and the NVL cards.

_PRECISIONS = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16", "float32": "float32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuPeak:
    """The peaks of one kind of GPU in TFLOP/s; `pattern` is of its driver's name. None where it has no such type."""

    pattern: str
    float16: float
    bfloat16: float | None
    float32: float

    def of(self, precision: str) -> float | None:
        """Return the peak of a `precision` of `Workload`."""
        peaks = {"float16": self.float16, "bfloat16": self.bfloat16, "float32": self.float32}
        return peaks[_PRECISIONS[precision]]


PEAKS = (
    GpuPeak(pattern=r"(NVIDIA |Tesla )V100-SXM2-.*", float16=125.0, bfloat16=None, float32=15.7),
    GpuPeak(pattern=r"(NVIDIA |Tesla )V100-PCIE-.*", float16=112.0, bfloat16=None, float32=14.0),
    GpuPeak(pattern=r"(NVIDIA |Tesla )V100S-PCIE-.*", float16=130.0, bfloat16=None, float32=16.4),
    GpuPeak(pattern=r"(NVIDIA |Tesla )T4", float16=65.0, bfloat16=None, float32=8.1),
    GpuPeak(pattern=r"(NVIDIA )?A100[- ](SXM4|PCIE|PCIe|80GB).*", float16=312.0, bfloat16=312.0, float32=156.0),
    GpuPeak(pattern=r"(NVIDIA )?A30", float16=165.0, bfloat16=165.0, float32=82.0),
    GpuPeak(pattern=r"(NVIDIA )?A40", float16=149.7, bfloat16=149.7, float32=74.8),
    GpuPeak(pattern=r"(NVIDIA )?A10", float16=125.0, bfloat16=125.0, float32=62.5),
    GpuPeak(pattern=r"NVIDIA L4", float16=121.0, bfloat16=121.0, float32=60.0),
    GpuPeak(pattern=r"NVIDIA L40", float16=181.0, bfloat16=181.0, float32=90.5),
    GpuPeak(pattern=r"NVIDIA L40S", float16=362.0, bfloat16=362.0, float32=183.0),
    GpuPeak(pattern=r"NVIDIA (H100 80GB HBM3|H200|GH200 .*)", float16=989.4, bfloat16=989.4, float32=494.7),
    GpuPeak(pattern=r"NVIDIA H100 PCIe", float16=756.5, bfloat16=756.5, float32=378.0),
    GpuPeak(pattern=r"NVIDIA (H100|H200) NVL", float16=835.5, bfloat16=835.5, float32=417.5),
)


def gpu_peak(gpu: str, precision: str) -> float | None:
    """Return the stated peak in TFLOP/s of a record's `gpu`, None of one that is not in the table, or a part of one."""
    name = gpu.partition(",")[0]
    for peak in PEAKS:
        if re.fullmatch(peak.pattern, name) and "MIG" not in name:
            return peak.of(precision)
    return None


# What the ranks' devices do: rows and floating-point operations a second, and the energy of a row.
#
# A rank's device is its GPU, or the cores that it trains on.

_TERA = 1e12


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceUse:
    """The means over a point's ranks: rows a second with their 95 % CI, and TFLOP/s of model operations.

    `peak_tflops` is what a rank's device does at most by its vendor or by the user, `utilisation` the part of it that
    is used. `joules_per_row` and `watts` are of GPUs, else of processors: a row of all ranks, and one device. All are
    None where they are not known.
    """

    rows_per_second: float
    rows_interval: Interval | None
    tflops: float | None
    peak_tflops: float | None
    utilisation: float | None
    joules_per_row: float | None
    watts: float | None


def stated_peak(run: RunRecord, stated: float | None) -> float | None:
    """Return the peak in TFLOP/s of a rank's device in `run`: what the user has `stated`, else its vendor."""
    workload = run.point.workload
    asked = stated or workload.peak_tflops
    return asked or gpu_peak(run.ranks[0].gpu, workload.precision)


def device_uses(
    runs: Sequence[RunRecord], launches: pd.DataFrame, scaling: Scaling, stated: float | None
) -> dict[str, DeviceUse]:
    """Return the use of the devices of every point, by its layout.

    `runs` are the valid launches, `launches` is `launch_frames.launch_frame` of them or more.
    """
    per_row = joules_per_row(launches, runs)
    of_layout = by_layout(runs)
    return {point.layout: _use(point, of_layout[point.layout], per_row, stated) for point in scaling.points}


def by_layout(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Return the `runs` of every layout, by its name."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(str(run.point.layout), []).append(run)
    return groups


def joules_per_row(launches: pd.DataFrame, runs: Sequence[RunRecord]) -> "pd.Series[float]":
    """Return the energy of a row of each launch of `launches` (`launch_frames.launch_frame` of `runs`), by its folder.

    Of a launch in turns it is the mean power times the time including interference, and likewise of one that was taken
    up again, whose counters tell of its last attempt alone.
    """
    by_run = {run.point.folder: run for run in runs}
    values = []
    columns = ["run", "rows", "epochs", "seconds", "ran_seconds"]
    for run, rows, epochs, seconds, ran_seconds in launches[columns].itertuples(index=False):
        energy = launch_energy(by_run[run]) if run in by_run else None
        if energy is None:
            values.append(np.nan)
        elif by_run[run].block:
            values.append(energy.joules / energy.seconds * ran_seconds / rows)
        elif by_run[run].segments:
            values.append(energy.joules / energy.seconds * seconds / rows)
        else:
            values.append(energy.joules / (rows * epochs))
    return pd.Series(values, index=launches["run"], dtype=float)


def _use(point: PointScaling, runs: Sequence[RunRecord], joules: "pd.Series[float]", stated: float | None) -> DeviceUse:
    rate = point.rows_per_second / point.ranks
    interval = point.rows_interval
    flops = runs[0].flops_per_row
    tflops = None if flops is None else flops * rate / _TERA
    peak = stated_peak(runs[0], stated)
    energies = [energy for run in runs if (energy := launch_energy(run)) is not None]
    per_row = joules[[run.point.folder for run in runs]].dropna()
    return DeviceUse(
        rows_per_second=rate,
        rows_interval=interval.scaled(1 / point.ranks) if interval else None,
        tflops=tflops,
        peak_tflops=peak,
        utilisation=tflops / peak if tflops and peak else None,
        joules_per_row=float(per_row.mean()) if len(per_row) else None,
        watts=fmean(energy.watts for energy in energies) if energies else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEnergy:
    """The energy of all devices of one kind of a launch in joules, in what time, and the mean power of one of them."""

    joules: float
    seconds: float
    watts: float


def launch_energy(run: RunRecord) -> LaunchEnergy | None:
    """Return the energy of a launch's GPUs, of its processors where it has none; None where one was not counted."""
    gpus = [device for device in run.energy if device.is_gpu]
    return energy_of(gpus or run.energy)


def energy_of(devices: Sequence[DeviceEnergy]) -> LaunchEnergy | None:
    """Return the energy of some `devices` of a launch; None where there are none or one was not counted."""
    joules = [device.joules for device in devices if device.joules is not None]
    watts = [device.watts for device in devices if device.watts is not None]
    if not devices or len(joules) < len(devices) or len(watts) < len(devices):
        return None
    return LaunchEnergy(joules=sum(joules), seconds=devices[0].seconds, watts=fmean(watts))


def with_device_use(launches: pd.DataFrame, runs: Sequence[RunRecord], stated: float | None) -> pd.DataFrame:
    """Return `launches` (`launch_frame` of `runs`) with what their devices did, NaN where it is not known.

    Columns: rows_per_second_per_rank, flops_per_row, flop_utilisation, energy_j, joules_per_row and power_w, which are
    those of `DeviceUse`.
    """
    by_run = {run.point.folder: run for run in runs}
    every = [by_run[folder] for folder in launches["run"]]
    rates = launches["rows_per_second"] / launches["ranks"]
    energies = [launch_energy(run) for run in every]
    joules = np.array([energy.joules if energy else np.nan for energy in energies])
    tera_flops = np.array([np.nan if run.flops_per_row is None else run.flops_per_row / _TERA for run in every])
    peaks = np.array([stated_peak(run, stated) or np.nan for run in every])
    return launches.assign(
        rows_per_second_per_rank=rates,
        flops_per_row=tera_flops * _TERA,
        flop_utilisation=tera_flops * rates / peaks,
        energy_j=joules,
        joules_per_row=joules_per_row(launches, runs).to_numpy(),
        power_w=[energy.watts if energy else np.nan for energy in energies],
    )


# What the devices of a sweep's launches used, over layouts.


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
        uses.append(_energy_of(launches, layout=layout, ranks=ranks, kind=kind))
    return tuple(uses)


def _energy_of(launches: Sequence[Sequence[DeviceEnergy]], *, layout: str, ranks: int, kind: DeviceKind) -> EnergyUse:
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
