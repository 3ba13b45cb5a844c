"""The energy of a launch: the first rank of each node reads its devices' counters while all ranks train.

Counters are read once a second, and at both ends of every turn of a launch in turns. Between two readings they are
taken to rise evenly.
"""

import importlib.util
import os
import platform
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.base.turns import current_turns
from harness.comm.gpus import Gpu
from harness.comm.world import World
from harness.schema.record import DeviceEnergy
from harness.schema.record_notes import Note, NoteCode

PERIOD_S = 1.0
POWERCAP = Path("/sys/class/powercap")
Window = tuple[float, float]
"""When something began and ended, by time.monotonic."""


class EnergyCounter(Protocol):
    """The counter of one device, which counts joules from some moment on and begins at 0 again at `wrap_j`, if ever."""

    device: str
    wrap_j: float | None

    def joules(self) -> float | None:
        """Return what the counter reads now, None where the device has none."""


class GpuCounter:
    """The counter of the GPU with `uuid` by NVML, the module `pynvml`."""

    wrap_j: float | None = None

    def __init__(self, nvml: Any, uuid: str) -> None:
        self.device = uuid
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)

    def joules(self) -> float | None:
        """Return what the counter reads now, None where the device has none, as before Volta and in a MIG instance."""
        try:
            return 1e-3 * float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except self._nvml.NVMLError:
            return None


class ProcessorCounter:
    """The counter of one processor by RAPL, in a folder of Linux's powercap."""

    def __init__(self, folder: Path) -> None:
        self.device = (folder / "name").read_text().strip()
        self.wrap_j: float | None = 1e-6 * int((folder / "max_energy_range_uj").read_text())
        self._counter = folder / "energy_uj"

    def joules(self) -> float | None:
        """Return what the counter reads now, None where it cannot be read any more."""
        try:
            return 1e-6 * int(self._counter.read_text())
        except OSError:
            return None


def processor_counters(folder: Path = POWERCAP) -> list[EnergyCounter]:
    """Return the counters of the processors whose energy this user may read; most systems let nobody but root."""
    names = sorted(folder.glob("intel-rapl:*/name"))
    packages = [name.parent for name in names if name.read_text().startswith("package-")]
    return [ProcessorCounter(package) for package in packages if os.access(package / "energy_uj", os.R_OK)]


def energy_of(counter: EnergyCounter, times: Sequence[float], readings: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return what `counter` went up by from its first reading to each [readings]; empty where it cannot be said.

    Between two readings it may have begun again once where it does so at all; else it went back as its driver was
    loaded anew.
    """
    steps = np.diff(np.asarray(readings, dtype=float), prepend=readings[0])
    if counter.wrap_j is not None:
        steps[steps < 0] += counter.wrap_j
    return np.cumsum(steps) if (steps >= 0).all() and len(times) > 1 else np.empty(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredEnergy:
    """The energy of all devices of a launch, on rank 0, and why there is less than there could be."""

    devices: tuple[DeviceEnergy, ...] = ()
    notes: tuple[Note, ...] = ()


class EnergyReadings:
    """What the `counters` of one host read, from now until `close`."""

    def __init__(self, counters: Sequence[EnergyCounter]) -> None:
        self._counters = counters
        self._times: list[float] = []
        self._readings: list[list[float | None]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read_often, daemon=True)
        self.read()
        self._thread.start()
        if turns := current_turns():
            turns.at_ends = self.read

    def read(self) -> None:
        """Read all counters now."""
        with self._lock:
            self._times.append(time.monotonic())
            self._readings.append([counter.joules() for counter in self._counters])

    def _read_often(self) -> None:
        while not self._ended.wait(PERIOD_S):
            self.read()

    def close(self, host: str, windows: Sequence[Window] | None) -> list[DeviceEnergy]:
        """Read no more, and return the energy of every device of `host` in the `windows`; None for all the time."""
        self._ended.set()
        self._thread.join()
        if turns := current_turns():
            turns.at_ends = None
        self.read()
        times = self._times
        whole = (times[0], times[-1])
        clipped = [(max(begin, whole[0]), min(end, whole[1])) for begin, end in windows or [whole]]
        counted = [(begin, end) for begin, end in clipped if begin < end]
        seconds = sum(end - begin for begin, end in counted)
        devices = []
        for place, counter in enumerate(self._counters):
            readings = [joules for row in self._readings if (joules := row[place]) is not None]
            total = energy_of(counter, times, readings) if len(readings) == len(times) else np.empty(0)
            joules = float(np.diff(np.interp(counted, times, total)).sum()) if len(total) and counted else None
            missing = () if len(readings) == len(times) else ("energy",)
            devices.append(
                DeviceEnergy(
                    host=host,
                    device=counter.device,
                    seconds=seconds,
                    samples=len(times),
                    counter_j=joules,
                    missing=missing,
                )
            )
        return devices


class EnergyMeter:
    """Reads the counters of this rank's node where it is the node's first rank. On all ranks of `world` together."""

    def __init__(self, world: World, gpu: Gpu | None) -> None:
        self._world = world
        self._readings: EnergyReadings | None = None
        host = platform.node()
        places = world.comm.allgather((host, gpu.uuid if gpu else ""))
        gpus = tuple(dict.fromkeys(uuid for name, uuid in places if name == host and uuid))
        self._missing = "" if not gpus or importlib.util.find_spec("pynvml") else "nvidia-ml-py is not installed"
        if [name for name, _ in places].index(host) != world.rank:
            return
        counters = processor_counters()
        if gpus and not self._missing:
            import pynvml

            pynvml.nvmlInit()
            counters += [GpuCounter(pynvml, uuid) for uuid in gpus]
        if counters:
            self._readings = EnergyReadings(counters)

    def stop(self, windows: Sequence[Window] | None = None) -> MeasuredEnergy:
        """Return what was read on all nodes, on rank 0; on all ranks together.

        `windows` are the times in which this rank has trained; None from the start until now.
        """
        devices = self._readings.close(platform.node(), windows) if self._readings else []
        gathered = self._world.comm.gather((devices, self._missing), root=0)
        if gathered is None:
            return MeasuredEnergy()
        every = tuple(device for node_devices, _ in gathered for device in node_devices)
        missing = next((reason for _, reason in gathered if reason), "")
        if not missing and any(device.missing for device in every):
            missing = "the driver does not count energy"
        notes = (Note(code=NoteCode.NOT_COUNTED, values={"reason": missing}),) if missing else ()
        return MeasuredEnergy(devices=every, notes=notes)
