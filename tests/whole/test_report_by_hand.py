"""A real sweep's page: every number of its verdict and tables recomputed from the files, without the analysis.

`tests/data/mnist-dnn-6x2` is a sweep on real MNIST as the harness wrote it: 6 interleaved launches at 1 and at
2 ranks, 20,000 rows, 3 epochs. Only json, pyarrow and the standard library compute here.
"""

import json
import re
import shutil
from collections import defaultdict
from datetime import datetime, timedelta
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, geometric_mean, median, quantiles, stdev
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.labs.factories import write_report
from tests.labs.page_text import Text
from tests.labs.sentences import says

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"
ROWS = 20_000
PARTS = ("computation", "input", "skew", "wire")


@pytest.fixture(scope="module")
def runs() -> dict[int, list[dict[str, Any]]]:
    """The records by ranks, in order of repeats, each with its table of steps."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for file in SWEEP.glob("*/run.json"):
        record = json.loads(file.read_text())
        record["steps"] = pq.read_table(file.with_name("steps.parquet")).to_pylist()
        found[len(record["ranks"])].append(record)
    return {ranks: sorted(group, key=lambda r: r["point"]["repeat"]) for ranks, group in sorted(found.items())}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("results") / SWEEP.name
    shutil.copytree(SWEEP, copy)
    return write_report(copy, tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="module")
def tables(report: Path) -> dict[str, list[list[str]]]:
    """The cells of each table of the page, without units' thin spaces, by the table's label."""
    content = report.read_text()
    found = {}
    for label, body in re.findall(r'aria-label="([^"]+)">\s*<table.*?<tbody>(.*?)</tbody>', content, flags=re.DOTALL):
        rows = re.findall(r"<tr[^>]*>(.*?)</tr>", body, flags=re.DOTALL)
        cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL) for row in rows]
        found[label] = [[re.sub(r"<[^>]+>", " ", cell).replace("\u00a0", " ").strip() for cell in row] for row in cells]
    return found


OVERHEADS = "Overheads of an epoch"
ACCURACY, VALID = "Test accuracy", "Valid launches"
TIME_TO_ACCURACY = "Time to 92.37\u00a0% test accuracy"
TITLES = {
    "Scaling",
    OVERHEADS,
    "One epoch",
    "One launch",
    "Loss and accuracy",
    TIME_TO_ACCURACY,
    "Launches",
    "Diagnoses",
}


def epochs(run: dict[str, Any]) -> list[float]:
    return [max(epoch["seconds"]) for epoch in run["epochs"]]


def launches(runs: dict[int, list[dict[str, Any]]], ranks: int) -> list[float]:
    return [median(epochs(run)) for run in runs[ranks]]


def number(text: str) -> float:
    """The seconds, fraction or plain number that a cell begins with."""
    match = re.match(r"([\d.,]+)(?: (µs|ms|s|%))?", text)
    assert match, text
    factor = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "%": 0.01}.get(match[2], 1.0)
    return float(match[1].replace(",", "")) * factor


def span(text: str) -> tuple[float, float]:
    low, low_unit, high, unit = re.findall(r"([\d.]+) ?(µs|ms|s|%)? to ([\d.]+) ?(µs|ms|s|%)?", text)[0]
    return number(f"{low} {low_unit or unit}"), number(f"{high} {unit}")


def inside(run: dict[str, Any]) -> dict[tuple[int, int], tuple[float, float]]:
    """Seconds that each (epoch, rank) waited for the last rank, and that it was in calls at all, from the steps."""
    last: dict[tuple[int, int], float] = {}
    for step in run["steps"]:
        if step["entry_s"] == step["entry_s"]:  # one rank alone makes no calls
            place = step["epoch"], step["step"]
            last[place] = max(last.get(place, 0.0), step["entry_s"])
    found: dict[tuple[int, int], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for step in run["steps"]:
        if (step["epoch"], step["step"]) in last:
            skew, whole = found[step["epoch"], step["rank"]]
            skew += last[step["epoch"], step["step"]] - step["entry_s"]
            found[step["epoch"], step["rank"]] = skew, whole + step["exit_s"] - step["entry_s"]
    return found


def parts(run: dict[str, Any]) -> dict[str, float]:
    """A launch's parts of an epoch: medians over its epochs of the means over ranks; computation is the rest."""
    ranks, numbers = range(len(run["ranks"])), range(len(run["epochs"]))
    waits = inside(run)
    skew = median(fmean(waits[epoch, rank][0] for rank in ranks) for epoch in numbers)
    wire = median(fmean(waits[epoch, rank][1] - waits[epoch, rank][0] for rank in ranks) for epoch in numbers)
    given = median(fmean(epoch["input_seconds"]) for epoch in run["epochs"])
    seconds = median(epochs(run))
    return {"computation": seconds - given - skew - wire, "input": given, "skew": skew, "wire": wire}


def typical(group: list[dict[str, Any]]) -> dict[str, float]:
    """The parts of the middle launches: of six, the means of the four middle ones, as parts of the mean time."""
    times = [median(epochs(run)) for run in group]
    middle = of_the_median([(median(epochs(run)), parts(run)) for run in group])
    return {name: seconds * geometric_mean(times) / median(times) for name, seconds in middle.items()}


def mean_parts(group: list[dict[str, Any]]) -> dict[str, float]:
    """The means of the parts of all launches, as parts of the mean time."""
    times = [median(epochs(run)) for run in group]
    factor = geometric_mean(times) / fmean(times)
    return {name: factor * fmean(parts(run)[name] for run in group) for name in PARTS}


def over_blocks(logs: list[float]) -> tuple[float, float]:
    """Student's 95 % CI of the mean of six logarithms, as factors."""
    reach = 2.570582 * stdev(logs) / sqrt(6)  # the quantile of 5 degrees of freedom
    return exp(fmean(logs) - reach), exp(fmean(logs) + reach)


def of_the_median(found: list[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """Means of the four middle ones of six `found` (time and parts), times what makes them sum to the median."""
    middle = sorted(found, key=lambda one: one[0])[1:5]
    factor = median(time for time, _ in found) / fmean(time for time, _ in middle)
    return {name: factor * fmean(one[name] for _, one in middle) for name in found[0][1]}


def test_six_interleaved_launches_of_real_mnist(runs: dict[int, list[dict[str, Any]]]) -> None:
    assert {ranks: len(group) for ranks, group in runs.items()} == {1: 6, 2: 6}
    everything = [run for group in runs.values() for run in group]
    assert all(run["data"]["kind"] == "real" and not run["invalid"] for run in everything)
    order = [run["point"]["repeat"] for run in sorted(everything, key=lambda run: run["started"])]
    assert order == sorted(order)  # a block of both rank counts before the next


def test_scaling_table(runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]) -> None:
    base = geometric_mean(launches(runs, 1))
    for ranks, row in zip((1, 2), tables["Scaling"], strict=True):
        times = launches(runs, ranks)
        low, high = over_blocks([log(seconds) for seconds in times])
        steps = runs[ranks][0]["steps_per_epoch"]
        assert steps == -(-ROWS // (64 * ranks))
        time_cell, step_cell, rows_cell, batch_cell, spread_cell = row[5:]
        assert number(row[0]) == ranks and number(row[2]) == 6
        assert number(time_cell) == pytest.approx(geometric_mean(times), rel=0.005)
        assert span(time_cell) == pytest.approx((low, high), rel=0.005)
        assert number(step_cell) == pytest.approx(geometric_mean(times) / steps, rel=0.005)
        assert span(step_cell) == pytest.approx((low / steps, high / steps), rel=0.005)
        assert number(rows_cell) == pytest.approx(ROWS / geometric_mean(times), rel=0.005)
        assert number(batch_cell) == 64 * ranks
        spreads = [stdev(epochs(run)) / fmean(epochs(run)) for run in runs[ranks]]
        between_cell, within_cell = re.findall(r"[\d.]+ %", spread_cell)
        assert number(between_cell) == pytest.approx(stdev(times) / fmean(times), abs=0.0006)
        assert number(within_cell) == pytest.approx(median(spreads), abs=0.0006)
        if ranks == 2:
            assert number(row[3]) == pytest.approx(base / geometric_mean(times), abs=0.006)
            assert number(row[4]) == pytest.approx(base / geometric_mean(times) / 2, abs=0.006)


def test_interval_of_the_speedup(runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]) -> None:
    pairs = zip(launches(runs, 1), launches(runs, 2), strict=True)  # of the same repeat
    low, high = over_blocks([log(one / two) for one, two in pairs])
    row = tables["Scaling"][1]
    assert span(row[3]) == pytest.approx((low, high), abs=0.006)
    assert span(row[4]) == pytest.approx((low / 2, high / 2), abs=0.006)


def test_every_table_of_the_page_is_recomputed_here(tables: dict[str, list[list[str]]]) -> None:
    assert set(tables) == TITLES


def test_two_ranks_with_one_ranks_learning_rate_learn_less(
    runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]
) -> None:
    ((cause, _, found, evidence, _),) = tables["Diagnoses"]
    (one, two) = (runs[ranks][0]["epochs"][-1] for ranks in (1, 2))
    assert (cause.split()[0], found) == ("learning", "6 of 12")
    losses = [f"{epoch['train_loss']:.3f}" for epoch in (two, one)]
    accuracies = [f"{epoch['test_accuracy']:.1%}".replace("%", " %") for epoch in (two, one)]
    says(evidence, "not scaled", *losses, *accuracies)


def test_parts_of_an_epoch_from_the_steps(
    runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]
) -> None:
    for ranks, row in zip((1, 2), tables["One epoch"], strict=True):
        found = typical(runs[ranks])
        assert [number(cell) for cell in row[2:]] == pytest.approx([found[name] for name in PARTS], rel=0.006)
        shares = [float(re.findall(r"([\d.]+) %", cell)[0]) / 100 for cell in row[2:]]
        assert shares == pytest.approx([found[name] / sum(found.values()) for name in PARTS], abs=0.006)
        assert sum(number(cell) for cell in row[2:]) == pytest.approx(geometric_mean(launches(runs, ranks)), rel=0.006)
    for run in runs[2]:
        for (epoch, rank), (skew, whole) in inside(run).items():
            record = run["epochs"][epoch]
            assert 0 <= skew == pytest.approx(record["skew_seconds"][rank], rel=1e-6)
            assert whole - skew == pytest.approx(record["wire_seconds"][rank], rel=1e-6)


def test_steps_sum_to_the_epoch(runs: dict[int, list[dict[str, Any]]]) -> None:
    """From the epoch's begin over computing, waiting and summing of every step to the last: all but 2 % of it."""
    for run in runs[2]:
        for epoch in run["epochs"]:
            for rank, seconds in enumerate(epoch["seconds"]):
                own = [s for s in run["steps"] if (s["epoch"], s["rank"]) == (epoch["epoch"], rank)]
                own.sort(key=lambda step: step["step"])
                done, total = own[0]["begin_s"], 0.0
                for step in own:
                    total += (step["entry_s"] - done) + step["skew_s"] + step["wire_s"]
                    assert step["entry_s"] >= done and step["skew_s"] >= 0 and step["wire_s"] >= 0
                    done = step["exit_s"]
                assert total == pytest.approx(seconds, rel=0.02)


def test_parts_of_a_launch(
    report: Path, runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]
) -> None:
    heads = re.search(r'aria-label="One launch".*?<tr>(.*?)</tr>', report.read_text(), flags=re.DOTALL)
    assert heads is not None
    names = re.findall(r"<th>(\w+)</th>", heads[1])
    trained = ["Computation", "Input", "Synchronisation"]
    assert names == ["Ranks", "Import", "Load", "Compile", *trained, "Evaluation", "Rest"]
    for ranks, row in zip((1, 2), tables["One launch"], strict=True):
        found: list[tuple[float, dict[str, float]]] = []
        for run in runs[ranks]:
            one = {name: max(r[f"{name.lower()}_s"] for r in run["ranks"]) for name in ("Import", "Load", "Compile")}
            one["Synchronisation"] = sum(fmean(epoch["sync_seconds"]) for epoch in run["epochs"])
            one["Input"] = sum(fmean(epoch["input_seconds"]) for epoch in run["epochs"])
            one["Computation"] = sum(epochs(run)) - one["Synchronisation"] - one["Input"]
            one["Evaluation"] = max(r["evaluate_s"] for r in run["ranks"])
            began, ended = (datetime.fromisoformat(run[name]) for name in ("started", "ended"))
            whole = (ended - began).total_seconds() + one["Import"]
            sent = max(r["distribute_s"] for r in run["ranks"])  # a microsecond: no column of its own
            one["Rest"] = max(0.0, whole - sum(one.values()) - sent)
            found.append((whole, one))
        expected = of_the_median(found)
        for name, cell in zip(names[1:], row[2:], strict=True):
            assert number(cell) == pytest.approx(expected[name], rel=0.006), name
        assert sum(number(cell) for cell in row[2:]) == pytest.approx(median(whole for whole, _ in found), rel=0.006)


def test_what_caps_the_speedup(runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]) -> None:
    base, two = mean_parts(runs[1]), mean_parts(runs[2])
    seconds = geometric_mean(launches(runs, 2))
    speedup = geometric_mean(launches(runs, 1)) / seconds
    lost = {name: two[name] - base[name] / 2 for name in PARTS}
    words = {"computation": "computation", "input": "input", "skew": "wait time", "wire": "allreduce time"}
    expected = sorted((name for name in PARTS if lost[name] > 0), key=lambda name: -lost[name])
    assert len(tables[OVERHEADS]) == len(expected) >= 2
    for name, row in zip(expected, tables[OVERHEADS], strict=True):
        assert row[2].startswith(words[name]) and row[2].endswith("(largest)") == (name == expected[0])
        assert number(row[3]) == pytest.approx(lost[name], rel=0.006)
        assert number(row[4]) == pytest.approx(lost[name] / seconds, abs=0.0006)
        assert number(row[5]) == pytest.approx(speedup * seconds / (seconds - lost[name]), abs=0.006)


def test_time_to_accuracy(
    report: Path, runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]
) -> None:
    target = median(run["epochs"][-1]["test_accuracy"] for run in runs[1]) - 0.01
    assert f"{100 * target:.2f}\u00a0%" in TIME_TO_ACCURACY and TIME_TO_ACCURACY in report.read_text()
    times: dict[int, list[float]] = defaultdict(list)
    counts: dict[int, list[float]] = defaultdict(list)
    for ranks, group in runs.items():
        for run in group:
            spent, reached = 0.0, float("inf")
            for epoch in reversed(run["epochs"]):
                spent = sum(epochs(run)[: epoch["epoch"] + 1])
                reached = spent if epoch["test_accuracy"] >= target else reached
            times[ranks].append(reached)
            enough = [epoch["epoch"] + 1 for epoch in run["epochs"] if epoch["test_accuracy"] >= target]
            counts[ranks].append(min(enough, default=float("inf")))
    for ranks, row in zip((1, 2), tables[TIME_TO_ACCURACY], strict=True):
        there = sum(seconds < float("inf") for seconds in times[ranks])
        assert row[2] == f"{there} of 6"
        if median(times[ranks]) == float("inf"):
            assert row[3] == "–" and not re.match(r"\d", row[4]) and row[5] == "–"
        else:
            assert number(row[3]) == median(counts[ranks])
            assert number(row[4]) == pytest.approx(median(times[ranks]), rel=0.006)
            assert number(row[5]) == pytest.approx(median(times[1]) / median(times[ranks]), abs=0.006)
        ratio = geometric_mean(launches(runs, 1)) / geometric_mean(launches(runs, ranks))
        assert number(row[6]) == pytest.approx(ratio, abs=0.006)


def test_the_verdict_in_numbers(report: Path, runs: dict[int, list[dict[str, Any]]]) -> None:
    tiles = dict(
        re.findall(r'<dt>(?:<a[^>]*>)?([^<]+)(?:</a>)?</dt><dd class="value">([^<]+)</dd>', report.read_text())
    )
    speedup = geometric_mean(launches(runs, 1)) / geometric_mean(launches(runs, 2))
    assert number(tiles["Speedup"]) == pytest.approx(speedup, abs=0.006)
    assert number(tiles["Efficiency"].replace("\u00a0", " ")) == pytest.approx(speedup / 2, abs=0.006)
    accuracy = median(run["epochs"][-1]["test_accuracy"] for run in runs[2])
    assert number(tiles[ACCURACY].replace("\u00a0", " ")) == pytest.approx(accuracy, abs=6e-5)
    assert tiles[VALID] == "12"


def test_accuracy_is_of_the_last_epoch(
    runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]
) -> None:
    for ranks, row in zip((1, 2), tables["Loss and accuracy"], strict=True):
        last = [run["epochs"][-1] for run in runs[ranks]]
        assert number(row[3]) == pytest.approx(median(sum(epochs(run)) for run in runs[ranks]), rel=0.005)
        assert number(row[4]) == pytest.approx(median(epoch["train_loss"] for epoch in last), rel=0.005)
        assert number(row[5]) == pytest.approx(median(epoch["test_loss"] for epoch in last), rel=0.005)
        assert number(row[6]) == pytest.approx(median(epoch["test_accuracy"] for epoch in last), abs=6e-5)


def test_the_launches_own_rows_and_outliers(
    runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]
) -> None:
    rows = {row[0]: row for row in tables["Launches"]}
    assert len(rows) == 12
    for ranks, group in runs.items():
        times = launches(runs, ranks)
        low, _, high = quantiles(times, n=4, method="inclusive")
        for run, seconds in zip(group, times, strict=True):
            name = next(name for name in rows if f"-r{run['point']['repeat']}-" in name and name[1] == str(ranks))
            assert number(rows[name][4]) == pytest.approx(seconds, rel=0.005)
            spent = median(fmean(epoch["sync_seconds"]) for epoch in run["epochs"])
            assert number(rows[name][5]) == pytest.approx(spent / seconds, abs=0.011)  # medians of its two parts
            assert number(rows[name][6]) == pytest.approx(run["epochs"][-1]["test_accuracy"], abs=6e-5)
            import_s = max(rank["import_s"] for rank in run["ranks"])  # a record begins after it
            began = datetime.fromisoformat(run["started"]) - timedelta(seconds=import_s)
            assert rows[name][3] == f"{began:%Y-%m-%d %H:%M:%S}" and rows[name][7].startswith("yes")
            far = seconds < low - 1.5 * (high - low) or seconds > high + 1.5 * (high - low)
            assert ("outlier" in rows[name][7]) == far


def test_headline_says_the_same(report: Path, runs: dict[int, list[dict[str, Any]]]) -> None:
    speedup = geometric_mean(launches(runs, 1)) / geometric_mean(launches(runs, 2))
    text = str(Text(report.read_text())).replace("\u00a0", " ")
    efficiency = f"{speedup / 2:.0%}".replace("%", " %")
    says(text, "How much faster do", "2 ranks", f"{speedup:.2f}", "1 rank", efficiency)
