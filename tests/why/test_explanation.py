"""POP's tree and the overheads: planted costs come back, factors multiply up, an independent count agrees."""

import json
import shutil
import statistics
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.sync_calls import Calls, read_calls
from harness.analysis.time_parts import EPOCH_PARTS
from harness.schema.sweep_folder import STEPS_FILE
from harness.why.explanation import Explanation, explain_sweep
from harness.why.overheads import LAUNCH_CAUSES, PARTS, last_ranks, overheads, skew_shares
from tests.labs.factories import make_point, write_study
from tests.labs.planted import BATCHES, write_planted
from tests.labs.planted_overheads import INPUT, RANKS, STEP, WIRE, noisy, plant

RECORDS = Path(__file__).parents[1] / "data/mnist-dnn-6x2"
STEPS = BATCHES // RANKS
FACTORS = {
    "global efficiency": ("parallel efficiency", "computation scaling"),
    "parallel efficiency": ("load balance", "communication efficiency"),
    "communication efficiency": ("serialisation efficiency", "transfer efficiency"),
}


PLANTED = {
    "computing_seconds": ({"slower": 5e-5}, STEPS * 5e-5),
    "skew_rank_seconds": ({"lag": 8e-5}, STEPS * 8e-5 * 3 / 4),
    "skew_rare_seconds": ({"rare": 1e-3}, STEPS / 50 * 1e-3 * 3 / 4),
    "skew_rows_seconds": ({"more_rows": 2e-4}, STEPS * 2e-4 * 3 / 4),
    "skew_jitter_seconds": ({"jitter": 5e-5}, STEPS * 5e-5 * (1 + 1 / 2 + 1 / 3 + 1 / 4 - 1)),
}


@pytest.mark.parametrize("column", PLANTED)
def test_a_planted_cost_comes_back_under_its_name(tmp_path: Path, column: str) -> None:
    """The maximum of four exponentials is 1 + 1/2 + 1/3 + 1/4 of their mean; of one late rank three wait."""
    planted, seconds = PLANTED[column]
    (point,) = plant(tmp_path / "study", **planted).overheads
    items = {item.cause.column: item for item in point.items}
    sums = items["sum_seconds"].fraction * point.measured
    assert sums == pytest.approx(STEPS * WIRE, rel=2e-4)  # a mean over launches of slightly unequal times
    found = items[column]
    assert found.seconds == pytest.approx(seconds, rel=0.06)
    assert found.fraction_interval is not None
    reach = 0.06 * found.fraction
    assert found.fraction_interval.low - reach <= seconds / point.measured <= found.fraction_interval.high + reach
    allowed = {column, "sum_seconds", "input_seconds"}
    if column != "computing_seconds":
        allowed.add("computing_seconds")  # who comes late has computed for longer, a quarter of it in the mean
    for name, item in items.items():
        if name not in allowed:
            assert abs(item.seconds) < 0.1 * seconds, name
    assert items["input_seconds"].seconds == pytest.approx(
        INPUT * 3 / 4, rel=2e-4
    )  # one rank's did not shrink with the ranks


def test_shares_have_an_interval_only_where_something_is_lost_for_certain(tmp_path: Path) -> None:
    """The base's launches are of two speeds, and the four ranks are between them."""
    folder = tmp_path / "study"
    write_study(folder, ranks=(1, RANKS))
    for repeat in range(8):
        pace = STEP * (1 + 0.2 * (repeat % 2))
        write_planted(folder, 1, repeat, lambda _, steps, pace=pace: np.full((steps, 1), pace), input_s=INPUT)
        write_planted(folder, RANKS, repeat, lambda _, steps: np.full((steps, RANKS), 1.15 * STEP), input_s=INPUT)
    (point,) = explain_sweep(folder).overheads
    assert point.fraction_interval is not None
    assert point.fraction_interval.low < 0 < point.seconds / point.measured < point.fraction_interval.high
    assert all(item.share is not None and item.share_interval is None for item in point.items)
    (point,) = plant(tmp_path / "certain", slower=5e-5).overheads
    assert point.fraction_interval is not None and point.fraction_interval.low > 0
    assert all(item.share_interval is not None for item in point.items)


def test_the_items_sum_to_the_loss_and_to_the_parts_of_the_breakdown(tmp_path: Path) -> None:
    found = plant(tmp_path / "study", slower=5e-5, lag=8e-5, rare=1e-3, jitter=2e-5)
    launches = found.detail.launches
    (point,), (parts,) = found.overheads, overheads(found.scaling, launches, PARTS)
    assert sum(item.share or 0 for item in point.items) == pytest.approx(1.0, abs=1e-9)
    sure = [item.share for item in point.items if item.sure and item.cause.column != "unexplained_seconds"]
    assert sum(filter(None, sure)) == pytest.approx(1.0, abs=0.02)
    seconds = {item.cause.part: item.seconds for item in parts.items}
    for part in EPOCH_PARTS:
        assert sum(item.seconds for item in point.items if item.cause.part == part) == pytest.approx(seconds[part])
    (whole,) = overheads(found.scaling, launches, LAUNCH_CAUSES)
    assert sum(item.seconds for item in whole.items) == pytest.approx(whole.seconds)


def calls_of(between: np.ndarray, wire: float = 1e-4) -> Calls:
    """Return the calls of an epoch whose ranks compute `between` [calls + 1, ranks]."""
    entry, left, now = [], [], np.zeros(between.shape[1])
    for own in between[:-1]:
        entry.append(now + own)
        now = np.full(between.shape[1], entry[-1].max() + wire)
        left.append(now)
    return Calls(
        epoch=0,
        begin=np.zeros(between.shape[1]),
        end=now + between[-1],
        step=np.arange(len(entry), dtype=np.int32),
        entry=np.reshape(entry, (-1, between.shape[1])),
        exit=np.reshape(left, (-1, between.shape[1])),
        turn=np.zeros(len(entry), dtype=np.int32),
        statistics=np.zeros_like(between),
        input=np.zeros_like(between),
    )


def test_a_rare_delay_is_found_on_its_rank_in_a_hundred_of_a_hundred_launches() -> None:
    """1 ms on rank 1 in every 50th step of 1 ms that scatter by 1 %."""
    for seed in range(100):
        between = np.random.default_rng(seed).normal(1e-3, 1e-5, (501, 2))
        between[:-1:50, 1] += 1e-3
        epoch = calls_of(between)
        shares, last = skew_shares([epoch], [64, 64]), last_ranks([epoch])
        assert shares["rare"] * epoch.skew.mean(axis=1).sum() == pytest.approx(10 * 1e-3 / 2, rel=0.1), seed
        assert max(last, key=lambda one: one.share).rank == 1, seed
        assert sum(shares.values()) == pytest.approx(1)


def test_no_calls_and_no_waiting_have_no_shares() -> None:
    assert set(skew_shares([calls_of(np.ones((1, 2)))], [1, 1]).values()) == {0.0}
    assert set(skew_shares([calls_of(np.ones((9, 2)))], [1, 1]).values()) == {0.0}
    assert last_ranks([calls_of(np.ones((1, 2)))]) == ()


@given(st.integers(1, 5), st.integers(0, 2**31), st.floats(0, 1e-3))
def test_skew_and_useful_time_fill_every_call(ranks: int, seed: int, wire: float) -> None:
    between = np.random.default_rng(seed).exponential(1e-3, (20, ranks))
    epoch = calls_of(between, wire)
    assert epoch.between == pytest.approx(between)
    filled = epoch.between.sum(axis=0) + epoch.skew.sum(axis=0) + epoch.wire.sum(axis=0)
    assert filled == pytest.approx(epoch.end - epoch.begin)


@pytest.mark.parametrize("seed", range(3))
def test_factors_multiply_up_and_the_root_is_the_efficiency(tmp_path: Path, seed: int) -> None:
    scale = np.random.default_rng(seed).uniform(0, 1e-4, 3)
    found = plant(tmp_path / "study", slower=scale[0], lag=scale[1], jitter=scale[2], launches=6 + seed)
    check_tree(found)


def test_the_tree_of_real_launches_is_an_independent_count(tmp_path: Path) -> None:
    """Rank by rank from raw entries and exits, with no code of the analysis."""
    shutil.copytree(RECORDS, tmp_path / RECORDS.name)
    found = explain_sweep(tmp_path / RECORDS.name)
    check_tree(found)
    counted = defaultdict(list)
    for file in sorted((tmp_path / RECORDS.name).glob(f"n2*/{STEPS_FILE}")):
        run = json.loads(file.with_name("run.json").read_text())
        epochs = []
        for epoch in run["epochs"]:
            useful, slowest = [0.0, 0.0], 0.0
            rows = [row for row in pq.read_table(file).to_pylist() if row["epoch"] == epoch["epoch"]]
            by_rank = [sorted((r for r in rows if r["rank"] == k), key=lambda r: r["step"]) for k in (0, 1)]
            before = [ranks[0]["begin_s"] for ranks in by_rank]
            for step in range(epoch["steps"]):
                own = [by_rank[k][step]["entry_s"] - before[k] for k in (0, 1)]
                before = [by_rank[k][step]["exit_s"] for k in (0, 1)]
                useful, slowest = [a + b for a, b in zip(useful, own, strict=True)], slowest + max(own)
            tail = [by_rank[k][0]["begin_s"] + epoch["seconds"][k] - before[k] for k in (0, 1)]
            useful, slowest = [a + b for a, b in zip(useful, tail, strict=True)], slowest + max(tail)
            epochs.append((max(epoch["seconds"]), sum(useful) / 2, max(useful), slowest))
        for name, values in zip(("seconds", "useful", "longest", "ideal"), zip(*epochs, strict=True), strict=True):
            counted[name].append(sorted(values)[1])
    mean = {name: statistics.fmean(values) for name, values in counted.items()}
    metrics = found.efficiencies[-1].metrics
    assert metrics["parallel efficiency"].value == pytest.approx(mean["useful"] / mean["seconds"], rel=1e-9)
    assert metrics["load balance"].value == pytest.approx(mean["useful"] / mean["longest"], rel=1e-9)
    assert metrics["serialisation efficiency"].value == pytest.approx(mean["longest"] / mean["ideal"], rel=1e-9)
    assert metrics["transfer efficiency"].value == pytest.approx(mean["ideal"] / mean["seconds"], rel=1e-9)


def check_tree(found: Explanation) -> None:
    for tree, point in zip(found.efficiencies, found.scaling.points, strict=True):
        value = {name: one.value for name, one in tree.metrics.items()}
        for name, factors in FACTORS.items():
            assert value[name] == pytest.approx(np.prod([value[factor] for factor in factors]))
        for name in ("load balance", "serialisation efficiency", "transfer efficiency"):
            assert 0 < value[name] <= 1 + 1e-9
        assert value["global efficiency"] / found.efficiencies[0].metrics["global efficiency"].value == pytest.approx(
            point.efficiency
        )
        for one in tree.metrics.values():
            assert one.interval is not None and one.interval.low - 1e-9 <= one.value <= one.interval.high + 1e-9


def test_under_weak_scaling_the_ideal_is_the_time_of_the_base(tmp_path: Path) -> None:
    write_study(tmp_path / "study", samples=64 * BATCHES)
    for repeat in range(6):
        for ranks, wire in ((1, 0.0), (2, WIRE)):
            point = make_point(ranks, repeat, "weak", samples=64 * BATCHES * ranks)
            write_planted(
                tmp_path / "study", ranks, repeat, partial(noisy, ranks=ranks, mean=STEP), wire=wire, point=point
            )
    (tmp_path / "study/sweep.json").unlink()
    found = explain_sweep(tmp_path / "study")
    check_tree(found)
    (point,) = found.overheads
    assert point.ideal == pytest.approx(BATCHES * STEP, rel=0.01)
    assert {item.cause.column: item.seconds for item in point.items}["sum_seconds"] == pytest.approx(
        BATCHES * WIRE, rel=2e-4
    )


def test_sums_of_statistics_are_no_useful_time(tmp_path: Path) -> None:
    run = write_planted(tmp_path, 2, 0, lambda rng, steps: np.full((steps, 2), STEP), wire=WIRE, epochs=1)
    file = tmp_path / run.point.folder / STEPS_FILE
    table = pq.read_table(file)
    (plain,) = read_calls(file.parent, run)
    pq.write_table(table.append_column("statistics_s", pa.array(np.full(len(table), 1e-4))), file)
    (found,) = read_calls(file.parent, run)
    assert plain.between - found.between == pytest.approx(np.vstack([np.full((BATCHES // 2, 2), 1e-4), [[0, 0]]]))
