"""Where ranks print: rank 0 to the terminal, each other rank into a file of its own."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def rank_output(rank: int, logs: Path) -> Iterator[Callable[[], None]]:
    """Within the block, send what a rank above 0 prints to `logs`/rank-N.log, standard error too.

    An error that leaves the block comes to the rank's own standard error; what is printed after a good end, as by exit
    handlers, goes to the log. Yield a function that restores both outputs earlier.
    """
    if rank == 0:
        yield lambda: None
        return
    logs.mkdir(parents=True, exist_ok=True)
    saved = os.dup(1), os.dup(2)
    log = os.open(logs / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    _direct(log, log)
    try:
        yield lambda: _direct(*saved)
    except BaseException:
        _direct(*saved)
        raise


def _direct(output: int, errors: int) -> None:
    """Make two file descriptors standard output and standard error."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(output, 1)
    os.dup2(errors, 2)
