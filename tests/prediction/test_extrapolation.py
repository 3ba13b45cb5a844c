"""Counts that a machine cannot run: the band holds the truth, and sentence, table, CSV and JSON keep it apart."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.analysis.read_results import load_sweep
from harness.cli.answer_output import json_document
from harness.prediction.extrapolation import (
    NETWORK,
    NODE,
    Draws,
    MeasuredParts,
    measured_base,
    measured_factor,
    own_times,
    slowest,
)
from harness.prediction.network_cost import Link, allreduce_seconds, rabenseifner, read_links, recursive_doubling, ring
from harness.report.answer import Answer, Table
from harness.report.sweep_answer import report_sweep
from harness.schema.layout import Layout
from harness.schema.sweep import Skipped, Sweep
from tests.labs.factories import make_launch, make_point, make_run, make_workload, write_run, write_study
from tests.labs.prediction_base import base
from tests.labs.sentences import says

Array = np.ndarray
LAUNCHES, FEW, BEYOND = 6, (1, 2), (4, 8, 16)
SIZE, ROWS = 712_440, 64_000
FORMULAS = {"ring": ring, "rabenseifner": rabenseifner, "recursive-doubling": recursive_doubling}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """`parts`: computation, wait and sum of a step on p ranks in seconds; `steps`: those of 2 ranks [steps, ranks]."""

    parts: Callable[[int], tuple[float, float, float]]
    steps: Array


def own_noise(kind: str, random: np.random.Generator, ranks: int, steps: int = 4000) -> Array:
    """Return what steps of each rank take over their mean, [steps, ranks]."""
    if kind == "bursts":
        slow, often = random.uniform(0.2, 2), random.uniform(0.005, 0.05)
        return 1 + slow * (random.random((steps, ranks)) < often)
    width = random.uniform(0.005, 0.08)
    return (
        random.lognormal(0, width, (steps, ranks)) if kind == "lognormal" else random.normal(1, width, (steps, ranks))
    )


def machine(random: np.random.Generator) -> Machine:
    """Return a machine made of mechanisms, none of which the prediction knows."""
    compute, slows = random.uniform(2e-4, 3e-3), random.uniform(0, 0.15)
    saturates = random.choice([0.0, 0.5, 1.0])  # of what a doubling costs beyond the first, how much is left out
    link = Link(alpha_s=10 ** random.uniform(-6, -4.7), beta_s_per_byte=10 ** random.uniform(-10, -9))
    add_s_per_byte = 10 ** random.uniform(-11, -9.5)
    way = random.choice(["ring", "rabenseifner", "recursive-doubling", "slices"])
    kind, seed = random.choice(["normal", "lognormal", "bursts"]), int(random.integers(2**31))

    def parts(ranks: int) -> tuple[float, float, float]:
        doublings = np.log2(ranks)
        more = min(doublings, 1) + max(0, doublings - 1) * (1 - saturates)
        noise = own_noise(kind, np.random.default_rng(seed), ranks)
        wait = float((noise.max(axis=1) - noise.mean(axis=1)).mean())
        if way == "slices":  # two waits in shared memory, and all bytes twice
            sums = (
                0.0
                if ranks == 1
                else (1 if ranks == 2 else 2) * (link.alpha_s * doublings + SIZE * link.beta_s_per_byte)
            )
        else:
            summed = FORMULAS[way](np.array([float(ranks)]), SIZE, link)
            sums = float(summed[0]) + (ranks - 1) / ranks * SIZE * add_s_per_byte
        own = compute * (1 + slows * more)
        return own, own * wait, sums

    both = own_noise(kind, np.random.default_rng(seed), 2)
    common = random.lognormal(0, 0.2, (len(both), 1))  # slows all ranks at once, and so makes none wait
    times = both * common
    return Machine(parts=parts, steps=times / times.mean(axis=0))


def recorded(random: np.random.Generator, parts: tuple[float, float, float], ranks: int) -> MeasuredParts:
    """Return what launches record: every start has a speed of its own, and its own share of waits and sums."""
    speeds = random.lognormal(0, 0.01, LAUNCHES)
    compute, wait, sums = (
        part * speeds * random.lognormal(0, off, LAUNCHES) for part, off in zip(parts, (0.003, 0.05, 0.05), strict=True)
    )
    return MeasuredParts(ranks=ranks, rows=ROWS, batch=64 * ranks, compute=compute, wait=wait, sums=sums)


def test_the_band_holds_what_machines_of_many_kinds_do_on_more_ranks() -> None:
    """Machines whose sums, waits and memory differ in kind, measured on 1 and 2 ranks: what 4, 8, 16 ranks take."""
    random, inside, errors, widths = np.random.default_rng(36), [], [], []
    for _ in range(100):
        truth = machine(random)
        first, last = (recorded(random, truth.parts(ranks), ranks) for ranks in FEW)
        known = base(jitter=tuple(own_times(truth.steps).ravel(order="F")))
        drawn = Draws(make_workload(), "strong", known, first, last).at(np.array(BEYOND, dtype=float))
        low, middle, high = np.percentile(drawn.gains * np.exp(0.006 * drawn.noise), [2.5, 50, 97.5], axis=0)
        two = sum(truth.parts(2))
        actual = np.array([ranks / 2 * two / sum(truth.parts(ranks)) for ranks in BEYOND])
        inside.append((low <= actual) & (actual <= high))
        errors.append(middle / actual - 1)
        widths.append(high / low)
    assert (np.mean(inside, axis=0) >= 0.93).all()
    assert (np.median(np.abs(errors), axis=0) <= [0.05, 0.1, 0.2]).all()
    assert (np.median(widths, axis=0) <= [1.35, 2, 3.5]).all()  # a band that held everything would say nothing


def test_what_slows_all_ranks_at_once_makes_none_wait() -> None:
    """Steps of two ranks that share a slow core now and then: own noise of 3 %, common noise of 30 %."""
    random = np.random.default_rng(3)
    own, common = random.normal(1, 0.03, (20_000, 2)), random.lognormal(0, 0.3, (20_000, 1))
    times = own * common
    waited = float((times.max(axis=1) - times.mean(axis=1)).mean() / times.mean())
    assert measured_factor(own_times(times / times.mean(axis=0)).ravel(), [2])[0] - 1 == pytest.approx(waited, rel=0.05)


def asked_for(folder: Path, measured: tuple[int, ...], two: float = 1.25, **changes: int) -> Path:
    """Return a sweep asked for 1 to 8 ranks on a machine that ran those `measured`, three launches each."""
    skipped = [
        Skipped(layout=Layout(nodes=ranks, **changes), reason=f"needs {ranks} cores, this machine has {max(measured)}")
        for ranks in range(max(measured) + 1, 9)
    ]
    write_study(folder, skipped=tuple(skipped), ranks=range(1, 9))
    for ranks, seconds in ((1, 2.0), (2, two)):
        for repeat in range(3 if ranks in measured else 0):
            write_run(folder, make_launch(ranks, repeat, seconds * (1 + repeat / 100), sync=0.1 * (ranks > 1)))
    return folder


def drawn(folder: Path, **options: object) -> Answer:
    return report_sweep(folder, folder.parent / "reports", **options)  # type: ignore[arg-type]


def table(answer: Answer, title: str) -> Table:
    found = [one for section in answer.sections for one in section.elements]
    return next(one for one in found if isinstance(one, Table) and one.title.startswith(title))


@pytest.fixture(scope="module")
def two_cores(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    return drawn(asked_for(tmp_path_factory.mktemp("two") / "study", (1, 2)))


def test_the_sentence_says_what_was_measured_and_what_is_predicted(two_cores: Answer) -> None:
    says(two_cores.sentence, "ranks train", "2 ranks", "MNIST-DNN", "1.60", "1 rank", "80 %")
    says(" ".join(two_cores.details), "3 launches each.")
    says(" ".join(two_cores.details), "on a node like", "8 ranks", "4.9", "4.2", "5.9", "predicted")


def test_a_prediction_shares_no_column_with_a_measurement(two_cores: Answer) -> None:
    terminal = two_cores.table
    assert terminal is not None and terminal.headings[-1] == "Predicted"
    for row in terminal.rows:
        measured, predicted = row[1:6], row[-1]
        assert (set(measured) == {"–"}) == (predicted != "–")
    scaling = table(two_cores, "Scaling")
    place = list(scaling.headings).index("Predicted\non a node like this")
    texts = [[str(cell) for cell in row] for row in scaling.rows]
    assert [row[place] == "–" for row in texts] == [True] * 2 + [False] * 6
    assert all(row[3] == "–" for row in texts[2:])
    for name in ("speedup", "efficiency", "epoch-time", "throughput"):
        (figure,) = (one for one in two_cores.figures if one.name == name)
        predicted = figure.table["kind"] == "predicted"
        value = figure.table.columns[3]
        assert list(figure.table["ranks"][predicted]) == [3, 4, 5, 6, 7, 8]
        assert figure.table[value].notna().eq(~predicted).all()
        assert figure.table[["predicted", "predicted_low", "predicted_high"]].notna().all(axis=1).eq(predicted).all()
        says(figure.caption, "predicted, not measured")


def test_files_have_the_prediction_as_a_series_of_its_own(two_cores: Answer) -> None:
    assert two_cores.page is not None
    folder = two_cores.page.parent
    heading, *lines = (folder / "speedup.csv").read_text().splitlines()
    assert heading == "kind,layout,ranks,speedup,low,high,predicted,predicted_low,predicted_high,where,launches,run"
    assert sum(line.startswith("predicted,") for line in lines) == 6
    (series,) = json.loads(json_document(two_cores))["predicted"]
    assert series["where"] == NODE and [one["ranks"] for one in series["points"]] == [3, 4, 5, 6, 7, 8]
    page = (folder / "index.html").read_text()
    says(page, NODE)
    says(page, "not probed")
    assert "Amdahl" not in page


@pytest.mark.slow
def test_one_core_predicts_with_what_it_must_assume(tmp_path: Path) -> None:
    answer = drawn(asked_for(tmp_path / "study", (1,)))
    measured, _, predicted = answer.sentence.replace("\u00a0", " ").partition(", measured; ")
    says(measured, "1 rank", "MNIST-DNN", "2.02 s")
    says(predicted, "8 ranks", NODE)
    assert re.search(r"[\d.]+ \([\d.]+ to [\d.]+\)", predicted)
    note = table(answer, f"Predicted {NODE}").note
    says(note, "--network")
    says(note, "0.5 %", "10 %")
    assert [one.name for one in answer.figures][:2] == ["speedup", "efficiency"]


@pytest.mark.slow
def test_a_stated_network_is_a_series_of_its_own(tmp_path: Path) -> None:
    folder = asked_for(tmp_path / "study", (1, 2))
    links = read_links("2e-5,8e-10")
    answer = drawn(folder, network=links)
    says(answer.details[1].rpartition(";")[2], "8 ranks", NETWORK)
    assert answer.table is not None and list(answer.table.headings[-2:]) == ["Predicted", "Predicted, network"]
    says(table(answer, f"Predicted {NETWORK}").note, "20 µs", "1.25 GB/s")


@pytest.mark.slow
def test_what_cannot_be_predicted_is_said_in_one_sentence(tmp_path: Path) -> None:
    answer = drawn(asked_for(tmp_path / "study", (1, 2), threads=2))
    says(" ".join(answer.details), "threads")
    assert answer.data["predicted"] == () and NODE not in " ".join(answer.details)


def test_a_fixed_global_batch_leaves_the_fixed_cost_of_a_step() -> None:
    """1 ms on one rank, 0.6 on two: 0.2 do not shrink. Eight ranks compute between 0.15 ms and twice 0.2 more."""
    one, two = (
        MeasuredParts(ranks=ranks, rows=64_000, batch=64, compute=np.array([c]), wait=np.zeros(1), sums=np.zeros(1))
        for ranks, c in ((1, 1e-3), (2, 6e-4))
    )
    large = make_workload(global_batch=64)
    found = Draws(large, "strong", base(workload=large), one, two).at(np.array([8.0]))
    low, middle, high = np.percentile(found.parts[0] / found.steps[0], [2.5, 50, 97.5])
    assert (low, high) == pytest.approx((1.5e-4, 4.5e-4), abs=2e-5) and middle == pytest.approx(3e-4, rel=0.03)


def test_weak_scaling_goes_on_with_the_rows() -> None:
    """Nothing but computation: 16 ranks do 8 times the work of 2 in the same time."""
    one, two = (
        MeasuredParts(ranks=n, rows=6400 * n, batch=64 * n, compute=np.ones(1), wait=np.zeros(1), sums=np.zeros(1))
        for n in (1, 2)
    )
    found = Draws(make_workload(), "weak", base(), one, two).at(np.array([16.0]))
    assert found.gains == pytest.approx(1) and list(found.steps) == [100, 100]


@pytest.mark.slow
def test_ranks_that_exchange_nothing_tell_nothing_of_more_of_them(tmp_path: Path) -> None:
    write_study(tmp_path / "study", skipped=(Skipped(layout=Layout(nodes=4), reason="needs 4 cores"),), sync="none")
    for ranks, repeat in ((1, 0), (1, 1), (2, 0), (2, 1)):
        point = make_point(ranks, repeat, sync="none")
        write_run(tmp_path / "study", make_run(point, seconds=[[1.0 / ranks + 0.01] * ranks]))
    answer = drawn(tmp_path / "study")
    says(" ".join(answer.details), "--sync none")
    assert answer.data["predicted"] == ()


@pytest.mark.slow
def test_nothing_goes_on_from_a_base_that_something_slowed(tmp_path: Path) -> None:
    answer = drawn(asked_for(tmp_path / "study", (1, 2), two=0.5))
    says(answer.sentence, "times as fast as")
    says(" ".join(answer.details), "Nothing is predicted from")
    assert answer.data["predicted"] == ()


# What a prediction rests on: sums of one synchronisation, how ranks differ, and the slowest of many.

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
