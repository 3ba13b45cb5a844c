"""A real sweep's page: every number of its verdict and tables recomputed from the files, without the analysis.

`tests/data/mnist-dnn-6x2` is a sweep on real MNIST as the harness wrote it: 6 interleaved launches at 1 and at
2 ranks, 12,000 rows, 4 epochs. Only json, pyarrow and the standard library compute here.
"""

import json
import random
import re
import shutil
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.report.sweep_page import write_report
from tests.test_report import Text

SWEEP = Path(__file__).parent / "data" / "mnist-dnn-6x2"


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
    low, high = re.findall(r"([\d.]+ ?(?:µs|ms|s|%)?) to ([\d.]+ ?(?:µs|ms|s|%)?)", text)[0]
    if high.endswith("%") and not low.endswith("%"):
        low += "%"
    return number(low.replace("%", " %")), number(high.replace("  %", " %"))


def test_six_interleaved_launches_of_real_mnist(runs: dict[int, list[dict[str, Any]]]) -> None:
    assert {ranks: len(group) for ranks, group in runs.items()} == {1: 6, 2: 6}
    everything = [run for group in runs.values() for run in group]
    assert all(run["data"]["kind"] == "real" and not run["invalid"] for run in everything)
    order = [run["point"]["repeat"] for run in sorted(everything, key=lambda run: run["started"])]
    assert order == sorted(order)  # a block of both rank counts before the next


def test_scaling_table(runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]) -> None:
    base = median(launches(runs, 1))
    for ranks, row in zip((1, 2), tables["Scaling table"], strict=True):
        times = launches(runs, ranks)
        steps = runs[ranks][0]["steps_per_epoch"]
        assert steps == -(-12_000 // (64 * ranks))
        time_cell, step_cell, rows_cell, batch_cell, between_cell, within_cell = row[5:11]
        assert number(row[0]) == ranks and number(row[2]) == 6
        assert number(time_cell) == pytest.approx(median(times), rel=0.005)
        assert span(time_cell) == pytest.approx((min(times), max(times)), rel=0.005)  # of 6, the 1st and the 6th
        assert number(step_cell) == pytest.approx(median(times) / steps, rel=0.005)
        assert span(step_cell) == pytest.approx((min(times) / steps, max(times) / steps), rel=0.005)
        assert number(rows_cell) == pytest.approx(12_000 / median(times), rel=0.005)
        assert number(batch_cell) == 64 * ranks
        assert number(between_cell) == pytest.approx(stdev(times) / fmean(times), abs=0.0006)
        spreads = [stdev(epochs(run)) / fmean(epochs(run)) for run in runs[ranks]]
        assert number(within_cell) == pytest.approx(median(spreads), abs=0.0006)
        if ranks == 2:
            assert number(row[3]) == pytest.approx(base / median(times), abs=0.006)
            assert number(row[4]) == pytest.approx(base / median(times) / 2, abs=0.006)


def test_interval_of_the_speedup(runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]) -> None:
    one, two = launches(runs, 1), launches(runs, 2)
    rng = random.Random(1)
    ratios = []
    for _ in range(20_000):
        blocks = [rng.randrange(6) for _ in range(6)]  # whole blocks of the interleaved order
        ratios.append(median(one[b] for b in blocks) / median(two[b] for b in blocks))
    cuts = quantiles(ratios, n=10_000)
    tail = 0.01590  # Phi(-1.959964 * sqrt(6 / 5))
    low, high = cuts[round(tail * 10_000) - 1], cuts[round((1 - tail) * 10_000) - 1]
    row = tables["Scaling table"][1]
    assert span(row[3]) == pytest.approx((low, high), abs=0.012)
    assert span(row[4]) == pytest.approx((low / 2, high / 2), abs=0.011)


def test_synchronisation_from_the_steps(
    runs: dict[int, list[dict[str, Any]]], tables: dict[str, list[list[str]]]
) -> None:
    """The time inside synchronisation calls, of each epoch the mean over ranks, of a launch the median epoch."""
    shares, seconds = [], []
    for run in runs[2]:
        inside: dict[tuple[int, int], float] = defaultdict(float)
        for step in run["steps"]:
            inside[step["epoch"], step["rank"]] += step["exit_s"] - step["entry_s"]
        by_epoch = [fmean(inside[epoch["epoch"], rank] for rank in (0, 1)) for epoch in run["epochs"]]
        recorded = [fmean(epoch["sync_seconds"]) for epoch in run["epochs"]]
        assert by_epoch == pytest.approx(recorded, rel=1e-6)
        seconds.append(median(by_epoch))
        shares.append(median(by_epoch) / median(epochs(run)))
    listed = [number(row[5]) for row in tables["Launches"] if row[1] == "2"]
    assert listed == pytest.approx(shares, abs=0.006)
    lost = [row for row in tables["What caps the speedup"] if row[2].startswith(("waiting", "the allreduce"))]
    assert sum(number(row[3]) for row in lost) == pytest.approx(median(seconds), rel=0.02)  # medians of two parts


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
            far = seconds < low - 1.5 * (high - low) or seconds > high + 1.5 * (high - low)
            assert ("outlier" in rows[name][7]) == far


def test_headline_says_the_same(report: Path, runs: dict[int, list[dict[str, Any]]]) -> None:
    speedup = median(launches(runs, 1)) / median(launches(runs, 2))
    text = str(Text(report.read_text())).replace("\u00a0", " ")
    assert (
        f"2 ranks train MNIST-DNN {speedup:.2f} times as fast as 1 rank (efficiency {speedup / 2:.0%}".replace(
            "%", " %"
        )
        in text
    )
