"""Which ranks there are, and sets of them that exchange among themselves."""

import atexit
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from harness.base.errors import UserError
from harness.comm.world import FAULT_TOLERANCE, World, start_mpi
from harness.horovod import mpi_exchange
from harness.horovod.mpi_exchange import Exchange, timeline

if TYPE_CHECKING:
    from harness.comm.grouped_sums import GroupedSums

# Under a launcher other than `harness run` nobody asks.
_unwatched = partial(SimpleNamespace, opened=lambda _: None, named=lambda *_: None, inside=lambda *_: nullcontext())


@dataclass(kw_only=True)
class Host:
    """What runs the script: who watches its exchanges and sums its gradients, what is told of its first steps.

    `begin` is called when it calls `init`, `follow` with the ranks that are left where some have failed; a rank that is
    stopped for `patience_s` is one of these, 0 for never. `folder` is the watch's, `code` what ranks then end with.
    `alone` where other ranks do not run it; `answers` for Keras 2's spellings.
    """

    watch: Any = field(default_factory=_unwatched)
    sums: "Callable[[], GroupedSums | None]" = lambda: None
    begin: Callable[[], None] = lambda: None
    follow: Callable[[World], None] = lambda _: None
    patience_s: float = 0.0
    folder: Path = Path("harness-logs/hang")
    code: int = 0
    alone: bool = False
    answers: bool = False


host = Host()


@tf.autograph.experimental.do_not_convert
def asked_for(value: Callable[[], int]) -> tf.Tensor:
    """Return a whole number, int32, in a graph one that is asked for whenever it runs."""
    if tf.executing_eagerly():
        return tf.constant(value(), tf.int32)
    number = tf.numpy_function(lambda: np.int32(value()), [], tf.int32)
    number.set_shape([])
    return number


class ProcessSet:
    """Some of the ranks, in ascending order; `process_set_id` is None until all ranks have added it."""

    def __init__(self, ranks_or_comm: Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        self._exchange: Exchange | None = None
        self._sums: GroupedSums | None = None
        if isinstance(ranks_or_comm, Iterable):
            ranks = list(ranks_or_comm)
            if any(not isinstance(rank, int) for rank in ranks):
                raise ValueError(f"ranks {ranks} of a process set are not all integers")
            self.ranks = sorted(ranks)
        else:
            self.mpi_comm = ranks_or_comm

    def size(self) -> int | None:
        """Return the number of its ranks, None before it has been added."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return this rank's place in it, None before it has been added."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return self.ranks.index(rank()) if rank() in self.ranks else -1

    def included(self) -> bool | None:
        """Tell whether this rank is in it."""
        return None if self.ranks is None else rank() in self.ranks

    @property
    def exchange(self) -> Exchange:
        """What the set exchanges by.

        Raises:
            ValueError: it has not been added.
            tf.errors.InvalidArgumentError: this rank is not in it.
        """
        if self._exchange is None and current_ranks().sets.get(self.process_set_id or 0) is not self:
            raise ValueError(f"process set {self.ranks} has not been added: give it to hvd.init or hvd.add_process_set")
        if self._exchange is None:
            raise tf.errors.InvalidArgumentError(None, None, f"rank {rank()} is not in process set {self.ranks}")
        return self._exchange

    @property
    def sums(self) -> "GroupedSums":
        """The set's sums of gradients, opened on first use."""
        if self._sums is None:
            from harness.comm.grouped_sums import GroupedSums

            comm = self.exchange.comm
            self._sums = (None if self.process_set_id else host.sums()) or GroupedSums(
                World(comm=comm, rank=comm.Get_rank(), size=comm.Get_size()), host.watch
            )
        return self._sums

    def take_sums(self) -> None:
        """Give the timeline what its native sums have noted, and the record of the steps, where there is one."""
        for reduction in () if self._sums is None else self._sums.reductions:
            times = reduction.take_calls()
            timeline.add_sums(times)
            if mpi_exchange.calls is not None:
                mpi_exchange.calls.extend((entry, left) for entry, left in times.tolist())

    def count(self, dtype: Any) -> tf.Tensor:
        """Return the number of its ranks; in a graph one that follows those that fail, where some may."""
        if os.environ.get(FAULT_TOLERANCE):
            return tf.cast(asked_for(lambda: len(self.exchange.ranks)), dtype)
        return tf.constant(len(self.exchange.ranks), dtype)

    def go_on(self, world: World) -> None:
        """Exchange among the ranks of `world` from now on, in functions that are compiled already too."""
        self.ranks = list(range(world.size))
        self.exchange.change(world.comm, self.ranks)
        if self._sums is not None:
            self._sums.reopen(world)

    def open(self, number: int, comm: Any) -> None:
        """Take part as set `number`, by `comm` where this rank is in it; None for not."""
        self.process_set_id = number
        if comm is not None:
            assert self.ranks is not None
            self._exchange = Exchange(comm, self.ranks, host.watch, timeline)

    def close(self) -> None:
        """Be no set any more."""
        self.process_set_id = self._exchange = self._sums = None

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])


@dataclass(kw_only=True)
class _Ranks:
    """All ranks; `places` are what `rank` and its kin return, `joins` tells whether some script has `join`."""

    world: World
    places: dict[str, int]
    joins: bool
    sets: dict[int, ProcessSet]


_current: _Ranks | None = None


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Find the ranks; from now on the script is its own master. `process_sets` are all ranks' own, or "dynamic".

    Raises:
        UserError: some of the ranks are asked for, not all.
        ValueError: a process set is there twice, or ranks name different ones.
    """
    global _current
    if _current is not None:
        return
    from mpi4py import MPI

    world = World(comm=MPI.COMM_SELF, rank=0, size=1) if host.alone else start_mpi()
    asked = world.size
    if comm is not None:
        asked = len(list(comm)) if isinstance(comm, Iterable) else comm.Get_size()
    if asked not in (0, world.size):
        raise UserError("hvd.init(comm=) with some of the ranks only is not offered: use a process set")
    exchange_comm = world.comm.Dup()
    global_process_set.ranks = list(range(world.size))
    global_process_set.open(0, exchange_comm)
    _current = _find(world, exchange_comm, any(exchange_comm.allgather(_calls_join())))
    try:
        for process_set in [] if process_sets in (None, "dynamic") else process_sets:
            add_process_set(process_set)
    except ValueError:
        shutdown()
        raise
    host.begin()
    from keras.src.trainers import trainer

    trainer.model_supports_jit = lambda _: False  # of its own accord: XLA has no exchanges on processors
    _keep_from_autograph()


def _keep_from_autograph() -> None:
    """Have TensorFlow trace our functions as they are: it would rewrite what a script's function calls, and warn."""
    from tensorflow.python.autograph.core import config

    rules = tuple(config.DoNotConvert(package) for package in ("harness.comm", "harness.horovod"))
    config.CONVERSION_RULES = (*rules, *config.CONVERSION_RULES)


def _find(world: World, comm: Any, joins: bool) -> _Ranks:
    """Find each rank's place on its host, by `comm`."""
    from mpi4py import MPI

    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cross = comm.Split(local.Get_rank())
    hosts = comm.allgather(local.Get_size())
    places = {
        "rank": world.rank,
        "size": world.size,
        "local_rank": local.Get_rank(),
        "local_size": local.Get_size(),
        "cross_rank": cross.Get_rank(),
        "cross_size": cross.Get_size(),
        "is_homogeneous": len(set(hosts)) == 1,
    }
    return _Ranks(world=world, places=places, joins=joins, sets={0: global_process_set})


def go_on(world: World) -> None:
    """Be the ranks of `world`, all together and without process sets, from now on."""
    global _current
    ranks = current_ranks()
    for process_set in ranks.sets.values():
        if process_set is not global_process_set:
            process_set.close()
    _current = _find(world, world.comm, ranks.joins)
    global_process_set.go_on(world)
    host.follow(world)


def _calls_join() -> bool:
    """Tell whether the script has `join` of a module of Horovod's: its sums must then be ones that a joined rank sees.

    Which sum of the others comes next, a rank that has joined knows by headers only, and the native sums have none.
    """
    path = Path(getattr(sys.modules["__main__"], "__file__", None) or os.devnull)
    text = re.sub("#.*", "", path.read_text(errors="replace")) if path.is_file() else ""
    names = re.findall(r"^\s*(?:import|from) +horovod\b.* as +(\w+)", text, re.M)
    modules = "|".join([r"horovod(?:\.\w+)*", *names])
    return bool(re.search(rf"\b(?:{modules})\.join\b|^\s*from +horovod\b.* join\b", text, re.M))


def current_ranks() -> _Ranks:
    """Return the ranks.

    Raises:
        ValueError: `init` has not been called.
    """
    if _current is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _current


def is_initialized() -> bool:
    """Tell whether `init` has been called."""
    return _current is not None


def shutdown() -> None:
    """Forget the ranks and their sets; the timeline ends."""
    global _current
    stop_timeline()
    if _current is not None:
        for process_set in _current.sets.values():
            process_set.close()
    global_process_set.process_set_id = 0
    _current = None


def _place(name: str) -> Callable[[], int]:
    return lambda: current_ranks().places[name]


# This rank's number and the ranks', on this host, and among the hosts that have this local rank.
rank = _place("rank")
size = _place("size")
local_rank = _place("local_rank")
local_size = _place("local_size")
cross_rank = _place("cross_rank")
cross_size = _place("cross_size")
is_homogeneous = _place("is_homogeneous")  # whether all hosts have equally many ranks


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Add a set, on all ranks together, and return it.

    Raises:
        ValueError: the ranks name different sets, there is such a set already, or one of its ranks is not there.
    """
    new_set = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    ranks = current_ranks()
    all_ranks = global_process_set.exchange.comm
    if new_set.ranks is None:
        from mpi4py import MPI

        members = new_set.mpi_comm.Get_group()
        new_set.ranks = sorted(MPI.Group.Translate_ranks(members, None, all_ranks.Get_group()))
    named = all_ranks.allgather(new_set.ranks)
    if any(members != named[0] for members in named):
        raise ValueError(f"rank {rank()} adds process set {new_set.ranks}, another rank another one")
    if not new_set.ranks or not 0 <= new_set.ranks[0] <= new_set.ranks[-1] < ranks.world.size:
        raise ValueError(f"process set {new_set.ranks} names ranks that are not there: there are {ranks.world.size}")
    if any(added.ranks == new_set.ranks for added in ranks.sets.values()):
        raise ValueError(f"Attempted to add a duplicate process set: {new_set}")
    number = next(free for free in range(len(ranks.sets) + 1) if free not in ranks.sets)
    comm = all_ranks.Split(0 if rank() in new_set.ranks else 1, rank())
    new_set.open(number, comm if rank() in new_set.ranks else None)
    ranks.sets[number] = new_set
    return new_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set, on all ranks together; tell whether that was possible."""
    number = process_set.process_set_id
    if not number or current_ranks().sets.get(number) is not process_set:
        return False
    del current_ranks().sets[number]
    process_set.close()
    return True


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks of every set."""
    return {number: list(process_set.ranks or ()) for number, process_set in current_ranks().sets.items()}


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Note every exchange from now on; `stop_timeline`, or the end, has rank 0 write them to `file_path`."""
    if rank() == 0:
        timeline.start(str(file_path))
        atexit.register(stop_timeline)


def stop_timeline() -> None:
    """Write what `start_timeline` has had noted."""
    if timeline.path and _current is not None:
        for process_set in _current.sets.values():
            process_set.take_sums()
    timeline.stop()


@cache
def say_on_rank_0(sentence: str) -> None:
    """Print a sentence once, on rank 0's standard error."""
    if int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0) == 0:
        print(f"harness: {sentence}", file=sys.stderr, flush=True)
