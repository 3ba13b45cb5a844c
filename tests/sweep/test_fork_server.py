"""A program that is forked from a warm Python behaves as one that Python itself has started."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.sweep import fork_server
from tests.mpi.launch import warm_python

TOLD = """import json, os, sys
import tempfile
place = tempfile.gettempdir()
print(json.dumps([os.getcwd(), sys.argv[1:], os.environ["OWN"], sorted(os.sched_getaffinity(0)), sys.path[0], place]))
print("tensorflow" in sys.modules, file=sys.stderr)
sys.exit(3)
"""
WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"PYTHONPATH": "/there"}, {"PYTHONPATH": "/there", "PYTHONSAFEPATH": "1"}])
def test_folder_words_environment_cores_output_and_exit_code_are_the_programs_own(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    said = []
    for python in (warm_python(), sys.executable):
        words = ["taskset", "--cpu-list", "0", python, "told.py", "a b", "--c"]
        environment = os.environ | {"OWN": "it's", "TMPDIR": str(temporary)} | changes
        said.append(subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False))
    warm, own = said
    assert (warm.returncode, json.loads(warm.stdout)) == (own.returncode, json.loads(own.stdout))
    assert json.loads(own.stdout)[-1] == str(temporary)
    assert (warm.returncode, warm.stderr.split()[-1], own.stderr) == (3, "True", "False\n")
    failed = subprocess.run([warm_python(), "-c", "1 / 0"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1 and failed.stderr.splitlines()[-1].startswith("ZeroDivisionError: ")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it_and_nothing_is_left(number: signal.Signals) -> None:
    process = subprocess.Popen([warm_python(), "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(number)
    assert process.wait(60) == (130 if number == signal.SIGINT else -number)
    deadline = time.monotonic() + 60  # a busy machine takes its time
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_warm_python_has_nothing_of_the_harness_which_is_that_of_each_child() -> None:
    words = "import sys; print([name for name in sys.modules if name.partition('.')[0] == 'harness'])"
    asked = subprocess.run([warm_python(), "-c", words], capture_output=True, text=True, check=True)
    assert asked.stdout == "[]\n"


@pytest.fixture
def answering() -> Iterator[Callable[[bytes, int], int]]:
    """Give what has the server's child take the beginning of a message, and returns its exit code."""
    children: list[int] = []

    def answer(sent: bytes, files: int) -> int:
        client, ours = socket.socketpair(socket.AF_UNIX)
        if sent:
            socket.send_fds(client, [sent[:4]], list(range(files)))
            client.sendall(sent[4:])
        client.close()
        children.append(child := os.fork())
        if not child:
            try:
                fork_server.answer_client(ours, [], sys.executable)
            finally:
                os._exit(99)
        ours.close()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                children.remove(child)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        raise AssertionError("it does not end")

    yield answer
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("sent", "files"), [(b"", 0), (b"\0", 3), (b"\0\0\0\7", 3), (b"\0\0\0\7abc", 3), (b"\0\0\0\1x", 1)]
)
def test_a_client_that_dies_in_its_message_is_no_endless_loop(
    answering: Callable[[bytes, int], int], sent: bytes, files: int
) -> None:
    assert answering(sent, files) == 1


CLIENT = """
import os, sys
from harness.sweep.fork_server import run_in_server
os.setsid()
if os.fork():
    code = os.waitstatus_to_exitcode(os.wait()[1])
    print("the group lives", code, flush=True)
else:
    os._exit(run_in_server(sys.argv[1], ["-c", ""]))
"""


@pytest.mark.parametrize("said", [b"", b"\0\0"])
def test_a_client_of_a_dead_child_signals_nobody(tmp_path: Path, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server"))
        server.listen()
        with subprocess.Popen([sys.executable, "-c", CLIENT, tmp_path / "server"], stdout=subprocess.PIPE) as client:
            connection, _ = server.accept()
            connection.recv(4)
            connection.sendall(said)
            connection.close()
            out, _ = client.communicate(timeout=120)
    assert out == b"the group lives 1\n"
