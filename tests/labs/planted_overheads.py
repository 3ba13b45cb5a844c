"""Launches with planted overheads."""

from pathlib import Path

import numpy as np

from harness.why.explanation import Explanation, explain_sweep
from tests.labs.factories import write_study
from tests.labs.planted import write_planted

RANKS, STEP, WIRE, INPUT = 4, 1e-3, 1e-4, 2e-3


def noisy(rng: np.random.Generator, steps: int, ranks: int, mean: float) -> np.ndarray:
    """Return compute times that scatter by 0.1 % between launches, and not within one."""
    return np.full((steps, ranks), mean * (1 + 1e-3 * rng.standard_normal()))


def alone(rng: np.random.Generator, steps: int) -> np.ndarray:
    return noisy(rng, steps, 1, STEP)


def plant(folder: Path, slower=0.0, lag=0.0, rare=0.0, jitter=0.0, more_rows=0.0, launches=8, **changes) -> Explanation:
    """Write a base of one rank and a point of RANKS with these seconds of a step planted."""

    def together(rng: np.random.Generator, steps: int) -> np.ndarray:
        times = noisy(rng, steps, RANKS, STEP + slower)
        times[:, 2] += lag + more_rows
        times[::50, 1] += rare
        return times + jitter * rng.exponential(size=times.shape)

    write_study(folder, ranks=(1, RANKS))
    for repeat in range(launches):
        write_planted(folder, 1, repeat, alone, input_s=INPUT)
        batch = (60, 60, 76, 60) if more_rows else None
        write_planted(folder, RANKS, repeat, together, wire=WIRE, input_s=INPUT, batch=batch, **changes)
    return explain_sweep(folder)
