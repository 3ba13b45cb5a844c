"""A user's script as a workload: its point, its record, its report."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.analysis.read_results import load_sweep
from harness.base.errors import UserError
from harness.cli import main
from harness.cli.training_options import WorkloadOptions, build_workload
from harness.schema.command_lines import harness_command
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.presets import script_workload
from harness.schema.record import RunRecord, WeightsRecord, encode, read_run
from harness.schema.record_notes import NoteCode
from harness.schema.sweep import Sweep
from harness.schema.workload import OF_ALL_RANKS, PER_RANK, UserScript
from tests.labs.factories import make_run, write_report, write_run
from tests.labs.sentences import refuses
from tests.mpi.launch import PROGRAMS, run_ranks

SCRIPT = Path(__file__).parents[1] / "scripts" / "fit_arrays.py"
SESSION = PROGRAMS / "horovod_session.py"


def of_script(batch: str = "per-rank", **settings: object) -> WorkloadOptions:
    """Return the options of `SCRIPT` with a batch, and with `settings` of a workload."""
    names = ("sync", "note", "own_rate", "shared_files")
    return WorkloadOptions(settings=dict.fromkeys(names) | settings, script=SCRIPT, script_batch=batch)


def test_a_script_and_its_arguments_survive_the_round_trip():
    workload = script_workload(SCRIPT, ["--name", "two words"], sync="weights:3", batch="global")
    assert workload.script == UserScript(path=SCRIPT, arguments=("--name", "two words"), batch=OF_ALL_RANKS)
    assert (workload.own_file, workload.sync, workload.name) == (None, "weights:3", "script-fit_arrays")
    other = script_workload(SCRIPT, [], sync="gradients", batch=PER_RANK)
    assert other.script is not None and other.script.batch == PER_RANK


def test_settings_that_the_script_settles_are_refused():
    with refuses("with --script: the script", "--epochs", "--script"):
        build_workload(of_script(epochs=3))
    with refuses("script batch", "globl", "global"):
        build_workload(of_script("globl"))


def test_a_script_that_is_not_there_is_told_in_one_sentence():
    result = CliRunner().invoke(main, ["run", "-n", "2", "absent.py"])
    assert isinstance(result.exception, UserError)
    assert "'absent.py'" in str(result.exception)


@pytest.mark.slow
def test_launches_that_train_otherwise_than_on_one_rank_are_invalid(tmp_path):
    """By the final weights or by the loss of an epoch; not where launches on one rank differ too, or there is one."""

    def valid(name, *launches, batch="global"):
        workload = script_workload(SCRIPT, [], sync="gradients", batch=batch)
        for repeat, (ranks, length, loss) in enumerate(launches):
            weights = WeightsRecord(parameters=9, bytes=36, sha256="cd" * 32, identical=True, length=length)
            run = make_run(Point(workload=workload, layout=Layout(nodes=ranks), repeat=repeat), weights=weights)
            epochs = tuple(replace(epoch, train_loss=loss) for epoch in run.epochs)
            write_run(tmp_path / name, replace(run, epochs=epochs))
        loaded = load_sweep(tmp_path / name)
        page = write_report(tmp_path / name, tmp_path / "reports").read_text()
        assert "Epoch by epoch" in page
        assert ("is not known" in page) == loaded.unwitnessed == (name in ("unseeded", "single", "weights apart"))
        return [not run.invalid for run in sorted(loaded.runs, key=lambda run: run.point.repeat)]

    alone = [(1, 3.0, 1.0), (1, 3.001, 1.0)]
    assert valid("alike", *alone, (2, 3.1, 1.04)) == [True] * 3
    assert valid("weights", *alone, (2, 3.3, 1.0), (2, 3.0, 1.0)) == [True, True, False, True]
    assert valid("loss", *alone, (2, 3.0, 0.9)) == [True, True, False]
    assert valid("unseeded", (1, 3.0, 1.0), (1, 3.4, 1.1), (2, 3.0, 2.0)) == [True] * 3
    assert valid("weights apart", (1, 3.0, 1.0), (1, 3.4, 1.0), (2, 3.0, 2.0)) == [True] * 3
    assert valid("single", (1, 3.0, 1.0), (2, 3.0, 2.0)) == [True] * 2
    assert valid("per-rank", *alone, (2, 3.0, 2.0), batch="per-rank") == [True] * 3


@pytest.mark.mpi
def test_records_of_a_script_make_a_report(tmp_path):
    """One and two ranks: epochs after the first, rows, weights; and the page says what was run."""
    folder = tmp_path / "study"
    for ranks in (1, 2):
        staging = tmp_path / f"run-{ranks}"
        finished = run_ranks(
            ranks, "-m", "harness.transparent", "--unjudged", "--record", staging, "--threads", 1, SCRIPT, cwd=tmp_path
        )
        assert finished.returncode == 0, finished.stderr[-3000:]
        record = read_run(staging)
        folder.mkdir(exist_ok=True)
        staging.rename(folder / record.point.folder)
        assert [epoch.steps for epoch in record.epochs] == [-(-909 // (48 * ranks))] * 2  # the first of 3 compiles
        assert sum(rank.rows for rank in record.ranks) == 909
        assert [ns > 1 for ns in record.core_ns] == [ranks > 1] * 2
        assert record.weights.length and 1 < record.weights.length < 20
        assert (record.global_batch, record.weights.parameters) == (48 * ranks, 12 * 32 + 32 + 32 * 2 + 2)
        assert record.epochs[-1].test_accuracy is not None
        assert all(seconds > 0 for epoch in record.epochs for seconds in epoch.seconds)
        assert (record.epochs[0].sync_seconds[0] > 0) == (ranks > 1)
        first, second = record.epochs
        assert first.begin_s == 0.0 and second.begin_s is not None and second.begin_s > first.seconds[0]
    page = write_report(folder, tmp_path / "reports").read_text()
    assert "fit_arrays.py" in page


@pytest.mark.mpi
def test_event_files_and_monitored_sessions_are_written_by_rank_0(tmp_path):
    finished = run_ranks(2, "-m", "harness.transparent", PROGRAMS / "events_script.py", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "sha256" in finished.stdout
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("LOSSES ")]
    losses = json.loads(line[7:])
    assert len(losses) == 12 and losses[-1] < losses[0]
    assert len(list((tmp_path / "events").iterdir())) == 1
    assert len(list((tmp_path / "monitored").glob("events.*"))) == 1
    assert (tmp_path / "monitored" / "checkpoint").is_file()


def test_a_scripts_own_rate_and_the_rows_of_its_loop_are_part_of_its_workload():
    pattern = "images/sec: ([0-9.]+)"
    workload = build_workload(of_script("32", own_rate=pattern))
    assert (workload.batch_per_rank, workload.own_rate) == (32, pattern)
    assert workload.script is not None and workload.script.batch == PER_RANK
    study = Sweep(workload=workload, layouts=(Layout(nodes=1), Layout(nodes=2)), scaling="weak")
    assert {point.workload for point in study.points()} == {workload}
    line = harness_command(study)
    assert "--script-batch=32" in line and "--own-rate=" in line and "--scaling=weak" in line


@pytest.mark.parametrize(
    ("pattern", "refusal"),
    [
        ("(", ("is no regular expression",)),
        (
            "images/sec",
            ("groups: put parentheses around", "0"),
        ),
    ],
)
def test_an_own_rate_that_finds_no_number_is_refused(pattern, refusal):
    with refuses(*refusal):
        build_workload(of_script(own_rate=pattern))


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLoop:
    """A launch of a script's own loop on two ranks: its record, what the script found, and what it said of itself."""

    record: RunRecord
    found: dict[str, Any]
    said: str


@pytest.fixture(scope="module")
def own_loop(tmp_path_factory):
    """Return the launch of a graph of old layers and cells on two ranks."""
    folder = tmp_path_factory.mktemp("own loop")
    workload = script_workload(
        SESSION,
        [str(folder / "found.json"), "30"],
        sync="gradients",
        batch="4",
        own_rate="total samples/sec: ([0-9.]+)",
    )
    point = Point(workload=workload, layout=Layout(nodes=2), scaling="weak")
    (folder / "point.json").write_bytes(encode(point))
    words = ("train", "--point", folder / "point.json", "--record", folder / "run")
    finished = run_ranks(2, "-m", "harness", *words, cwd=folder)
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = json.loads((folder / "found.json").read_text())
    return OwnLoop(record=read_run(folder / "run"), found=found, said=finished.stderr)


@pytest.mark.mpi  # the sums of two ranks are what is compared
def test_a_graph_of_old_layers_and_cells_trains_on_two_ranks_as_on_one(own_loop, tmp_path):
    finished = run_ranks(1, "-m", "harness.transparent", SESSION, tmp_path / "found.json", 30)
    assert finished.returncode == 0, finished.stderr[-3000:]
    alone = json.loads((tmp_path / "found.json").read_text())
    assert own_loop.found["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert own_loop.found["lengths"] == pytest.approx(alone["lengths"], rel=1e-4, abs=3e-6)
    for name in ("tf.layers.conv2d", "tf.nn.rnn_cell.GRUCell"):
        assert own_loop.said.count(f"the script's {name}, which") == 1


@pytest.mark.mpi  # a record of two ranks, whose exchanges are timed
def test_the_steps_of_a_scripts_own_loop_are_recorded_where_they_take_gradients(own_loop):
    record = own_loop.record
    assert [epoch.steps for epoch in record.epochs] == [7] * 4  # of 30 steps the first two are left out
    assert (record.global_batch, [rank.rows for rank in record.ranks]) == (8, [28, 28])
    assert record.weights.identical and record.weights.parameters > 0
    seconds = sum(epoch.seconds[0] for epoch in record.epochs)
    assert record.own_rate == pytest.approx(8 * 28 / seconds, rel=0.5)  # by the script's own clock
    assert record.note(NoteCode.OWN_LOOP) is not None
    for epoch in record.epochs:
        assert 0 < epoch.sync_seconds[0] < epoch.seconds[0]
