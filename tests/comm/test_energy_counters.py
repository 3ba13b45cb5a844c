"""Energy by counters whose truth is known: interpolated at the ends of windows, exact at the ends of turns."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.comm import energy_counters
from harness.comm.energy_counters import (
    EnergyMeter,
    EnergyReadings,
    GpuCounter,
    ProcessorCounter,
    energy_of,
    processor_counters,
)
from harness.comm.world import World
from tests.labs.communicators import Alone


class Planted:
    """A counter that rises as `joules_at` says, by a clock that the test moves."""

    wrap_j: float | None = None

    def __init__(self, clock: "Clock", joules_at: Callable[[float], float | None], device: str = "package-0") -> None:
        self.device = device
        self._clock = clock
        self._joules_at = joules_at

    def joules(self) -> float | None:
        return self._joules_at(self._clock.now)


class Clock:
    """The time of time.monotonic."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock of readings, which nobody makes but the test."""
    monkeypatch.setattr(energy_counters, "PERIOD_S", 3600.0)
    moved = Clock()
    monkeypatch.setattr(energy_counters, "time", moved)
    return moved


def read_at(readings: EnergyReadings, clock: Clock, *times: float) -> None:
    for moment in times:
        clock.now = moment
        readings.read()


def test_windows_shorter_than_the_time_between_readings_have_their_energy(clock: Clock) -> None:
    """A hundred windows of 50 ms, of which none has a reading inside: 30 W throughout."""
    readings = EnergyReadings([Planted(clock, lambda now: 7 + 30 * now)])
    read_at(readings, clock, *range(1, 11))
    (device,) = readings.close("node1", [(begin / 10, begin / 10 + 0.05) for begin in range(100)])
    assert device.seconds == pytest.approx(5)
    assert device.counter_j == pytest.approx(150)
    assert device.watts == pytest.approx(30)
    assert (device.host, device.device, device.missing) == ("node1", "package-0", ())


def test_turns_are_read_at_their_ends_so_that_neighbours_do_not_share(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our turns take 10 W, those of another launch between them 90 W: 50 ms each, with the real period of a second."""
    own_turns = SimpleNamespace(at_ends=None)
    monkeypatch.setattr(energy_counters, "current_turns", lambda: own_turns)
    spent = [0.0]
    readings = EnergyReadings([Planted(clock, lambda _: spent[0])])
    windows = []
    for _ in range(40):
        begin = clock.now
        own_turns.at_ends()
        clock.now += 0.05
        spent[0] += 10 * 0.05
        own_turns.at_ends()
        windows.append((begin, clock.now))
        clock.now += 0.05
        spent[0] += 90 * 0.05
    (device,) = readings.close("node1", windows)
    assert device.watts == pytest.approx(10)
    assert device.seconds == pytest.approx(2)
    assert own_turns.at_ends is None


def test_without_windows_it_is_all_the_time(clock: Clock) -> None:
    readings = EnergyReadings([Planted(clock, lambda now: 3 * now)])
    clock.now = 4.0
    (device,) = readings.close("node1", None)
    assert (device.counter_j, device.seconds) == (12, 4)


def test_windows_before_the_first_reading_do_not_count(clock: Clock) -> None:
    clock.now = 5.0
    readings = EnergyReadings([Planted(clock, lambda now: 3 * now)])
    clock.now = 9.0
    (device,) = readings.close("node1", [(0.0, 4.0), (4.0, 7.0)])
    assert (device.counter_j, device.seconds) == (6, 2)


@pytest.mark.parametrize(
    ("readings", "wrap", "joules"),
    [
        ([5, 7, 11], None, 6),
        ([90, 98, 3, 5], 100, 15),  # it began again once
        ([98, 3, 98, 3], 100, 105),  # twice
        ([5, 3], None, None),  # a driver that was loaded anew
        ([5], 100, None),
    ],
)
def test_a_counter_may_begin_again(readings: list[float], wrap: float | None, joules: float | None) -> None:
    counter = SimpleNamespace(device="package-0", wrap_j=wrap)
    total = energy_of(counter, list(range(len(readings))), readings)
    assert (total[-1] if len(total) else None) == joules


def test_a_counter_that_fails_in_between_is_not_taken(clock: Clock) -> None:
    whole = Planted(clock, lambda now: 3 * now)
    failing = Planted(clock, lambda now: None if now == 1 else now, "GPU-1")
    readings = EnergyReadings([whole, failing])
    read_at(readings, clock, 1.0, 2.0)
    processor, gpu = readings.close("node1", None)
    assert (processor.counter_j, processor.missing) == (6, ())
    assert (gpu.counter_j, gpu.joules, gpu.missing) == (None, None, ("energy",))


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Return a folder as Linux has it: a processor, its memory, and a processor without a counter to read."""
    for name, text in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "dram"), ("intel-rapl:1", "package-1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(f"{text}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("262143328850\n")
        if name != "intel-rapl:1":
            (tmp_path / name / "energy_uj").write_text("2500000\n")
    return tmp_path


def test_readable_processors_are_found_with_their_counters(powercap: Path) -> None:
    (counter,) = processor_counters(powercap)
    assert isinstance(counter, ProcessorCounter)
    assert (counter.device, counter.joules()) == ("package-0", 2.5)
    assert counter.wrap_j == pytest.approx(262143.32885)


class Nvml:
    """NVML of a GPU that has used 1.5 J, or has no counter."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, counts: bool) -> None:
        self._counts = counts

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if not self._counts:
            raise self.NVMLError
        return 1500


def test_a_gpus_counter_is_in_joules_and_may_not_be_there() -> None:
    assert GpuCounter(Nvml(counts=True), "GPU-1").joules() == 1.5
    assert GpuCounter(Nvml(counts=False), "GPU-1").joules() is None


def test_counters_are_read_while_nobody_asks(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy_counters, "POWERCAP", powercap)
    monkeypatch.setattr(energy_counters, "PERIOD_S", 0.01)
    read: list[float] = []
    counter = SimpleNamespace(device="package-0", wrap_j=None, joules=lambda: read.append(1.0) or float(len(read)))
    readings = EnergyReadings([counter])
    while len(read) < 4:
        time.sleep(0.001)
    (device,) = readings.close("node1", None)
    assert device.samples == len(read)
    assert device.counter_j == len(read) - 1


def test_without_gpus_and_readable_processors_nothing_is_read() -> None:
    measured = EnergyMeter(World(comm=Alone(), rank=0, size=1), None).stop()
    if not processor_counters():
        assert (measured.devices, measured.notes) == ((), ())
