"""Start a contender's own processes together, and end every one of them whatever happens."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness.base.errors import RunError
from harness.sweep.outcome import first_error, read_output

_POLL_S = 0.1
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
}
_TOPOLOGY = Path("/sys/devices/system/cpu")


def run_together(arguments: Sequence[Sequence[str]], *, limit_s: float, folder: Path, servers: int = 0) -> list[str]:
    """Run one Python process for each of `arguments` and return what each wrote to standard output.

    The last `servers` of them are ended as soon as the others have, and return nothing. Logs go into `folder`. Each
    process is the head of a group of its own; no group outlives this call.

    Raises:
        RunError: a process ended with an error (its first error line), or not within `limit_s` seconds.
    """
    processes: list[subprocess.Popen[bytes]] = []
    outputs = [folder / f"{number}.out" for number in range(len(arguments))]
    errors = [path.with_suffix(".err") for path in outputs]
    try:
        for words, output, error in zip(arguments, outputs, errors, strict=True):
            processes.append(_start(words, output, error))
        _wait(processes, errors, limit_s, awaited=len(processes) - servers)
    finally:
        for process in processes:
            _end(process)
    return [path.read_text() for path in outputs[: len(processes) - servers]]


def free_ports(count: int) -> list[int]:
    """Return `count` TCP ports of this host that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for entry in sockets:
            entry.bind(("localhost", 0))
        return [entry.getsockname()[1] for entry in sockets]


def cores(topology: Path = _TOPOLOGY) -> list[tuple[int, ...]]:
    """Return the CPUs of every core that this process may use: hyper-threads of one core stand together."""
    groups: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = topology / f"cpu{cpu}/topology/thread_siblings_list"
        try:
            core = siblings.read_text().strip()
        except OSError:
            core = str(cpu)
        groups.setdefault(core, []).append(cpu)
    return [tuple(group) for group in groups.values()]


def _start(words: Sequence[str], output: Path, error: Path) -> "subprocess.Popen[bytes]":
    with output.open("wb") as out, error.open("wb") as err:
        return subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=os.environ | ONE_THREAD,
            start_new_session=True,
        )


def _wait(
    processes: "Sequence[subprocess.Popen[bytes]]", errors: Sequence[Path], limit_s: float, *, awaited: int
) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        codes = [process.poll() for process in processes]
        for code, path in zip(codes, errors, strict=True):
            if code:
                raise RunError(first_error(read_output(path)) or f"ended with exit code {code}")
        if None not in codes[:awaited]:
            return
        if time.monotonic() > deadline:
            raise RunError(f"was not done within its limit of {limit_s:.0f} s")
        time.sleep(_POLL_S)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and its group; the group may outlive its head."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
