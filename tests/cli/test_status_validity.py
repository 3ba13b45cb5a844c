"""`harness status` and the page agree on the launches that do not count."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from harness.analysis.read_results import load_sweep
from harness.cli import main
from harness.schema.layout import Layout
from harness.schema.record import RunRecord, encode
from harness.schema.sweep import Study, Sweep
from harness.schema.sweep_folder import RUN_FILE, SweepFolder
from harness.sweep.status import read_status
from tests.labs.factories import make_launch, make_run, make_workload, write_failure, write_run, write_study
from tests.labs.file_reads import opened_files


def turns(pair: tuple[RunRecord, RunRecord]) -> pd.DataFrame:
    """Return ten undisturbed rounds of a launch on one rank and one on two."""
    rows = []
    for number in range(10):
        for place, (run, bound) in enumerate(zip(pair, ("0", "0;1"), strict=True)):
            rows.append((number, run.point.folder, place, 20, 0.05 / run.point.layout.ranks, 1.0, 0.1, 0.0, bound))
    columns = ["round", "launch", "place", "steps", "seconds", "cores", "at_s", "core_ns", "bound"]
    return pd.DataFrame(rows, columns=columns)


def test_a_launch_whose_turns_were_lost_counts_in_neither_and_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    write_study(folder)
    SweepFolder(folder).rounds.mkdir()
    for number in range(3):
        block = f"b{number}"
        pair = (make_launch(1, number, 1.0, block=block), make_launch(2, number, 0.6, block=block))
        for run in pair:
            write_run(folder, run)
        if number:  # the first block was killed before its turns were written
            turns(pair).to_parquet(SweepFolder(folder).block_turns(block))
    on_the_page = {run.point.folder: "; ".join(run.invalid) for run in load_sweep(folder).runs if run.invalid}
    assert len(on_the_page) == 2
    answer = CliRunner().invoke(main, ["status", "mnist", "--results", str(tmp_path), "--json"])
    assert answer.exit_code == 0, answer.output
    (status,) = json.loads(answer.stdout)["sweeps"]
    missing = {entry["point"]["repeat"] for entry in status["entries"] if entry["state"] == "missing"}
    assert (missing, status["to_launch"]) == ({0}, len(on_the_page))
    assert sum(entry["state"] == "done" for entry in status["entries"]) == 4
    assert np.isfinite(load_sweep(folder).epochs["seconds"]).all()


@pytest.mark.parametrize("many", [1000, 1])
def test_status_reads_each_launch_once(many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, and shared out to several as for a sweep of many launches."""
    monkeypatch.setattr("harness.base.parallel_work.MANY", many)
    monkeypatch.setattr("threading.active_count", lambda: 1)  # a worker of pytest has another thread
    sweep = Sweep(workload=make_workload(), layouts=(Layout(nodes=1), Layout(nodes=2)), repeats=3)
    SweepFolder(tmp_path).study.write_bytes(encode(Study(schema=1, sweep=sweep, skipped=())))
    points = sweep.points()
    launches = [write_run(tmp_path, make_run(point)) for point in points[:4]]
    (launches[3] / RUN_FILE).write_text("{")
    write_failure(tmp_path, points[4], "rank 1 lost")
    with opened_files() as opened:
        status = read_status(tmp_path)
    states = {entry.point: entry.state for entry in status.entries}
    assert [states[point] for point in points] == ["done"] * 3 + ["missing", "failed", "missing"]
    read_here = [opened[launch / RUN_FILE] for launch in launches[:3]]  # a damaged one is looked at again for its code
    assert read_here == [1 if many > 1 else 0] * 3
