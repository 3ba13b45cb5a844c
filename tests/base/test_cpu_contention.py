"""A busy machine is seen, waited for, refused."""

import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from harness.base import cpu_contention
from harness.base.cpu_contention import CpuUsage, other_load, wait_until_quiet
from harness.sweep.schedulers import open_scheduler
from tests.labs.sentences import refuses, says


def test_other_load_is_what_neither_we_nor_our_children_used() -> None:
    begin, end = CpuUsage(clock=10, host=100, process=5), CpuUsage(clock=14, host=108, process=9)
    assert other_load(begin, end) == 1.0
    assert other_load(begin, CpuUsage(clock=14, host=101, process=9)) == 0.0


def test_a_busy_machine_is_refused_and_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_contention, "look", lambda seconds: (1.3, "compiler, process 7"))
    monkeypatch.setattr(cpu_contention, "patience_s", lambda: 0.001)
    said: list[str] = []
    with refuses("busy (most of all", "1.3", "7", "--force"):
        wait_until_quiet(said.append, force=False)
    assert wait_until_quiet(said.append, force=True) == 1.3
    monkeypatch.undo()
    monkeypatch.setenv("HARNESS_QUIET_S", "soon")
    with refuses("HARNESS_QUIET_S=soon"):
        open_scheduler("local")


def test_a_machine_that_calms_down_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([0.9, 0.4, 0.1])
    monkeypatch.setattr(cpu_contention, "look", lambda seconds: (next(loads), "compiler, process 7"))
    monkeypatch.setenv("HARNESS_QUIET_S", "60")
    said: list[str] = []
    assert wait_until_quiet(said.append, force=False) == 0.1
    busy = f"other processes keep 0.9 of {psutil.cpu_count()} cores busy (most of all compiler, process 7)"
    (line,) = said
    assert line.startswith(busy)
    says(line, "busy (most of all", "process 7", "60 s")


class Process:
    """A process that uses `core_s` seconds of a core between two looks at it."""

    def __init__(self, pid: int, name: str, core_s: float) -> None:
        self.pid = pid
        self._name = name
        self._core_s = core_s
        self._used_s = 0.0

    def name(self) -> str:
        return self._name

    def cpu_times(self) -> SimpleNamespace:
        self._used_s += self._core_s
        return SimpleNamespace(user=self._used_s, system=0.0)


def test_looking_at_the_machine_names_who_is_busy_and_the_busiest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [Process(11, "editor", 0.0), Process(12, "linker", 0.5), Process(13, "compiler", 0.9)]
    monkeypatch.setattr(psutil, "process_iter", lambda: processes)
    _, names = cpu_contention.look(0.01)
    assert names == "compiler, process 13; linker, process 12"


@pytest.mark.alone  # beside many others the process has hardly a core
@pytest.mark.slow
def test_looking_at_the_machine_sees_a_busy_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            time.sleep(0.3)
            load, name = cpu_contention.look()
        finally:
            busy.kill()
    assert load > 0.2
    assert "process" in name
