"""The energy of a launch: one process on each node samples its devices while all ranks train."""

import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import msgspec

from harness.comm.energy_sampler import PERIOD_S, processor_wrap_j, readable_processors
from harness.comm.energy_samples import EnergySample, Window, joined_energy, samples_within, summarise
from harness.comm.gpus import Gpu
from harness.comm.world import World
from harness.schema.energy import DeviceEnergy
from harness.schema.record_notes import Note, NoteCode

_END_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredEnergy:
    """The energy of all devices of a launch, on rank 0, and why there is less than there could be."""

    devices: tuple[DeviceEnergy, ...] = ()
    notes: tuple[Note, ...] = ()


class EnergyMeter:
    """The sampler of this rank's node where it is the node's first rank; nothing elsewhere.

    On all ranks of `world` together. The sampler ends with this process whatever becomes of it, since it reads from it.
    """

    def __init__(self, world: World, gpu: Gpu | None) -> None:
        self._world = world
        self._sampler: subprocess.Popen[bytes] | None = None
        self._lines: IO[bytes] | None = None
        places = world.comm.allgather((platform.node(), gpu.uuid if gpu else ""))
        host = platform.node()
        gpus = tuple(dict.fromkeys(uuid for name, uuid in places if name == host and uuid))
        is_first = [name for name, _ in places].index(host) == world.rank
        self._missing = "" if not gpus or importlib.util.find_spec("pynvml") else "nvidia-ml-py is not installed"
        if self._missing:
            gpus = ()
        if is_first and (gpus or readable_processors()):
            self._start(gpus)

    def _start(self, gpus: tuple[str, ...]) -> None:
        self._lines = tempfile.TemporaryFile()  # noqa: SIM115 - read and closed when the sampler has ended
        words = [sys.executable, "-m", __name__.replace("energy_meter", "energy_sampler"), *gpus]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
        self._sampler = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=self._lines, stderr=subprocess.DEVNULL, env=environment
        )

    def stop(self, windows: Sequence[Window] | None = None) -> MeasuredEnergy:
        """End the sampler and return what all nodes' samplers have found, on all ranks together.

        `windows` are the times in which this rank has trained, by time.monotonic; None from the start until now.
        """
        devices = self._finish(windows)
        gathered = self._world.comm.gather((devices, self._missing), root=0)
        if gathered is None:
            return MeasuredEnergy()
        every = tuple(device for node_devices, _ in gathered for device in node_devices)
        missing = next((reason for _, reason in gathered if reason), "")
        if not missing:
            absent = dict.fromkeys(name for device in every for name in device.missing)
            missing = f"the driver does not count {', '.join(absent)}" if absent else ""
        notes = (Note(code=NoteCode.NOT_COUNTED, values={"reason": missing}),) if missing else ()
        return MeasuredEnergy(devices=every, notes=notes)

    def _finish(self, windows: Sequence[Window] | None) -> list[DeviceEnergy]:
        if self._sampler is None or self._lines is None:
            return []
        assert self._sampler.stdin is not None
        self._sampler.stdin.close()
        try:
            code = self._sampler.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._sampler.kill()
            code = self._sampler.wait()
        if code:
            self._missing = f"the sampler of counters ended with code {code}"
        self._lines.seek(0)
        samples = [msgspec.json.decode(line, type=EnergySample) for line in self._lines if line.endswith(b"\n")]
        self._lines.close()
        devices = by_device(platform.node(), samples, windows)
        if samples and not devices:
            self._missing = f"no time of training has two samples of the counters, which are {PERIOD_S:g} s apart"
        return devices


def by_device(
    host: str, samples: Sequence[EnergySample], windows: Sequence[Window] | None = None
) -> list[DeviceEnergy]:
    """Return the energy of every device of `host` that has `samples`, in the `windows` that have two or more of them.

    Without windows it is of all samples.
    """
    series: dict[str, list[EnergySample]] = {}
    for sample in samples:
        series.setdefault(sample.device, []).append(sample)
    energies = []
    for device, device_samples in series.items():
        pieces = [device_samples] if windows is None else [samples_within(device_samples, window) for window in windows]
        parts = [summarise(host, piece, processor_wrap_j(device)) for piece in pieces if piece]
        if parts:
            energies.append(joined_energy(parts))
    return energies
