"""One seed for all ranks where the script sets none: initial weights and the order of rows must agree."""

import random

from harness.comm.world import World


def common_seed(world: World) -> int:
    """Return a seed that rank 0 has drawn."""
    return int(world.comm.bcast(random.SystemRandom().randrange(2**31), root=0))


def same_randomness(seed: int) -> None:
    """Seed Python's and NumPy's generators, and those that NumPy would seed from the operating system."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    fresh = random.Random(seed)
    original = np.random.default_rng

    def default_rng(source: object = None) -> "np.random.Generator":
        return original(fresh.randrange(2**63) if source is None else source)  # type: ignore[arg-type]

    np.random.default_rng = default_rng  # type: ignore[assignment]
