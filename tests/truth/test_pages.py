"""Numbers that a reader divides: those of a page, its files, the terminal and `explain` agree with each other."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from harness.report.answer import Answer
from harness.report.explain_answer import explain_answer
from harness.report.sweep_answer import report_sweep
from harness.schema.sweep_folder import SweepFolder
from harness.why.explanation import explain_sweep
from tests.labs.factories import make_point
from tests.labs.planted import Compute, write_planted
from tests.truth.turn_simulation import Machine, SimulatedLaunch

Row = dict[str, str]
COUNTS = (1, 2, 4)
MACHINES = {
    "quiet": Machine(ranks=4, speedup=3.1, noise=0.02),
    "noisy": Machine(ranks=4, speedup=3.1, noise=0.2),
    "unequal cores": Machine(ranks=4, speedup=3.1, slow=1.4, fixed=True),
    "others on one core": Machine(ranks=4, speedup=3.1, disturbed=0.25),
    "hardly a round undisturbed": Machine(ranks=4, speedup=3.1, disturbed=0.93),
    "no round undisturbed": Machine(ranks=4, speedup=3.1, disturbed=1.0),
    "short blocks": Machine(ranks=4, speedup=3.1, rounds=9),
    "four rounds": Machine(ranks=4, speedup=3.1, rounds=4),
}


def computing(ranks: int, factor: float) -> Compute:
    """Return how long ranks compute in each step: about `factor` milliseconds."""

    def compute(random: np.random.Generator, steps: int) -> np.ndarray:
        noise: np.ndarray = np.exp(random.normal(0, 0.1, (steps, ranks)))
        return factor * 0.001 * noise

    return compute


def write_sweep(folder: Path, machine: Machine, *, repeats: int = 6, scaling: str = "strong") -> None:
    """Write a sweep whose launches trained in turns on `machine`, and whose records have what others took too."""
    rng = np.random.default_rng(0)
    SweepFolder(folder).rounds.mkdir(parents=True)
    for repeat in range(repeats):
        launches = []
        for ranks in COUNTS:
            point = replace(make_point(ranks, repeat), scaling=scaling)
            slow = float(rng.uniform(0.9, 1.4))

            def compute(
                random: np.random.Generator, steps: int, count: int = ranks, factor: float = slow
            ) -> np.ndarray:
                return factor * 0.001 * np.exp(random.normal(0, 0.1, (steps, count)))

            run = write_planted(
                folder, ranks, repeat, compute, wire=2e-5, input_s=0.002, point=point, block=f"b{repeat}"
            )
            launches.append(SimulatedLaunch(run.point.folder, ranks))
        machine.block(rng, launches).to_parquet(SweepFolder(folder).block_turns(f"b{repeat}"))


def page_table(page: str, title: str) -> list[Row]:
    """Return the rows of the table under `title` by their headings; a cell is its exact value where it has one."""
    start = page.index(f">{title}<")
    table = page[page.index("<table", start) : page.index("</table>", start)]
    headings = [_text(cell) for cell in re.findall(r"<th[^>]*>(.*?)</th>", table, re.DOTALL)]
    rows = re.findall(r"<tr>(<td.*?)</tr>", table, re.DOTALL)
    cells = [re.findall(r"<td([^>]*)>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [dict(zip(headings, map(_cell, row), strict=True)) for row in cells]


def _text(cell: str) -> str:
    without_notes = re.sub(r"<small>.*?</small>", "", cell)
    return re.sub(" +", " ", unescape(re.sub(r"<[^>]*>", " ", without_notes))).strip()


def _cell(cell: tuple[str, str]) -> str:
    exact = re.search(r'data-v="([^"]*)"', cell[0])
    return exact.group(1) if exact else _text(cell[1])


def shown(text: str) -> float:
    """Return the number that a reader sees at the beginning of `text`, in its base unit."""
    number, _, unit = text.replace("\u00a0", " ").replace(",", "").partition(" ")
    return float(number) * {"ms": 1e-3, "µs": 1e-6, "%": 1e-2}.get(unit, 1.0)


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("noisy", "strong"),
        *(pytest.param(name, "strong", marks=pytest.mark.slow) for name in MACHINES if name != "noisy"),
        pytest.param("noisy", "weak", marks=pytest.mark.slow),
    ],
)
def test_what_a_reader_divides_is_what_the_page_says(tmp_path: Path, name: str, scaling: str) -> None:
    machine = MACHINES[name]
    sweep = tmp_path / "sweep"
    write_sweep(sweep, machine, scaling=scaling)
    answer = report_sweep(sweep, tmp_path / "reports")
    assert answer.page is not None
    page = answer.page.read_text()
    rows = page_table(page, "Scaling")
    base = rows[0]
    for row in rows:
        ideal = float(row["Ranks"]) if scaling == "weak" else 1.0
        for prefix, time, speedup in (
            ("", "Epoch time", speedup_name(scaling)),
            ("including interference", "Incl. interference: epoch time", "Incl. interference: speedup"),
        ):
            ratio = ideal * float(base[time]) / float(row[time])
            assert float(row[speedup]) == pytest.approx(ratio, rel=1e-9), prefix
        assert float(row["Efficiency"]) == pytest.approx(float(row[speedup_name(scaling)]) / float(row["Ranks"]))
        assert float(row["Samples/s"]) == pytest.approx(
            float(base["Samples/s"]) * float(row[speedup_name(scaling)]), rel=1e-9
        )
    assert ("including interference:" in " ".join(answer.details)) == (name in ("no round undisturbed", "four rounds"))
    assert ("other work met" in " ".join(answer.details)) == (name == "no round undisturbed")
    check_overheads(page, rows, scaling)
    check_parts(page, rows)
    check_files(answer, rows, scaling)
    check_terminal(answer, rows)
    check_explanation(sweep, rows, scaling)


def speedup_name(scaling: str) -> str:
    """Return the heading of the speedup."""
    return f"{'Speedup' if scaling == 'strong' else 'Scaled speedup'} over 1\u00a0rank"


def check_overheads(page: str, rows: list[Row], scaling: str) -> None:
    """A speedup without an overhead is never below the measured one."""
    speedups = {row["Ranks"]: float(row[speedup_name(scaling)]) for row in rows}
    overheads = page_table(page, "Overheads of an epoch")
    assert overheads
    for row in overheads:
        assert float(row["Speedup without it, at most about"]) >= speedups[row["Ranks"]] * (1 - 1e-9)


def check_parts(page: str, rows: list[Row]) -> None:
    """Parts of an epoch sum to it."""
    for whole, parts in zip(rows, page_table(page, "One epoch"), strict=True):
        values = [float(value) for name, value in parts.items() if name not in ("Ranks", "Layout")]
        assert sum(values) == pytest.approx(float(whole["Epoch time"]), rel=1e-9)


def check_files(answer: Answer, rows: list[Row], scaling: str) -> None:
    """Every CSV file is a table of numbers and words, and has the numbers of the page."""
    assert answer.page is not None
    folder = answer.page.parent
    for file in folder.glob("*.csv"):
        table = list(csv.reader(io.StringIO(file.read_text())))
        assert len({len(row) for row in table}) == 1, file.name
        assert not any("\n" in cell or "  " in cell for row in table for cell in row), file.name
        assert len(table) > 1
    for name, heading, column in (
        ("speedup", speedup_name(scaling), "speedup"),
        ("epoch-time", "Epoch time", "seconds"),
    ):
        points = [row for row in csv.DictReader((folder / f"{name}.csv").open()) if row["kind"] != "launch"]
        assert {row["kind"] for row in points} == {"mean"}
        assert [float(row[column]) for row in points] == pytest.approx([float(row[heading]) for row in rows])
    launches = list(csv.DictReader((folder / "launches.csv").open()))
    numbers_only = set(launches[0]) - {"run", "layout", "scaling", "invalid", "started", "session_begin", "session_end"}
    for launch in launches:
        for column in numbers_only:
            assert launch[column] in ("True", "False", "") or math.isfinite(float(launch[column]))
    summary = json.loads((folder / "summary.json").read_text()) if (folder / "summary.json").exists() else None
    if summary is not None:
        assert f"{float(rows[-1][speedup_name(scaling)]):.2f}" in json.dumps(summary, ensure_ascii=False)


def check_terminal(answer: Answer, rows: list[Row]) -> None:
    """The terminal's table has the page's numbers, and a reader who divides them gets what it says."""
    assert answer.table is not None
    for printed, row in zip(answer.table.rows, rows, strict=True):
        cells = dict(zip(answer.table.headings, printed, strict=True))
        assert shown(str(cells["Epoch"])) == pytest.approx(float(row["Epoch time"]), rel=6e-3)
        assert shown(str(cells["Efficiency"])) == pytest.approx(float(row["Efficiency"]), abs=6e-3)
        assert shown(str(cells["Speedup, all rounds"])) == pytest.approx(
            float(row["Incl. interference: speedup"]), rel=6e-3
        )


def check_explanation(sweep: Path, rows: list[Row], scaling: str) -> None:
    """`explain` starts from the page's times, its causes sum to them, and its root is the page's efficiency."""
    explanation = explain_sweep(sweep)
    base_root = explanation.efficiencies[0].metrics["global efficiency"].value
    for row, point in zip(rows[1:], explanation.overheads, strict=True):
        ideal = float(rows[0]["Epoch time"]) / (float(row["Ranks"]) if scaling == "strong" else 1)
        assert point.measured == pytest.approx(float(row["Epoch time"]), rel=1e-9)
        assert point.ideal == pytest.approx(ideal, rel=1e-9)
        assert point.ideal + sum(item.seconds for item in point.items) == pytest.approx(point.measured, rel=1e-9)
        without = [item.speedup_without for item in point.costs if item.speedup_without is not None]
        assert all(value >= float(row[speedup_name(scaling)]) * (1 - 1e-9) for value in without)
    for row, tree in zip(rows, explanation.efficiencies, strict=True):
        root = tree.metrics["global efficiency"].value
        assert root / base_root == pytest.approx(float(row["Efficiency"]), rel=1e-6)
    assert explain_answer(explanation, (), "harness explain").table is not None
