"""The same random numbers on all ranks, whatever a script seeds them with."""

import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

from harness.comm.world import World


def same_hashes() -> None:
    """Start this process anew where Python's hashes, and so the order of sets, would be others on every rank."""
    if not os.environ.get("PYTHONHASHSEED"):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})


def common_seed(world: World) -> int:
    """Return a seed that rank 0 has drawn."""
    return int(world.comm.bcast(random.SystemRandom().randrange(2**31), root=0))


def same_randomness(world: World, seed: int) -> None:
    """Seed Python's and NumPy's generators on all ranks alike, and whenever the script seeds them anew."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    for owner, name in ((random, "seed"), (np.random, "seed"), (np.random, "default_rng")):
        setattr(owner, name, agreed(world, random.Random(seed), getattr(owner, name)))


def agreed(world: World, fresh: random.Random, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `original`, which takes a seed, with rank 0's in the place of every rank's own (of the time, say).

    In the place of None, which asks the operating system for one, comes one of `fresh`.
    """

    def seeding(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if not given or given[0] is None:
            return original(fresh.randrange(2**32))
        if isinstance(given[0], (int, float, str, bytes)) and threading.current_thread() is threading.main_thread():
            return original(world.comm.bcast(given[0], root=0), *given[1:])
        return original(*args, **kwargs)

    return seeding
