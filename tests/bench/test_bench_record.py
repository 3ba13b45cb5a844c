"""The ratios of a bench over synthetic blocks, and its old records."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.confidence_intervals import FEWEST_BLOCKS
from harness.bench.bench_record import (
    RECORD,
    BenchBlock,
    block_ratios,
    contender_ratio,
    paired_rates,
    read_bench,
    tabulate,
)
from harness.bench.contenders import BATCH_PER_RANK
from tests.labs.bench_records import bench_block, bench_record
from tests.labs.sentences import refuses


def test_ratios_are_formed_within_rounds() -> None:
    """The machine is ten times as slow in one round: the ratio stays, that of the medians would not."""
    one = bench_block(bare=(1.0, 10.0, 1.2, None), gradients=(2.0, 20.0, 2.4, 0.1))
    (ratio,) = block_ratios([one], "gradients", "bare")
    assert np.exp(ratio) == pytest.approx(0.5)


def test_rows_per_second_count_the_ranks() -> None:
    one = bench_block(bare_1=(1.0,), bare=(1.25,))
    (ratio,) = block_ratios([one], "bare", "bare-1")
    assert np.exp(ratio) == pytest.approx(2 / 1.25)
    assert tabulate(bench_record(one))[0].rates == {"bare-1": BATCH_PER_RANK, "bare": 2 * BATCH_PER_RANK / 1.25}


def test_fewer_than_three_blocks_have_no_interval_and_no_verdict() -> None:
    made = [bench_block(number, bound=(1.0,), gradients=(0.9,)) for number in range(FEWEST_BLOCKS)]
    few, enough = contender_ratio(made[:-1], "gradients", "bound"), contender_ratio(made, "gradients", "bound")
    assert few and (few.interval, few.met, few.blocks) == (None, None, 2)
    assert enough and enough.interval and enough.met is True


def planted(generator: np.random.Generator, ratio: float, count: int) -> list[BenchBlock]:
    """Return blocks whose starts differ by 0.8 %, rounds by 2 %, and in which the machine moves by 30 %."""
    made = []
    for number in range(count):
        speed = np.exp(generator.normal(0, 0.3, 40))
        starts = np.exp(generator.normal(0, 0.008, 2))
        bare, none = (start * speed * np.exp(generator.normal(0, 0.02, 40)) for start in starts)
        made.append(bench_block(number, bare=tuple(bare), none=tuple(none / ratio)))
    return made


def test_the_interval_holds_the_planted_ratio_in_nineteen_of_twenty_benches() -> None:
    generator, held, widths = np.random.default_rng(7), 0, []
    for _ in range(200):
        found = contender_ratio(planted(generator, 0.95, 6), "none", "bare")
        assert found and found.interval
        held += found.interval.low <= 0.95 <= found.interval.high
        widths.append(found.interval.high - found.interval.low)
    assert 183 <= held <= 197  # 190 expected
    assert np.median(widths) < 0.03


@pytest.mark.parametrize(("step", "met"), [(0.9, True), (1.1, False)])
def test_a_goal_is_met_or_missed_by_the_whole_interval(step: float, met: bool) -> None:
    made = [bench_block(number, bound=(1.0,), gradients=(step * (1 + 0.01 * number),)) for number in range(3)]
    assert tabulate(bench_record(*made))[0].ratios["gradients"]["bound"].met is met
    wide = [bench_block(number, bound=(1.0,), gradients=(0.8 + 0.2 * number,)) for number in range(3)]
    assert tabulate(bench_record(*wide))[0].ratios["gradients"]["bound"].met is None
    assert tabulate(bench_record(*made, forced=True))[0].ratios["gradients"]["bound"].met is None


def test_two_contenders_are_paired_by_block_and_not_from_a_forced_bench() -> None:
    made = (bench_block(gradients=(0.5, 0.5), none=(0.4, 0.4)), bench_block(1, gradients=(0.5,)))
    assert paired_rates(bench_record(*made), slow="gradients", fast="none") == [
        {"workload": "mnist-dnn", "slow": pytest.approx(256), "fast": pytest.approx(320)}
    ]
    assert paired_rates(bench_record(*made, forced=True), slow="gradients", fast="none") == []


def test_a_bench_by_launches_must_be_measured_again(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text(json.dumps({"schema": 1, "samples": []}))
    with refuses("BenchRecord"):
        read_bench(tmp_path / RECORD)
