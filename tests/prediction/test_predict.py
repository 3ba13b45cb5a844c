"""Predictions: the cost formulas by hand, the slowest rank, speed, the simulator, and the score afterwards."""

import json
import math
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from harness.analysis.read_results import load_sweep
from harness.base.errors import UserError
from harness.prediction.measured_base import measured_base
from harness.prediction.network_cost import ALGORITHMS, BEST, Levels, Link, Uncertain, allreduce_seconds
from harness.prediction.slowest_rank import measured_factor
from harness.prediction.step_model import assumptions, predict_network, predict_ratio
from harness.schema.layout import Layout
from harness.schema.sweep import Sweep
from tests.labs.code_sentences import worded
from tests.labs.factories import make_launch, make_workload, write_run, write_study
from tests.labs.prediction_base import base
from tests.labs.simgrid import simulated

LINK = Link(alpha_s=2e-6, beta_s_per_byte=1e-10)
FLAT = Levels(network=LINK)
RING = replace(FLAT, algorithm="ring")
# The seven workloads' float32 weights in bytes, and a step's computation of a core of some years ago, in seconds.
SEVEN = {
    "adult-dnn": (180_408, 150e-6),
    "acoustic-dnn": (122_412, 140e-6),
    "mnist-dnn": (712_440, 300e-6),
    "mnist-cnn": (13_098_536, 30e-3),
    "cifar10-dnn": (2_543_640, 800e-6),
    "cifar10-cnn": (17_198_120, 40e-3),
    "higgs-dnn": (126_984, 300e-6),
}


@pytest.mark.parametrize(
    ("algorithm", "by_hand"),
    [
        ("ring", 2 * 7 * 2e-6 + 2 * 7 / 8 * 1e6 * 1e-10),
        ("rabenseifner", 2 * 3 * 2e-6 + 2 * 7 / 8 * 1e6 * 1e-10),
        ("recursive-doubling", 3 * (2e-6 + 1e6 * 1e-10)),
    ],
)
def test_allreduce_formulas_by_hand(algorithm: str, by_hand: float) -> None:
    assert allreduce_seconds([1, 8], 1e6, replace(FLAT, algorithm=algorithm)) == pytest.approx([0, by_hand])


@pytest.mark.parametrize(
    ("algorithm", "by_hand"),
    [
        ("ring", 2 * 5 * 2e-6 + 2 * 5 / 6 * 1e6 * 1e-10),
        ("rabenseifner", 2 * 2 * 2e-6 + 2 * 3 / 4 * 1e6 * 1e-10 + 2 * 102e-6),
        ("recursive-doubling", 2 * 102e-6 + 2 * 102e-6),
    ],
)
def test_six_ranks_pay_for_being_no_power_of_two(algorithm: str, by_hand: float) -> None:
    assert allreduce_seconds([1, 6], 1e6, replace(FLAT, algorithm=algorithm)) == pytest.approx([0, by_hand])


def test_a_ratio_is_as_uncertain_as_the_corners_of_its_costs() -> None:
    """Computation and links 20 % off: low ends with low ends cancelled, and said 5.51 (5.51 to 5.51)."""
    links = [Link(alpha_s=0.0, beta_s_per_byte=factor * 1e-9) for factor in (1.0, 0.8, 1.2)]
    ends = [replace(RING, network=link) for link in links]
    network = Uncertain(value=ends[0], low=ends[1], high=ends[2])
    size = round(0.15 * 1e9 / (2 * 31 / 32))  # so that the sums of 32 ranks take 15 % of the computation on one
    large = make_workload(global_batch=64)
    one = base(workload=large, rows=64, bytes=size, compute_s=1.0, low_s=0.8, high_s=1.2)
    value, interval = predict_ratio(one, 1, 32, network)
    assert value == pytest.approx(1 / (1 / 32 + 0.15), rel=1e-3)
    assert interval.low == pytest.approx(0.8 / (0.8 / 32 + 1.2 * 0.15), rel=1e-3)
    assert interval.high == pytest.approx(1.2 / (1.2 / 32 + 0.8 * 0.15), rel=1e-3)


def test_nodes_are_crossed_once_by_a_rank_of_each() -> None:
    inner = Link(alpha_s=1e-6, beta_s_per_byte=1e-11)
    levels = Levels(network=LINK, node=inner, ranks_per_node=4, algorithm="ring")
    found = allreduce_seconds([2, 4, 16], 1e6, levels)
    inside = [2 * (p - 1) * 1e-6 + 2 * (p - 1) / p * 1e6 * 1e-11 for p in (2, 4, 4)]
    assert found == pytest.approx([inside[0], inside[1], inside[2] + 2 * 3 * 2e-6 + 2 * 3 / 4 * 1e6 * 1e-10])


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
    asked = base(jitter=recorded, workload=make_workload(sync=f"weights:{period}"))
    row = predict_network(asked, [1, 8], Uncertain.exact(RING)).iloc[1]
    assert row["straggler_s"] / row["compute_s"] == pytest.approx(waits, rel=0.12)


def test_a_step_is_computation_wait_and_allreduce() -> None:
    row = predict_network(base(jitter=(0.9, 1.0, 1.1)), [1, 8], Uncertain.exact(RING)).iloc[1]
    reduce = allreduce_seconds([8], 712_440, RING)[0]
    wait = 300e-6 * (measured_factor((0.9, 1.0, 1.1), [8])[0] - 1)
    assert (row["compute_s"], row["straggler_s"], row["allreduce_s"]) == pytest.approx((300e-6, wait, reduce))
    assert row["steps"] == 125 and row["epoch_s"] == pytest.approx(125 * (300e-6 + wait + reduce))
    assert row["speedup"] == pytest.approx(1000 * 300e-6 / row["epoch_s"])
    assert row["epoch_low_s"] < row["epoch_s"] < row["epoch_high_s"]


def test_between_hosts_each_large_tensor_has_an_allreduce() -> None:
    """As NativeReduction sums by messages: tensors below 16 kB are packed; in 16 bits a fifth one is."""
    known = base(tensors=(627_200, 800, 24_000, 400, 80_000, 4_000))
    halved = replace(known, workload=make_workload(wire="bf16"))
    for one, sizes in ((known, (627_200, 24_000, 80_000, 5_200)), (halved, (313_600, 40_000, 14_600))):
        every = sum(allreduce_seconds([8], size, RING) for size in sizes)
        assert one.sums(np.array([8.0]), RING) == pytest.approx(every)
    crowded = replace(RING, ranks_per_node=4)
    assert known.sums(np.array([8.0]), crowded) == allreduce_seconds([8], sum(known.tensors), crowded)


def test_global_batch_weak_scaling_and_sync_policies() -> None:
    fixed = base(workload=make_workload(global_batch=64))
    assert list(predict_network(fixed, [1, 4], Uncertain.exact(FLAT))["compute_s"]) == pytest.approx([300e-6, 75e-6])
    assert "shrink" in assumptions(fixed, [4])[0]
    weak = predict_network(base(scaling="weak", rows=6400), [1, 4], Uncertain.exact(FLAT))
    reduce = allreduce_seconds([4], 712_440, FLAT)[0]
    assert list(weak["steps"]) == [100, 100]
    assert weak["speedup"].iloc[1] == pytest.approx(4 * 300e-6 / (300e-6 + reduce))
    parts = {"weights:4": 1 / 4, "weights:epoch": 1 / 500, "none": 0.0, "diloco:50": 1 / 50}
    for sync, part in parts.items():
        row = predict_network(base(workload=make_workload(sync=sync)), [2], Uncertain.exact(RING)).iloc[0]
        assert row["allreduce_s"] == pytest.approx(part * allreduce_seconds([2], 712_440, RING)[0])


def test_policies_cost_the_sums_that_they_make() -> None:
    shapes = ((784, 200), (200,), (200, 30), (30,), (30, 100), (100,), (100, 10), (10,))
    known = base(shapes=shapes, bytes=4 * sum(map(math.prod, shapes)))

    def seconds(sizes: tuple[int, ...]) -> float:
        return sum(allreduce_seconds([2], 4 * size, RING)[0] for size in sizes)

    def sums(**settings: object) -> float:
        asked = replace(known, workload=make_workload(**settings))
        return float(asked.sums(np.array([2.0]), RING)[0])

    whole = (784 * 200, 200 * 30, 200 + 30 + 3000 + 100 + 1000 + 10)
    assert sums() == sums(sync="diloco:7") == pytest.approx(seconds(whole))
    left = 2 * (784 + 200 + 30 + 100) + 200 + 30 + 100 + 10
    assert sums(sync="powersgd:2") == pytest.approx(seconds((left, 2 * (200 + 30 + 100 + 10))))


def test_all_workloads_algorithms_and_levels_to_100_000_ranks_are_finite_and_take_no_loop_over_ranks() -> None:
    counts = np.arange(1, 100_001)
    jitter = tuple(np.random.default_rng(0).lognormal(0, 0.05, 2000))
    two = Levels(network=LINK, node=LINK, ranks_per_node=32)
    start = time.process_time()
    for name, (size, compute) in SEVEN.items():
        for levels in (FLAT, two):
            by_algorithm = [replace(levels, algorithm=algorithm) for algorithm in ALGORITHMS]
            allreduces = [allreduce_seconds(counts, size, each) for each in by_algorithm]
            assert all(np.isfinite(seconds).all() for seconds in allreduces), name
        predict_network(base(bytes=size, compute_s=compute, jitter=jitter), counts, Uncertain.exact(FLAT))
    assert time.process_time() - start < 20  # about one here; a loop over ranks takes minutes


@pytest.mark.skipif(shutil.which("smpirun") is None, reason="SimGrid is not installed (libsimgrid-dev)")
def test_simgrid_agrees_with_the_closed_form() -> None:
    counts = [2, 4, 16, 64, 256]
    for algorithm in ALGORITHMS:
        for size, compute in (SEVEN["acoustic-dnn"], SEVEN["cifar10-cnn"]):
            asked = base(bytes=size, compute_s=compute)
            levels = replace(FLAT, algorithm=algorithm)
            frame = predict_network(asked, counts[:4] if algorithm == "ring" else counts, Uncertain.exact(levels))
            ratio = simulated(asked, frame, LINK, algorithm) / frame["step_s"]
            # The simulator adds 5 % of traffic for acknowledgements, and a ring's neighbours share links a little.
            assert ratio.between(0.99, 1.07).all(), (algorithm, size, list(ratio))


@pytest.mark.skipif(shutil.which("smpirun") is None, reason="SimGrid is not installed (libsimgrid-dev)")
def test_simulated_ranks_wait_for_the_slowest() -> None:
    jitter = tuple(np.random.default_rng(0).lognormal(0, 0.1, 2000))
    asked = base(jitter=jitter)
    frame = predict_network(asked, [32], Uncertain.exact(FLAT))
    assert simulated(asked, frame, LINK, BEST).iloc[0] == pytest.approx(frame["step_s"].iloc[0], rel=0.05)


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


def test_the_base_comes_from_the_fewest_ranks_and_the_jitter_from_the_most(tmp_path: Path) -> None:
    sweep = write_base(tmp_path)
    found = measured_base(load_sweep(tmp_path / sweep.name))
    assert found.ranks == 1 and found.compute_s == pytest.approx(0.01025) and found.bytes == 712_440
    assert (found.low_s, found.high_s) == pytest.approx((0.01, 0.0105)) and found.rows == 6400
    means = [1 + 0.2 * slow / 49 for slow in (4, 5)]  # steps 10 to 40 of rank 0, 5 to 45 of rank 1
    own = (1.2 / means[0] - 1 / means[1]) / 2**0.5  # a residual of two ranks, times the root of 2
    assert len(found.jitter) == 6 * 3 * 2 * 49 and max(found.jitter) == pytest.approx(1 + own)


def test_the_command_prints_what_is_predicted_and_from_what(tmp_path: Path) -> None:
    from harness.cli.command_predict import predict_command as command

    write_base(tmp_path)
    where = ["--results", str(tmp_path), "--network", "2e-6,1e-10"]
    where += ["--reports", str(tmp_path / "reports")]
    result = CliRunner().invoke(command, ["--nodes", "1..64*2", *where], catch_exceptions=False)
    worded(result.output, "prediction.measured_base.measured_base", 6, "1 rank")
    worded(result.output, "report.predict_answer.prediction_answer", "mnist-dnn", "64 ranks")
    worded(result.output, "prediction.network_cost.read_links", "2 µs", "10 GB/s")
    page = Path(result.output.splitlines()[-1]).read_text()
    worded(page, "report.predict_answer.prediction_answer", "MNIST-DNN", "64 ranks", "mnist-dnn")
    document = CliRunner().invoke(command, ["--nodes", "1..64*2", *where, "--json"], catch_exceptions=False).stdout
    (predicted,) = json.loads(document)["predicted"]
    assert [point["ranks"] for point in predicted["points"]] == [1, 2, 4, 8, 16, 32, 64]
    assert predicted["workload"] == "mnist-dnn"
    both = ["--sync", "gradients", "--sync", "diloco:50", "--nodes", "64"]
    result = CliRunner().invoke(command, [*both, *where], catch_exceptions=False)
    said = " ".join(result.output.split())
    local, summed = (re.search(rf"mnist-dnn, {sync} on 64 ranks is ([\d.]+)", said) for sync in both[3:0:-2])
    assert local and summed and float(local[1]) > float(summed[1])
    for options, sentence in ((["--workload", "higgs-dnn"], "no valid launch"), (["--sync", "powersgd:2"], "shapes")):
        with pytest.raises(UserError, match=sentence):
            CliRunner().invoke(command, [*options, *where], catch_exceptions=False)
