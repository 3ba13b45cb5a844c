"""What killed launches leave on a host is in a folder of their own, which the next launch removes."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.base import scratch
from harness.base.scratch import SCRATCH, SEGMENTS, Scratch, remove_dead
from harness.comm.mpi_library import AS_ROOT, Family, find_mpi
from harness.sweep.launch_command import mpirun_words

KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from harness.base import scratch
own = scratch.Scratch(Path(sys.argv[1]))
(Path(own.variables[scratch.SCRATCH]) / "segment").touch()
print(subprocess.Popen(["sleep", "60"], pass_fds=own.handles, stdout=subprocess.DEVNULL).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_outlives_a_killed_command_as_long_as_its_launch_does(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    (left,) = tmp_path.iterdir()
    other = Scratch(tmp_path)
    assert (left / "segment").exists()
    os.kill(int(killed.stdout), signal.SIGKILL)
    while (left / "segment").exists():  # the kernel takes a moment to end it
        Scratch(tmp_path).close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_a_launch_removes_its_own_folder(tmp_path: Path) -> None:
    own = Scratch(tmp_path)
    assert own.variables[SCRATCH] == own.variables[SEGMENTS]
    assert Path(own.variables[SCRATCH]).parent == tmp_path
    own.close()
    own.close()
    assert list(tmp_path.iterdir()) == []
    assert (own.variables, own.handles) == ({}, ())


@pytest.mark.mpi  # what a killed mpirun leaves is a file of mpirun's own
def test_what_a_killed_mpirun_left_does_not_end_the_next_one_with_its_process_id(tmp_path: Path) -> None:
    highest = int(Path("/proc/sys/kernel/pid_max").read_text())
    with subprocess.Popen("true") as newest:  # those that follow have the next process ids
        pass
    for number in (1 + (newest.pid + ahead) % highest for ahead in range(2000)):
        left = tmp_path / f"ompi.{number}"
        left.mkdir(mode=0o700)
        (left / f"pmix.{os.uname().nodename}.tool.{number}").touch()
    words = [*mpirun_words(find_mpi().mpirun, Family.OPEN_MPI, 1), "true"]

    def start(**variables: str) -> int:
        environment = os.environ | AS_ROOT | {"TMPDIR": str(tmp_path)} | variables
        return subprocess.run(words, env=environment, capture_output=True, check=False).returncode

    assert start() != 0  # so it was left as a killed one leaves it
    own = Scratch()
    assert start(**own.variables) == 0
    own.close()


def test_without_a_place_for_it_launches_go_on_as_before() -> None:
    own = Scratch(Path("/nowhere"))
    assert (own.variables, own.handles) == ({}, ())


HELD = """
import os, sys, tempfile
from pathlib import Path
from harness.base.scratch import HeldFolder
folder = HeldFolder(Path(tempfile.gettempdir()), "harness-rank-")
(folder.path / "written").touch()
print(folder.path, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
folder.close()
"""


def test_what_a_killed_rank_wrote_is_removed_when_the_next_one_starts(tmp_path: Path) -> None:
    def rank(ends: str) -> Path:
        words, environment = [sys.executable, "-c", HELD, ends], os.environ | {"TMPDIR": str(tmp_path)}
        found = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, env=environment)
        return Path(found.stdout.strip())

    killed = rank("killed")
    assert (killed / "written").exists()
    assert rank("by itself") != killed
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """A folder that nobody holds any more, as a launch on this host has left it."""
    folder = tmp_path / f"harness-rank-{scratch.host_mark()}dead"
    folder.mkdir(mode=0o700)
    return folder


def test_a_link_in_a_dead_folder_is_removed_and_its_target_is_left(tmp_path: Path, dead: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    (target / "mine").touch()
    (dead / "work" / "1").mkdir(parents=True)
    (dead / "work" / "1" / "work").symlink_to(target)
    remove_dead(tmp_path, "harness-rank-")
    assert not dead.exists()
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert (target / "mine").exists()


def test_folders_that_nobody_may_read_are_removed_with_a_dead_one(tmp_path: Path, dead: Path) -> None:
    """The kernel makes such folders for overlays, and a script may."""
    (dead / "work" / "work").mkdir(parents=True)
    (dead / "work" / "work" / "written").touch()
    (dead / "work" / "work").chmod(0o000)
    remove_dead(tmp_path, "harness-rank-")
    assert not dead.exists()


def test_a_dead_folder_that_others_may_open_or_is_a_link_is_left(tmp_path: Path, dead: Path) -> None:
    dead.chmod(0o755)
    link = tmp_path / f"harness-rank-{scratch.host_mark()}link"
    (tmp_path / "mine").mkdir(mode=0o700)
    link.symlink_to(tmp_path / "mine")
    remove_dead(tmp_path, "harness-rank-")
    assert dead.exists()
    assert (tmp_path / "mine").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of other users")
def test_another_users_folder_is_left(tmp_path: Path, dead: Path) -> None:
    os.chown(dead, 1234, 1234)
    remove_dead(tmp_path, "harness-rank-")
    assert dead.exists()


def test_a_folder_of_another_host_or_of_an_earlier_start_of_this_one_is_left(tmp_path: Path) -> None:
    host, boot, _ = scratch.host_mark().rsplit("-", 2)
    others = [tmp_path / f"harness-rank-elsewhere-{boot}-x", tmp_path / f"harness-rank-{host}-00000000-x"]
    for folder in others:
        folder.mkdir(mode=0o700)
    remove_dead(tmp_path, "harness-rank-")
    assert all(folder.exists() for folder in others)


GENERATE = """
import os
import tensorflow as tf
from harness.base.scratch import keep_generated_files
keep_generated_files()
tf.function(lambda x: x if x > 0 else -x)(tf.constant(1.0))
os._exit(0)  # as when it is killed: nothing is tidied up
"""


@pytest.mark.slow
def test_code_that_tensorflow_generates_goes_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCRATCH, str(tmp_path))
    before = set(Path(tempfile.gettempdir()).glob("__autograph*"))
    (tmp_path / "generate.py").write_text(GENERATE)  # a file: TensorFlow reads the source
    subprocess.run([sys.executable, tmp_path / "generate.py"], check=True)
    assert list(tmp_path.glob("__autograph*"))
    assert set(Path(tempfile.gettempdir()).glob("__autograph*")) <= before


def test_a_folder_of_another_host_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several hosts see one folder, the lock of the other's launch need not reach here."""
    with monkeypatch.context() as patch:
        patch.setattr(scratch, "boot_id", lambda: "0f0f0f0f-0000-0000-0000-000000000000")
        elsewhere = Scratch(tmp_path)
    path = Path(elsewhere.variables[SCRATCH])
    os.close(*elsewhere.handles)  # as no lock of another host is seen
    Scratch(tmp_path).close()
    assert path.is_dir()
    path.rename(path.with_name(path.name.replace("0f0f0f0f", scratch.boot_id()[:8])))
    Scratch(tmp_path).close()
    assert list(tmp_path.iterdir()) == []
