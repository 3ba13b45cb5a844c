"""Python objects exchanged between ranks, pickled on the way."""

from collections.abc import Callable
from functools import partial
from typing import Any

from harness.horovod.mpi_exchange import Request
from harness.horovod.process_sets import (
    ProcessSet,
    global_process_set,
)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return rank `root_rank`'s object, pickled on the way."""
    return process_set.exchange.run(Request("object", name or "object", root=root_rank), value=obj)[0]


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Return a function of an object that is `broadcast_object`."""
    return partial(broadcast_object, root_rank=root_rank, name=name, process_set=process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return every rank's object, in order of ranks, pickled on the way."""
    return process_set.exchange.run(Request("objects", name or "object"), value=obj)
