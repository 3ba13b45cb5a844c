"""Work on many things that several processes do, such as reading files and drawing, with a bar that shows how far."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

import click

from harness.base.errors import RunError

MANY = 1000  # launches from which several processes read their records and draw their figures
_MOST_PROCESSES = 8  # a login node is others' too
_PR_SET_PDEATHSIG = 1  # prctl(2)

Item = TypeVar("Item")
Result = TypeVar("Result")


def is_worth_sharing(launches: int) -> bool:
    """Tell whether several processes shall work on so many launches.

    A process with several threads works alone: their locks would stay locked in forked ones.
    """
    return launches >= MANY and threading.active_count() == 1


def read_each(read: Callable[[Item], Result], items: Sequence[Item], *, doing: str) -> Iterator[Result]:
    """Yield what `read` returns of each of `items`, in their order; several processes read many.

    A terminal then shows a bar, which says what it is `doing`, and garbage collection passes over what was read.
    """
    shared = is_worth_sharing(len(items))
    with contextlib.ExitStack() as stack:
        if shared:
            stack.enter_context(_uncollected())
        yield from stack.enter_context(done_to_each(read, items, shared=shared, doing=doing, chunk=50))


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Pause garbage collection, which then passes over what was made in the block: records have no cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def done_to_each(
    function: Callable[[Item], Result], items: Sequence[Item], *, shared: bool, doing: str, chunk: int = 1
) -> Iterator[Iterator[Result]]:
    """Yield an iterator of what `function` returns of each of `items`, in their order.

    `shared`: processes begin with it at once, `chunk` items at a time, and a terminal shows a bar, which says what it
    is `doing`, while results are taken. They are forked: `function` and `items` can be anything, and locks of other
    threads stay locked in them, so that this is for processes without threads of their own. Else each is worked out
    when it is taken.

    Raises:
        RunError: one of the processes was killed.
    """
    if not shared:
        yield map(function, items)
        return
    executor = ProcessPoolExecutor(
        max_workers=min(_MOST_PROCESSES, len(os.sched_getaffinity(0))),
        mp_context=get_context("fork"),
        initializer=_begin,
        initargs=(os.getpid(), function, items),
    )
    try:
        yield _with_bar(executor.map(_result_of, range(len(items)), chunksize=chunk), len(items), doing)
    except BrokenProcessPool as error:
        raise RunError(
            f"{doing}: one of its processes was killed, perhaps as memory was short: run it again"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _with_bar(results: Iterator[Result], count: int, doing: str) -> Iterator[Result]:
    """Yield the `results`, so many; a terminal shows a bar meanwhile."""
    if not sys.stderr.isatty():
        yield from results
        return
    with click.progressbar(results, length=count, label=doing, file=sys.stderr) as bar:
        yield from bar


_work: tuple[Callable[[Any], Any], Sequence[Any]]  # set in a process that shares it, which is sent numbers only


def _begin(parent: int, function: Callable[[Any], Any], items: Sequence[Any]) -> None:
    """Prepare a process: it ends with its parent, which hears Ctrl-C for it, and what it makes has no cycles."""
    global _work
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    gc.disable()
    _work = (function, items)


def _result_of(number: int) -> Any:
    function, items = _work
    return function(items[number])
