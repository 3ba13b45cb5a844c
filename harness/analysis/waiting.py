"""Skew and wire: what the ranks wait for each other, and what the allreduce itself takes."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Seconds of one epoch, mean over ranks, median over epochs. Both 0 without synchronisation."""

    skew: float
    wire: float


def waiting(steps_file: Path) -> Waiting:
    """Return the waiting of the launch whose ``steps.parquet`` is `steps_file`.

    A call cannot end before the last rank has entered it: until then a rank waits (skew), the rest is wire.
    The ranks' clocks start at one barrier, so their entries compare within the barrier's own spread (µs).
    """
    steps = pd.read_parquet(steps_file, columns=["epoch", "step", "rank", "entry_s", "exit_s"])
    called = steps.dropna(subset=["entry_s", "exit_s"])
    if called.empty:
        return Waiting(skew=0.0, wire=0.0)
    last = called.groupby(["epoch", "step"])["entry_s"].transform("max")
    parts = called.assign(skew=last - called["entry_s"], wire=(called["exit_s"] - last).clip(lower=0.0))
    epochs = parts.groupby("epoch")[["skew", "wire"]].sum() / steps["rank"].nunique()
    return Waiting(skew=float(epochs["skew"].median()), wire=float(epochs["wire"].median()))
