"""Launches with planted causes of lost time."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from harness.analysis.sync_calls import Calls
from harness.schema.record import EpochRecord
from harness.why.symptoms import Case
from tests.labs.factories import (
    make_point,
    make_provenance,
    make_ranks,
    make_run,
)

Rng = np.random.Generator


@dataclass(kw_only=True)
class Machine:
    """How a simulated launch runs; what is planted changes it. Seconds; `own` changes [epochs, steps, ranks]."""

    ranks: int = 4
    hosts: int = 1
    steps: int = 200
    epochs: int = 4
    step_s: float = 2e-3
    noise: float = 0.02
    tails: float = 0.001
    wire: float = 0.08
    input_s: Callable[[int], np.ndarray] = np.zeros
    own: Callable[[np.ndarray], np.ndarray] = lambda times: times
    batch: tuple[int, ...] = ()
    rows: int = 0
    last: float = 1.0
    rank: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    losses: tuple[float, float] = (0.3, 0.9)

    def case(self, rng: Rng) -> Case:
        """Return a launch of this machine, synchronised in every step."""
        shape = (self.epochs, self.steps, self.ranks)
        own = self.step_s * rng.lognormal(0, self.noise, shape) * rng.normal(1, 0.01, (self.epochs, 1, 1))
        own *= rng.normal(1, 0.01, self.ranks)
        hit = rng.random(shape) < self.tails
        own += hit * rng.exponential(self.step_s, shape)
        own[:, -1] *= self.last
        own = self.own(own)
        waits = self.input_s(self.steps)[None, :, None] * np.ones(shape)
        calls, epochs = [], []
        for number in range(self.epochs):
            told, record = self._epoch(number, own[number], waits[number], rng)
            calls.append(told)
            epochs.append(record)
        batch = self.batch or (64,) * self.ranks
        rows = self.rows or sum(batch) * self.steps
        ranks = [
            replace(one, host=f"node{one.rank * self.hosts // self.ranks}", batch=own_batch, **self._of(one.rank))
            for one, own_batch in zip(make_ranks(self.ranks, rows, 64), batch, strict=True)
        ]
        made = make_run(
            make_point(self.ranks),
            rows=rows,
            epochs=tuple(epochs),
            ranks=tuple(ranks),
            global_batch=sum(batch),
            provenance=replace(make_provenance(), **self.provenance),
            **self.run,
        )
        return Case(run=made, calls=tuple(calls) if self.ranks > 1 else ())

    def _of(self, rank: int) -> dict[str, Any]:
        return {name: value(rank) if callable(value) else value for name, value in self.rank.items()}

    def _epoch(self, number: int, own: np.ndarray, waits: np.ndarray, rng: Rng) -> tuple[Calls, EpochRecord]:
        wire = self.wire * self.step_s * rng.lognormal(0, 0.1, self.steps) * (self.ranks > 1)
        longest = (own + waits).max(axis=1)
        ends = np.cumsum(longest + wire)
        begins = ends - longest - wire
        entry = begins[:, None] + own + waits
        left = np.repeat(ends[:, None], self.ranks, axis=1)
        last = entry.max(axis=1, keepdims=True)
        alone = self.ranks == 1
        record = EpochRecord(
            epoch=number,
            steps=self.steps,
            seconds=(float(ends[-1]),) * self.ranks,
            sync_seconds=tuple(0.0 if alone else one for one in (left - entry).sum(axis=0).tolist()),
            input_seconds=tuple(waits.sum(axis=0).tolist()),
            skew_seconds=tuple((last - entry).sum(axis=0).tolist()),
            wire_seconds=tuple((left - last).sum(axis=0).tolist()),
            train_loss=self.losses[0],
            test_accuracy=self.losses[1],
        )
        nothing = np.zeros((1, self.ranks))
        calls = Calls(
            epoch=number,
            begin=np.zeros(self.ranks),
            end=left[-1],
            step=np.arange(self.steps),
            entry=entry,
            exit=left,
            turn=np.zeros(self.steps, dtype=np.int32),
            statistics=np.zeros((self.steps + 1, self.ranks)),
            input=np.vstack([waits, nothing]),
        )
        return calls, record


def slower(rank: int, factor: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda times: times * np.where(np.arange(times.shape[2]) == rank, factor, 1.0)
