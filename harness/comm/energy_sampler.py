"""A process of its own that reads the counters of a node's GPUs and processors once a second.

python -m harness.comm.energy_sampler UUID ...   writes a line of JSON for every device and sample, until its standard
input ends, as it does when the rank that started it is gone.
"""

import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from harness.comm.energy_samples import EnergySample

PERIOD_S = 1.0
POWERCAP = Path("/sys/class/powercap")
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class GpuCounters:
    """The counters of one GPU by NVML, the module `pynvml`."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        self._uuid = uuid
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._missing: list[str] = []

    def sample(self, time_s: float) -> EnergySample:
        """Return what the counters read now."""
        nvml = self._nvml
        energy = self._read("energy", nvml.nvmlDeviceGetTotalEnergyConsumption, self._handle)
        power = self._read("power", nvml.nvmlDeviceGetPowerUsage, self._handle)
        limit = self._read("power limit", nvml.nvmlDeviceGetEnforcedPowerLimit, self._handle)
        clock = self._read("clock", nvml.nvmlDeviceGetClockInfo, self._handle, nvml.NVML_CLOCK_SM)
        reasons = self._read("clock reasons", nvml.nvmlDeviceGetCurrentClocksThrottleReasons, self._handle) or 0
        return EnergySample(
            device=self._uuid,
            time_s=time_s,
            counter_j=_in_thousandths(energy),
            power_w=_in_thousandths(power),
            limit_w=_in_thousandths(limit),
            clock_mhz=clock,
            held_down=tuple(name for bit, name in _REASONS.items() if reasons & bit),
            missing=tuple(self._missing),
        )

    def _read(self, what: str, function: Callable[..., Any], *words: Any) -> Any:
        """Return what the function does, None where the device has no such counter: not asked again."""
        if what in self._missing:
            return None
        try:
            return function(*words)
        except self._nvml.NVMLError:
            self._missing.append(what)
            return None


def _in_thousandths(value: int | None) -> float | None:
    """Return NVML's millijoules or milliwatts as joules or watts."""
    return None if value is None else 1e-3 * value


class ProcessorCounters:
    """The counter of one processor's energy by RAPL, in a folder of Linux's powercap."""

    def __init__(self, folder: Path) -> None:
        self._name = (folder / "name").read_text().strip()
        self._counter = folder / "energy_uj"

    def sample(self, time_s: float) -> EnergySample:
        """Return what the counter reads now."""
        return EnergySample(device=self._name, time_s=time_s, counter_j=1e-6 * int(self._counter.read_text()))


def readable_processors(folder: Path = POWERCAP) -> list[Path]:
    """Return the folders of the processors whose energy this user may read; most systems let nobody but root."""
    packages = sorted(folder.glob("intel-rapl:*/name"))
    chosen = [path.parent for path in packages if path.read_text().startswith("package-")]
    return [package for package in chosen if os.access(package / "energy_uj", os.R_OK)]


def processor_wrap_j(device: str, folder: Path = POWERCAP) -> float | None:
    """Return the joules at which a processor's counter begins again, None of what is no processor here."""
    for package in readable_processors(folder):
        if (package / "name").read_text().strip() == device:
            return 1e-6 * int((package / "max_energy_range_uj").read_text())
    return None


def run_sampler(counters: Sequence[GpuCounters | ProcessorCounters], ends: TextIO, out: TextIO) -> None:
    """Write a sample of all `counters` now, in every period, and when `ends` does."""
    encoder = msgspec.json.Encoder()
    running = True
    while True:
        now = time.monotonic()
        for counter in counters:
            out.write(encoder.encode(counter.sample(now)).decode() + "\n")
        out.flush()
        if not running:
            return
        readable, _, _ = select.select([ends], [], [], PERIOD_S)
        running = not readable  # nothing is ever written: readable is ended


def main() -> None:
    """Sample the GPUs of the command line and all readable processors."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the rank that started it is bound to its cores
    counters: list[GpuCounters | ProcessorCounters] = [ProcessorCounters(folder) for folder in readable_processors()]
    if sys.argv[1:]:
        import pynvml

        pynvml.nvmlInit()
        counters += [GpuCounters(pynvml, uuid) for uuid in sys.argv[1:]]
    run_sampler(counters, sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
