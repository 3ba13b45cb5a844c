"""Child processes with a time limit that leave nothing, signals that end them, and imports that stay quiet."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


def thread_limits(threads: int) -> dict[str, str]:
    """Return the environment that keeps numerical libraries from starting more than `threads` threads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))


ONE_THREAD = thread_limits(1) | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
"""The environment of a process that computes on one thread, quietly and without GPUs."""


def process_age_s() -> float:
    """Return for how many seconds this process has been there, by a clock that nobody sets."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    started_ticks = int(fields[19])  # since the host was started: proc(5), field 22
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What a program said. `code` is its exit code, None when it did not start or was ended after its time."""

    code: int | None
    out: str
    err: str

    @property
    def first_line(self) -> str:
        """The first line with text in it, of standard output or else of standard error."""
        return next((line.strip() for line in (self.out + "\n" + self.err).splitlines() if line.strip()), "")

    @property
    def last_error(self) -> str:
        """The last line of standard error, or what is known without one."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"

    def answers(self) -> list[dict[str, Any]]:
        """Return the JSON objects among the lines of standard output."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]


def run_program(
    command: Sequence[str],
    *,
    limit_s: float = 120.0,
    changes: Mapping[str, str | None] | None = None,
    folder: Path | None = None,
    handles: Sequence[int] = (),
) -> Reply:
    """Run `command` in `folder` and return its reply; `changes` to the environment may unset a variable with None.

    It inherits `handles`, open files such as those of `HostLock`.
    """
    environment = dict(os.environ)
    for name, value in (changes or {}).items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            cwd=folder,
            start_new_session=True,
            pass_fds=handles,
        )
    except OSError as error:
        return Reply(code=None, out="", err=f"{command[0]} does not start: {error.strerror}")
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Reply(code=None, out="", err=f"{command[0]} gave no answer within {limit_s:.0f} s")
    finally:
        if process.returncode is None:
            _end_family(process)
    return Reply(code=process.returncode, out=out, err=err)


def _end_family(process: "subprocess.Popen[str]") -> None:
    """Kill a process and all below it: ranks are in process groups of their own."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP (a closed terminal) raise KeyboardInterrupt during the block."""
    # A signal that is ignored stays ignored: nohup means it.
    wanted = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hold back what native code writes to standard error; show it after all when the block fails."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(saved, 2)
            held.seek(0)
            os.write(2, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)


OPTIONAL_OF_KERAS = ("sklearn", "pandas", "matplotlib")
"""What Keras imports where it is installed, for what no rank uses."""


@contextlib.contextmanager
def without_optional_packages() -> Iterator[None]:
    """Let Keras be imported in the block as if packages that are optional to it were not installed: 40 % sooner.

    Behind the block they can be imported as ever.
    """
    absent = [name for name in OPTIONAL_OF_KERAS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: "there is no such module"
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
