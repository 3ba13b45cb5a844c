"""What the ranks' devices do: rows and floating-point operations a second, and the energy of a row.

A rank's device is its GPU, or the cores that it trains on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pandas as pd

from harness.analysis.confidence_intervals import Interval
from harness.analysis.gpu_peaks import gpu_peak
from harness.analysis.scaling import PointScaling, Scaling
from harness.schema.energy import DeviceEnergy
from harness.schema.record import RunRecord

_TERA = 1e12


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceUse:
    """The means over a point's ranks: rows a second with their 95 % interval, and TFLOP/s of model operations.

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
    uses = {}
    for point in scaling.points:
        of_layout = [run for run in runs if str(run.point.layout) == point.layout]
        uses[point.layout] = _use(point, of_layout, per_row, stated)
    return uses


def joules_per_row(launches: pd.DataFrame, runs: Sequence[RunRecord]) -> "pd.Series[float]":
    """Return the energy of a row of each launch of `launches` (`launch_frames.launch_frame` of `runs`), by its folder.

    Of a launch in turns it is the mean power times the time as it ran, and likewise of one that was taken up again,
    whose counters tell of its last attempt alone.
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
