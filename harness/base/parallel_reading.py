"""Many files read by several processes, with a bar that shows how far."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import click

MANY = 1000  # files from which starting processes to read them (1 to 2 s) pays
_MOST_READERS = 8  # each takes 0.1 GB, and a login node is others' too

Item = TypeVar("Item")
Content = TypeVar("Content")


def read_each(read: Callable[[Item], Content], items: Sequence[Item], *, module: str, doing: str) -> Iterator[Content]:
    """Yield what `read` returns of each of `items`, in their order; many are shared out to processes.

    `read` is of that `module`, or a partial of a function of it. A terminal shows a bar, which says what it is `doing`.
    """
    if len(items) < MANY:
        yield from map(read, items)
        return
    server = get_context("forkserver")  # a fork of this process would not have its threads, only their locks
    server.set_forkserver_preload([module])
    with ProcessPoolExecutor(
        max_workers=min(_MOST_READERS, len(os.sched_getaffinity(0))), mp_context=server, initializer=_start_reading
    ) as pool:
        contents = pool.map(read, items, chunksize=50)
        if not sys.stderr.isatty():
            yield from contents
            return
        with click.progressbar(contents, length=len(items), label=doing, file=sys.stderr) as bar:
            yield from bar


def _start_reading() -> None:
    """Prepare a process that reads: Ctrl-C is its parent's to hear, and what it reads has no cycles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
