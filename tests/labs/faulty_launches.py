"""Launches on a stand-in of Adult by a network of `tests.mpi.faulty`, which has a fault planted in it."""

import subprocess

from tests.mpi.launch import run_ranks

ROWS = 5000


def train_faulty(
    ranks: int,
    fault: str,
    *options: object,
    timeout: float = 200.0,
    python: str | None = None,
    outlives: bool = False,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Train the network `fault` on `ranks` ranks by ``harness train``, whose other `options` come last.

    With `outlives` the ranks may be lost without an end of the others. `timeout` (seconds), `python` and `environment`
    are those of `run_ranks`.
    """
    words = ("--dataset", "adult", "--data-kind", "synthetic", "--samples", ROWS)
    words = (*words, "--model", f"tests.mpi.faulty:{fault}", *options)
    if outlives:
        words = (*words, "--on-failure", "shrink")
    return run_ranks(
        ranks, "-m", "harness", "train", *words, timeout=timeout, python=python, outlives=outlives, **environment
    )
