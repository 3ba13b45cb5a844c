"""A Python that has TensorFlow imported already, for a while: its server is started and ended here."""

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.base.errors import RunError
from harness.base.files import write_atomic
from harness.base.processes import ONE_THREAD
from harness.sweep import fork_server

_WARM_S = 120


@contextlib.contextmanager
def warm_python(
    folder: Path, *, python: str = sys.executable, changes: Mapping[str, str | None] | None = None
) -> Iterator[str]:
    """Start `python`, import TensorFlow, and yield a program in `folder` whose processes are forked from it.

    Twenty processes import TensorFlow for minutes; forked, twenty launches start in seconds. Nothing of the harness is
    imported yet: it is that of the child's PYTHONPATH. `changes` are made to the environment, None unsets: TensorFlow
    reads some variables when it is imported.

    Raises:
        RunError: it does not start.
    """
    program = folder / "python"
    address = folder / "warm"
    client = shlex.join([python, "-S", fork_server.__file__, str(address)])
    write_atomic(program, f'#!/bin/sh\nexec {client} "$@"\n')
    program.chmod(0o755)
    environment = os.environ | ONE_THREAD | {"PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    for name, value in (changes or {}).items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    with (folder / "warm.log").open("wb") as log:
        server = subprocess.Popen(
            [python, fork_server.__file__, "--serve", str(address), str(program)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _WARM_S
        while not address.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                last = (folder / "warm.log").read_text(errors="replace").strip().rpartition("\n")[2]
                raise RunError(f"Python did not import TensorFlow: {last}")
            time.sleep(0.05)
        yield str(program)
    finally:
        assert server.stdin is not None
        server.stdin.close()  # it ends
        server.wait()
