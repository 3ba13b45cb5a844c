"""Planted faults in user scripts: each is named, nothing hangs and nobody is left over."""

import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from harness.base.errors import SharedError
from harness.comm.world import World
from harness.transparent.witness import Alone
from tests.mpi.launch import PROGRAMS, ROOT, run_ranks, warm_python

REFUSED = ("nothing",)  # by `harness run`
WITHIN_S = 60.0  # TensorFlow's import on a busy machine is most of it


def fault(name, folder, *switches):
    """Run the faulty script on two ranks and return what came of it; no process of it may be left."""
    begin = time.monotonic()
    script = (PROGRAMS / "faulty_script.py", name)
    if name in REFUSED:
        command = [warm_python(), "-m", "harness", "run", "-n", "2", *map(str, script)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        (folder / "input.txt").write_text("what is given")
        with (folder / "input.txt").open() as given:
            finished = subprocess.run(
                command, stdin=given, capture_output=True, text=True, cwd=folder, env=environment, check=False
            )
    else:
        finished = run_ranks(2, "-m", "harness.transparent", "--fuse=off", *switches, *script, cwd=folder)
    assert time.monotonic() - begin < WITHIN_S
    deadline = time.monotonic() + 15.0  # neither ranks nor the witness are mpirun's own children, which waits for those
    while (left := _processes_in(str(folder))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    return finished


def _processes_in(folder):
    return [process.pid for process in psutil.process_iter() if _belongs(process, folder)]


def _belongs(process, folder):
    try:
        return process.pid != os.getpid() and process.cwd() == folder
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return False


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("width", 1, "sequential/dense/kernel (8, 24) float32"),
        ("raises", 1, "rank 1: RuntimeError: planted fault"),
        ("nothing", 2, "made no optimizer step"),
    ],
)
def test_a_rank_that_differs_or_fails_is_named_before_anything_hangs(tmp_path, name, code, message):
    finished = fault(name, tmp_path)
    assert finished.returncode == code, finished.stderr[-3000:]
    assert message in finished.stderr
    assert finished.stderr.count("harness:") == 1  # other lines may cut into it
    if name in REFUSED:  # all ranks know: a sentence, and no word of the launcher
        assert "prterun" not in finished.stderr and "MPI_ABORT" not in finished.stderr
    if name == "nothing":  # a file as standard input is every rank's, and ends
        for said in (finished.stdout, (tmp_path / "harness-logs/rank-1.log").read_text()):
            assert "no training here: what is given" in said


@pytest.mark.mpi
def test_a_rank_that_never_comes_is_named_with_what_it_did_not_reach(tmp_path):
    finished = fault("sleeps", tmp_path, "--hang-timeout", 3)
    assert finished.returncode != 0
    assert "no progress for 3 s" in finished.stderr
    (verdict,) = [line for line in finished.stderr.splitlines() if line.startswith("rank 1 is missing")]
    assert "faulty_script.py" in verdict
    assert any(line.startswith("rank 0 waits in ") for line in finished.stderr.splitlines())
    assert "call" in next(tmp_path.glob("harness-logs/hang-*/report.txt")).read_text()


@pytest.mark.mpi
def test_ranks_that_part_are_told_in_one_sentence_at_once(tmp_path):
    """In seconds, and not after the 120 of a rank that never comes; the page is in its file."""
    finished = fault("fewer", tmp_path)
    assert finished.returncode != 0
    (sentence,) = [line for line in finished.stderr.splitlines() if line.startswith("harness:")]
    assert "rank 0: faulty_script.py, line" in sentence
    assert "rank 1: after its last line" in sentence
    assert "rank 1 is missing" not in finished.stderr
    assert "it waits in end of the script" in next(tmp_path.glob("harness-logs/hang-*/report.txt")).read_text()


@pytest.mark.slow
def test_the_first_compilation_is_over_before_the_ranks_wait_for_each_other(monkeypatch):
    """It takes longer than a watch may have patience on a busy machine."""
    from harness.comm.world import World
    from harness.transparent.collectives import Collectives

    built = []
    monkeypatch.setattr("harness.comm.grouped_sums.find_library", lambda: built.append(True))
    Collectives(World(comm=None, rank=0, size=2), rows=None, watch=None)
    assert built == [True]


@pytest.mark.parametrize("where", ["on_root", "on_all"])
def test_what_nobody_has_foreseen_on_one_rank_is_told_to_all(where, capsys):
    """Else the other ranks would wait for it until somebody ends them."""
    world = World(comm=Alone(), rank=0, size=1)
    with pytest.raises(SharedError) as told:
        getattr(world, where)(lambda: Path("nowhere").read_text())
    assert str(told.value.error).startswith("FileNotFoundError: [Errno 2]")
    assert "Traceback" in capsys.readouterr().err
