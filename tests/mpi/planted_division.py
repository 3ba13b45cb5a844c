"""Run a script on ranks whose division has a mistake: ``planted_division.py MISTAKE SCRIPT``."""

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from harness.transparent import collectives, rows
from harness.transparent.__main__ import main


def doubled_weight(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Have rank 1's rows count twice."""
    own, summed = original(*args, **kwargs)
    return own * (1.0 + args[0].world.rank), summed


def dropped_row(original: Callable[..., Any], total: Any, rank: int, size: int) -> Any:
    """Leave out the last row of rank 1's part."""
    begin, count = original(total, rank, size)
    return begin, count - rank


def metric_twice(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Add up the first state of the metrics twice."""
    first, *rest = original(*args, **kwargs)
    return [2 * first if args[2] == "metrics" else first, *rest]


def stale_gradient(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Lose one of the averaged gradients."""
    first, *rest = original(*args, **kwargs)
    return [tf.zeros_like(first) if args[2] == "gradients" else first, *rest]


def half_scale(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Divide sums by the number of ranks once more."""
    return [part / 2 if args[2] == "gradients" else part for part in original(*args, **kwargs)]


PLACES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "doubled-weight": (collectives.Collectives, "_weight", doubled_weight),
    "dropped-row": (rows, "bounds", dropped_row),
    "metric-twice": (collectives.Collectives, "sum", metric_twice),
    "lost-gradient": (collectives.Collectives, "sum", stale_gradient),
    "half-scale": (collectives.Collectives, "sum", half_scale),
}

if __name__ == "__main__":
    owner, name, wrong = PLACES[sys.argv.pop(1)]
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: wrong(original, *args, **kwargs))
    main()
