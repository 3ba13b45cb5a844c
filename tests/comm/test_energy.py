"""Energy by samples whose truth is known, and the sampler with counters as files."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness.comm.energy_meter import EnergyMeter, by_device
from harness.comm.energy_sampler import GpuCounters, ProcessorCounters, processor_wrap_j, readable_processors
from harness.comm.energy_samples import EnergySample, counted, integrated, samples_within, summarise
from harness.comm.world import World
from tests.labs.communicators import Alone


def sampled(seconds: float, watts: float, counter_j: float) -> EnergySample:
    return EnergySample(
        device="GPU-1",
        time_s=seconds,
        power_w=watts,
        counter_j=counter_j,
        limit_w=700.0,
        clock_mhz=1000 + watts,
        held_down=("power cap",) if watts > 300 else (),
    )


def test_power_that_rises_evenly_is_integrated_exactly_at_uneven_times() -> None:
    """P = 100 + 20 t watts from 0 to 10 s are 2000 J; the counter is planted 5 % above."""
    samples = [sampled(t, 100 + 20 * t, 7.0 + 1.05 * (100 * t + 10 * t * t)) for t in (0, 0.5, 3, 9.9, 10)]
    energy = summarise("node1", samples)
    assert energy.integral_j == pytest.approx(2000)
    assert energy.counter_j == pytest.approx(2100)
    assert energy.difference == pytest.approx(2000 / 2100 - 1)
    assert energy.joules == energy.counter_j
    assert energy.watts == pytest.approx(210)
    assert (energy.seconds, energy.samples, energy.limit_w) == (10, 5, 700)


def test_clocks_and_reasons_are_means_over_samples() -> None:
    samples = [sampled(0, 900, 0), sampled(1, 400, 400), sampled(4, 200, 1000)]
    energy = summarise("node1", samples)
    assert energy.clock_mhz == pytest.approx(1500)
    assert energy.held_down == {"power cap": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    ("readings", "wrap", "joules"),
    [
        ([5, 7, 11], None, 6),
        ([90, 98, 3, 5], 100, 15),  # it began again once
        ([98, 3, 98, 3], 100, 105),  # twice
        ([5, 3], None, None),  # a driver that was loaded anew
        ([5], 100, None),
        ([], None, None),
    ],
)
def test_a_counter_may_begin_again(readings: list[float], wrap: float | None, joules: float | None) -> None:
    assert counted(readings, wrap) == joules


def test_one_sample_has_no_integral() -> None:
    assert integrated([1.0], [100.0]) is None


def test_a_counter_that_fails_in_between_is_not_taken() -> None:
    samples = [sampled(0, 100, 0), EnergySample(device="GPU-1", time_s=1, power_w=100, missing=("energy",))]
    energy = summarise("node1", samples)
    assert (energy.counter_j, energy.integral_j, energy.joules) == (None, 100, 100)
    assert energy.missing == ("energy",)
    assert energy.difference is None


def test_the_energy_of_windows_is_that_between_their_ends() -> None:
    """P = 100 + 20 t watts: from 2.5 to 5.5 s 540 J, from 7 to 9 s 520 J; the last window has no two samples."""
    samples = [sampled(t, 100 + 20 * t, 7.0 + 100 * t + 10 * t * t) for t in range(11)]
    windows = [(2.5, 5.5), (7.0, 9.0), (9.1, 10.0)]
    pieces = [samples_within(samples, window) for window in windows]
    assert [[sample.time_s for sample in piece] for piece in pieces] == [[2.5, 3, 4, 5, 5.5], [7, 8, 9], []]
    (energy,) = by_device("node1", samples, windows)
    assert (energy.seconds, energy.samples) == (5.0, 8)
    assert energy.integral_j == pytest.approx(540 + 520)
    assert energy.counter_j == pytest.approx(540 + 520, rel=0.01)  # linear between samples, where the truth is curved
    assert energy.watts == pytest.approx(212, rel=0.01)
    assert by_device("node1", samples, [(9.1, 10.0)]) == []


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Return a folder as Linux has it: a processor, its memory, and a processor that may not be read."""
    for name, text in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "dram"), ("intel-rapl:1", "package-1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(f"{text}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("262143328850\n")
        if name != "intel-rapl:1":
            (tmp_path / name / "energy_uj").write_text("2500000\n")
    return tmp_path


def test_readable_processors_are_found_with_their_counters(powercap: Path) -> None:
    (package,) = readable_processors(powercap)
    sample = ProcessorCounters(package).sample(3.0)
    assert (sample.device, sample.counter_j, sample.power_w) == ("package-0", 2.5, None)
    assert processor_wrap_j("package-0", powercap) == pytest.approx(262143.32885)
    assert processor_wrap_j("GPU-1", powercap) is None


class Nvml:
    """NVML of a GPU without a counter of energy."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        raise self.NVMLError

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 301_500

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return 400_000

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return 1410

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x4 | 0x1


def test_counters_that_a_gpu_lacks_are_named_and_the_others_read() -> None:
    counters = GpuCounters(Nvml(), "GPU-1")
    counters.sample(0.0)
    sample = counters.sample(1.0)
    assert sample == EnergySample(
        device="GPU-1",
        time_s=1.0,
        power_w=301.5,
        limit_w=400.0,
        clock_mhz=1410,
        held_down=("power cap",),
        missing=("energy",),
    )


def test_the_sampler_samples_until_its_input_ends(powercap: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from harness.comm import energy_sampler as sampler\n"
        "sampler.PERIOD_S = 0.05\n"
        f"packages = sampler.readable_processors(Path({str(powercap)!r}))\n"
        "sampler.run_sampler([sampler.ProcessorCounters(path) for path in packages], sys.stdin, sys.stdout)"
    )
    words = [sys.executable, "-c", program]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    lines = [process.stdout.readline() for _ in range(2)]
    (powercap / "intel-rapl:0" / "energy_uj").write_text("12500000\n")
    process.stdin.close()
    lines += process.stdout.readlines()
    assert process.wait(10) == 0
    (energy,) = by_device("node1", [msgspec.json.decode(line, type=EnergySample) for line in lines])
    assert (energy.device, energy.counter_j, energy.integral_j) == ("package-0", pytest.approx(10), None)
    assert energy.samples >= 3


def test_without_gpus_and_readable_processors_nothing_is_started() -> None:
    meter = EnergyMeter(World(comm=Alone(), rank=0, size=1), None)
    measured = meter.stop()
    if not readable_processors():
        assert (measured.devices, measured.notes) == ((), ())
