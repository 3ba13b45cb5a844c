"""One rank: ``mpirun -n P python -m harness.transparent [switches] script.py [arguments]``."""

import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from harness.transparent import file_mechanism
from harness.transparent.file_mechanism import WITNESS


def start() -> None:
    """Be a rank, or the witness of some."""
    _restart_with_fixed_hashes()
    if WITNESS in os.environ:
        _testify()
    if file_mechanism.rank_by_environment():
        file_mechanism.begin()
    from harness.transparent.rank_command import main

    main()


def _restart_with_fixed_hashes() -> None:
    """Restart this process where Python's hashes, and so the order of sets, would differ from rank to rank."""
    if not os.environ.get("PYTHONHASHSEED"):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})


def _testify() -> NoReturn:
    """Be a witness with files of its own; rank 0 is told that it has them, and waits for that."""
    script, logs = map(Path, os.environ.pop(WITNESS).splitlines())
    files = file_mechanism.enter(script, logs)
    Connection(os.dup(0)).send(str(files.mechanism))
    from harness.transparent.script_process import testify

    testify()


if __name__ == "__main__":
    start()
