"""Where ranks print: rank 0 to the terminal, each other rank into a file of its own."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from harness.base.removal import make_place

_OWN_NAMES = re.compile(r"(rank-\d+|witness.*)\.log|hang.*|\.child-trains-\d+")


def make_logs(folder: Path) -> None:
    """Make the folder of what ranks print, which must be new, empty or ours, with its mark.

    Raises:
        UserError: it has something else in it.
    """
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    is_ours = bool(names) and all(_OWN_NAMES.fullmatch(name) for name in names)
    make_place(folder, "--logs", is_ours=is_ours)


@contextlib.contextmanager
def rank_output(rank: int, logs: Path) -> Iterator[Callable[[], None]]:
    """Within the block, send what a rank above 0 prints to `logs`/rank-N.log, standard error too.

    An error that leaves the block comes to the rank's own standard error; what is printed after a good end, as by exit
    handlers, goes to the log. Yield a function that restores both outputs earlier.
    """
    if rank == 0:
        yield lambda: None
        return
    make_logs(logs)
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


# What a script prints of its own speed, read by a regular expression of the user's.


class OwnRate:
    """The last number that `pattern`, an expression with one group, has found in the lines of standard output."""

    def __init__(self, pattern: str) -> None:
        self.value: float | None = None
        self._pattern = re.compile(pattern)
        self._open = ""

    def install(self) -> None:
        """Read what Python prints from now on; it is printed as before."""
        sys.stdout = _ReadOutput(sys.stdout, self)

    def read(self, text: str) -> None:
        """Look for the number in the lines that `text` ends, with what came before it."""
        *lines, self._open = (self._open + text).split("\n")
        for line in lines:
            match = self._pattern.search(line)
            if match is None:
                continue
            try:
                self.value = float(match[1].replace(",", ""))
            except ValueError:
                continue  # a group that takes words as well


class _ReadOutput:
    """Standard output, whose lines `rate` reads."""

    def __init__(self, output: TextIO, rate: OwnRate) -> None:
        self._output = output
        self._rate = rate

    def write(self, text: str) -> int:
        """Print `text`."""
        self._rate.read(text)
        return self._output.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)
