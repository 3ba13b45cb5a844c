"""A script's process that ends without Python's end: its run ends first, and no other program takes a rank's place."""

import contextlib
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from harness.base.errors import RunError, UserError
from harness.comm.world import World
from harness.transparent import script_process
from harness.transparent.clocks import RankVariables
from harness.transparent.patch import Refused, end_at_exec, put_back
from harness.transparent.script_process import ProcessEnds
from harness.transparent.session import Session
from tests.labs.alike_ranks import AlikeComm

SCRIPT = "/home/me/train.py"


class Ended(Exception):
    """Instead of the end of this process."""


@pytest.fixture
def ended(monkeypatch):
    """What has been done to end this process, in order."""
    events = []

    def leave(status):
        events.append(status)
        raise Ended

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(os, "execv", lambda *words: events.append(words))
    monkeypatch.setattr(os, "execve", lambda *words: events.append(words))
    monkeypatch.setattr(script_process, "end_mpi", lambda: events.append("finalize"))
    yield events
    put_back()


def ends(events, world, own=7):
    return ProcessEnds(world, "train.py", lambda status: events.append(("run", status)) or own)


def run(text):
    """Run lines of a script."""
    exec(compile(text, SCRIPT, "exec"), {"os": os, "threading": threading})


@pytest.fixture
def world():
    return World(comm=AlikeComm(), rank=0, size=2)


def test_a_process_that_its_script_ends_has_ended_its_run_and_mpi_first(ended, world):
    ends(ended, world).install()
    with pytest.raises(Ended):
        run("os._exit(0)")
    assert ended == [("run", 0), "finalize", 7]


def test_what_is_no_script_ends_the_process_at_once(ended, world):
    """The harness itself, where it ends all ranks."""
    ends(ended, world).install()
    with pytest.raises(Ended):
        exec(compile("os._exit(3)", script_process.__file__, "exec"), {"os": os})
    assert ended == [3]


def test_a_forked_process_ends_as_it_likes(ended, world, monkeypatch):
    ends(ended, world).install()
    forked = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: forked)
    with pytest.raises(Ended):
        run("os._exit(0)")
    run("os.execv('python', ['python'])")
    assert ended == [0, ("python", ["python"])]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_does_not_end_a_rank(ended, world, monkeypatch):
    told = []
    monkeypatch.setattr(script_process, "abort", lambda world, error: told.append(error) or sys.exit())
    ends(ended, world).install()
    run("thread = threading.Thread(target=lambda: os._exit(0))\nthread.start()\nthread.join()")
    assert [type(error) for error in told] == [UserError]
    assert "train.py, line 1" in str(told[0])
    assert ended == []


def test_another_program_in_a_ranks_place_is_refused(ended, world):
    ends(ended, world).install()
    with pytest.raises(Refused, match=r"train\.py, line 2"):
        run("\nos.execvp('python', ['python'])")
    assert ended == []


def test_a_script_alone_ends_and_is_replaced_as_it_asks_once_mpi_has_ended(ended):
    ends(ended, None, own=4).install()
    run("os.execl('python', 'python')")
    assert ended == ["finalize", ("python", ("python",))]
    with pytest.raises(Ended):
        run("os._exit(4)")
    assert ended[2:] == [("run", 4), "finalize", 4]


def test_a_witness_ends_where_its_script_would_be_replaced(ended):
    end_at_exec(lambda: ended.append("end"))
    run("os.execv('python', ['python'])")
    assert ended == ["end"]


@pytest.mark.parametrize("status", [0, None, 3, "no rows"])
def test_a_failure_code_is_the_runs_failure(status):
    """Whichever way the script says it."""
    session = SimpleNamespace(
        witness=SimpleNamespace(is_witness=True, script_end=lambda: None),
        rank_variables=RankVariables(),
        _watch=SimpleNamespace(stop=lambda: None),
    )
    with pytest.raises(RunError) if status else contextlib.nullcontext():
        Session.end(session, status)
