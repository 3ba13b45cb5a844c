"""Which ranks there are, and by what they exchange: `init` finds them."""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.base.errors import UserError
from harness.comm.world import World, start_mpi
from harness.horovod.mpi_exchange import Exchange
from harness.horovod.not_offered import not_offered

if TYPE_CHECKING:
    from harness.comm.grouped_sums import GroupedSums


def unwatched() -> Any:
    """Return a watch that watches nothing, as under a launcher other than `harness run`."""
    return SimpleNamespace(opened=lambda _: None, named=lambda *_: None, inside=lambda *_: nullcontext())


@dataclass(kw_only=True)
class Host:
    """What runs the script: who watches its exchanges and sums its gradients, what is told of its first steps.

    `begin` is called when it calls `init`. `alone` where other ranks do not run it; `answers` for Keras 2's spellings.
    """

    watch: Any = field(default_factory=unwatched)
    sums: "Callable[[], GroupedSums | None]" = lambda: None
    begin: Callable[[], None] = lambda: None
    alone: bool = False
    answers: bool = False


host = Host()


@dataclass(kw_only=True)
class Ranks:
    """All ranks; `places` are what `rank` and its kin return. `own_sums` are opened where the host has none."""

    world: World
    places: dict[str, int]
    exchange: Exchange
    own_sums: "GroupedSums | None" = None

    @property
    def sums(self) -> "GroupedSums":
        """The sums of gradients, opened on first use."""
        if self.own_sums is None:
            from harness.comm.grouped_sums import GroupedSums

            comm = self.exchange.comm
            world = World(comm=comm, rank=comm.Get_rank(), size=comm.Get_size())
            self.own_sums = host.sums() or GroupedSums(world, host.watch)
        return self.own_sums


current: Ranks | None = None
"""What `init` has found: None before it, and after `shutdown`."""


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Find the ranks; from now on the script is its own master.

    Raises:
        UserError: some of the ranks are asked for, not all, or process sets.
    """
    global current
    if current is not None:
        return
    if process_sets:
        raise not_offered("process_sets")
    from mpi4py import MPI

    world = World(comm=MPI.COMM_SELF, rank=0, size=1) if host.alone else start_mpi()
    asked = world.size
    if comm is not None:
        asked = len(list(comm)) if isinstance(comm, Iterable) else comm.Get_size()
    if asked not in (0, world.size):
        raise UserError("hvd.init(comm=) with some of the ranks only is not offered: leave out comm=")
    exchange_comm = world.comm.Dup()
    local = exchange_comm.Split_type(MPI.COMM_TYPE_SHARED)
    places = {
        "rank": world.rank,
        "size": world.size,
        "local_rank": local.Get_rank(),
        "local_size": local.Get_size(),
    }
    current = Ranks(world=world, places=places, exchange=Exchange(exchange_comm, host.watch))
    host.begin()
    from keras.src.trainers import trainer

    trainer.model_supports_jit = lambda _: False  # of its own accord: XLA has no exchanges on processors
    _keep_from_autograph()


def _keep_from_autograph() -> None:
    """Have TensorFlow trace our functions as they are: it would rewrite what a script's function calls, and warn."""
    from tensorflow.python.autograph.core import config

    rules = tuple(config.DoNotConvert(package) for package in ("harness.comm", "harness.horovod"))
    config.CONVERSION_RULES = (*rules, *config.CONVERSION_RULES)


def current_ranks() -> Ranks:
    """Return the ranks.

    Raises:
        ValueError: `init` has not been called.
    """
    if current is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return current


def is_initialized() -> bool:
    """Tell whether `init` has been called."""
    return current is not None


def shutdown() -> None:
    """Forget the ranks."""
    global current
    current = None


def _place(name: str) -> Callable[[], int]:
    return lambda: current_ranks().places[name]


# This rank's number and the number of ranks, of all and of those on this host.
rank = _place("rank")
size = _place("size")
local_rank = _place("local_rank")
local_size = _place("local_size")


@cache
def say_on_rank_0(sentence: str) -> None:
    """Print a sentence once, on rank 0's standard error."""
    if int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0) == 0:
        print(f"harness: {sentence}", file=sys.stderr, flush=True)
