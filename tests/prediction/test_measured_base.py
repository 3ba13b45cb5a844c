"""What a prediction rests on: sums of one synchronisation, how ranks differ, and the slowest of many."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.analysis.read_results import load_sweep
from harness.prediction.measured_base import measured_base, measured_factor, slowest
from harness.prediction.network_cost import Link, allreduce_seconds
from harness.schema.layout import Layout
from harness.schema.sweep import Sweep
from tests.labs.factories import make_launch, make_workload, write_run, write_study
from tests.labs.prediction_base import base

LINK = Link(alpha_s=2e-6, beta_s_per_byte=1e-10)


def test_measured_stragglers_follow_the_sample() -> None:
    """The slowest of p lognormal times of sigma 5 %: 1.08 times the mean at 8 ranks, 1.14 at 100."""
    times = np.random.default_rng(1).lognormal(0, 0.05, 40_000)
    worst = np.random.default_rng(2).lognormal(0, 0.05, (20_000, 100)).max(axis=1).mean() / np.exp(0.05**2 / 2)
    assert measured_factor(times, [1, 8, 100]) == pytest.approx([1, 1.075, worst], rel=0.01)
    assert measured_factor([1.0, 3.0], [1, 2, 1000]) == pytest.approx([1, (1 / 4 + 3 * 3 / 4) / 2, 1.5])


def related_steps(random: np.random.Generator, kind: str, size: int) -> np.ndarray:
    """Return compute times of steps, slow ones of which come together."""
    if kind == "AR(1)":
        fresh, found = random.normal(0, 0.1 * (1 - 0.9**2) ** 0.5, size), np.empty(size)
        found[0] = random.normal(0, 0.1)
        for n in range(1, size):
            found[n] = 0.9 * found[n - 1] + fresh[n]
        return 1 + found
    slow, keeps = np.empty(size, dtype=bool), random.random(size)
    slow[0] = False
    for n in range(1, size):
        slow[n] = keeps[n] > (0.1 if slow[n - 1] else 0.98)
    return 1 + 0.3 * slow + random.normal(0, 0.01, size)


@pytest.mark.parametrize("kind", ["AR(1)", "bursts"])
@pytest.mark.parametrize("period", [16, 100])
def test_the_wait_after_several_steps_knows_that_slow_ones_come_together(kind: str, period: int) -> None:
    """16 steps of AR(1) wait 0.11 for the slowest of 8; single steps over a root said 0.035."""
    random = np.random.default_rng(5)
    true = related_steps(random, kind, 8 * 400 * period).reshape(8, 400, period).mean(axis=2)
    waits = float(true.max(axis=0).mean() / true.mean()) - 1
    recorded = tuple(related_steps(random, kind, 20_000))
    factor = slowest(base(jitter=recorded), np.array([8.0]), np.array([float(period)]))[0]
    assert factor - 1 == pytest.approx(waits, rel=0.12)


def test_between_hosts_each_large_tensor_has_an_allreduce() -> None:
    """As NativeReduction sums by messages: tensors below 16 kB are packed; in 16 bits a fifth one is."""
    whole = base(tensors=(627_200, 800, 24_000, 400, 80_000, 4_000))
    halved = replace(whole, workload=make_workload(wire="bf16"))
    for measured, sizes in ((whole, (627_200, 24_000, 80_000, 5_200)), (halved, (313_600, 40_000, 14_600))):
        every = sum(allreduce_seconds([8], size, LINK) for size in sizes)
        assert measured.sums(np.array([8.0]), LINK) == pytest.approx(every)


def test_policies_cost_the_sums_that_they_make() -> None:
    shapes = ((784, 200), (200,), (200, 30), (30,), (30, 100), (100,), (100, 10), (10,))
    measured = base(shapes=shapes, bytes=4 * sum(map(math.prod, shapes)))

    def seconds(sizes: tuple[int, ...]) -> float:
        return sum(allreduce_seconds([2], 4 * size, LINK)[0] for size in sizes)

    def sums(**settings: object) -> float:
        asked = replace(measured, workload=make_workload(**settings))
        return float(asked.sums(np.array([2.0]), LINK)[0])

    whole = (784 * 200, 200 * 30, 200 + 30 + 3000 + 100 + 1000 + 10)
    assert sums() == sums(sync="diloco:7") == pytest.approx(seconds(whole))
    left = 2 * (784 + 200 + 30 + 100) + 200 + 30 + 100 + 10
    assert sums(sync="powersgd:2") == pytest.approx(seconds((left, 2 * (200 + 30 + 100 + 10))))


def write_base(results: Path, compute: float = 0.01) -> Sweep:
    """Six launches on 1 and 2 ranks; 2 ranks wait 20 % of a step's computation now and then."""
    sweep = Sweep(workload=make_workload(), layouts=(Layout(nodes=1), Layout(nodes=2)), repeats=6)
    folder = results / sweep.name
    write_study(folder)
    for repeat in range(6):
        write_run(folder, make_launch(1, repeat, compute * 100 * (1 + repeat / 100), sync=0.0))
        two = write_run(folder, make_launch(2, repeat, compute * 55, sync=0.1))
        steps = np.arange(50)
        parts = []
        for rank, epoch in ((rank, epoch) for rank in range(2) for epoch in range(3)):  # never slow in the same step
            entry = compute * (steps + 1) + np.where(steps % 10 == 5 * rank, 0.2 * compute, 0)
            rows = {"step": steps, "begin_s": 0.0, "entry_s": entry, "exit_s": compute * (steps + 1)}
            parts.append(pd.DataFrame(rows).assign(rank=rank, epoch=epoch))
        table = pd.concat(parts)
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), two / "steps.parquet")
    return sweep


def test_the_jitter_comes_from_the_most_ranks(tmp_path: Path) -> None:
    sweep = write_base(tmp_path)
    measured = measured_base(load_sweep(tmp_path / sweep.name))
    assert measured.bytes == 712_440
    means = [1 + 0.2 * slow / 49 for slow in (4, 5)]  # steps 10 to 40 of rank 0, 5 to 45 of rank 1
    own = (1.2 / means[0] - 1 / means[1]) / 2**0.5  # a residual of two ranks, times the root of 2
    assert len(measured.jitter) == 6 * 3 * 2 * 49 and max(measured.jitter) == pytest.approx(1 + own)


def test_a_rank_that_is_always_slower_stays_so_in_the_prediction(tmp_path: Path) -> None:
    """Rank 1 computes 30 ms where rank 0 takes 20: each over its own mean, both looked alike."""
    write_study(tmp_path / "study", ranks=(1, 2))
    write_run(tmp_path / "study", make_launch(1, 0, 2.0, sync=0.0))
    folder = write_run(tmp_path / "study", make_launch(2, 0, 1.5))
    steps = [
        {"epoch": epoch, "step": step, "rank": rank, "begin_s": 0.0, "entry_s": came, "exit_s": 0.1 * step}
        for epoch in range(3)
        for rank, compute in ((0, 0.02), (1, 0.03))
        for step in range(50)
        for came in (0.1 * (step - 1) + compute,)
    ]
    pq.write_table(pa.Table.from_pylist(steps), folder / "steps.parquet")
    measured = measured_base(load_sweep(tmp_path / "study"))
    assert measured.imbalance == pytest.approx((0.8, 1.2)) and max(measured.jitter) == pytest.approx(1)
    factor = slowest(measured, np.array([2.0]), np.array([1.0]))[0]
    assert factor == pytest.approx(3 / 4 * 1.2 + 1 / 4 * 0.8)
