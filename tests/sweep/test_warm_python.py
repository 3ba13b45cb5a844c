"""Which ranks of a sweep are forked, and what a forked process shows of itself."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness.base.launch_guard import JOB, find_processes
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.sweep.warm_python import forked_ranks, warm_server
from tests.labs.factories import make_point
from tests.labs.sentences import says

POINT = make_point(2)
WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


@pytest.fixture(autouse=True)
def _asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_FORK", "1")


@pytest.mark.parametrize(
    "points",
    [
        (replace(POINT, layout=Layout(nodes=1, gpus_per_rank=1)),),
        (POINT, replace(POINT, layout=Layout(nodes=1, threads=2))),
        (replace(POINT, oversubscribe=True),),
    ],
    ids=["GPUs", "threads", "no turns"],
)
def test_ranks_that_cannot_share_an_import_start_a_python_each(points: tuple[Point, ...]) -> None:
    with forked_ranks(points, {}) as words:
        assert words == ()


def test_ranks_are_forked_only_where_the_user_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_FORK")
    with forked_ranks((POINT,), {}) as words:
        assert words == ()


def test_a_program_that_stands_for_python_is_not_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    with forked_ranks((POINT,), {}) as words:
        assert words == ()


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    """Yield the words of a server that has imported nothing; its folder has a short path, as a socket wants it."""
    folder = tmp_path_factory.mktemp("w")
    monkeypatch.chdir(folder)
    with warm_server(Path(), dict(os.environ), imported=()) as words:
        yield words


def started(words: tuple[str, ...], **variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([*words, "-c", WAITS], stdout=subprocess.PIPE, text=True, env={**os.environ, **variables})


def pid_of(client: "subprocess.Popen[str]") -> int:
    assert client.stdout is not None
    return int(client.stdout.readline())


def test_a_forked_process_is_found_by_its_job_as_its_client_is(server: tuple[str, ...]) -> None:
    clients = [started(server, **{JOB: f"job-{number}"}) for number in range(2)]
    pids = [pid_of(client) for client in clients]
    try:
        for number, client in enumerate(clients):
            assert {process.pid for process in find_processes(JOB, f"job-{number}")} == {client.pid, pids[number]}
            assert psutil.Process(pids[number]).environ()["PATH"] == os.environ["PATH"]
    finally:
        for client in clients:
            client.kill()
            client.wait()


def test_a_name_that_has_no_room_is_refused(server: tuple[str, ...]) -> None:
    client = started(server, **{JOB: "j" * 2000})
    assert client.wait(60) == 1


def test_a_forked_process_ends_with_its_server(server: tuple[str, ...]) -> None:
    client = started(server)
    pid = pid_of(client)
    forked = psutil.Process(pid)
    os.kill(forked.ppid(), 9)
    assert client.wait(60) == 1
    psutil.wait_procs([forked], timeout=60)
    assert not psutil.pid_exists(pid) or forked.status() == psutil.STATUS_ZOMBIE


def test_where_the_server_has_ended_nothing_starts_and_the_log_says_why(server: tuple[str, ...]) -> None:
    client = started(server)
    server_pid = psutil.Process(pid_of(client)).ppid()
    os.kill(server_pid, 9)
    client.wait(60)
    deadline = time.monotonic() + 60
    while psutil.pid_exists(server_pid) and psutil.Process(server_pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
    said = subprocess.run([*server, "-c", "print(1 + 1)"], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (1, "")
    says(said.stderr, "harness: ", "has ended")
