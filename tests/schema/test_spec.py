"""The vocabulary: counts, sync policies, presets, points and records survive the way to JSON and back."""

import dataclasses
import hashlib
import re
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import UserError
from harness.cli.common_options import parse_counts
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.presets import resolve
from harness.schema.record import RunRecord, Segment, decode, encode, read_run
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import RUN_FILE, STEPS_FILE, SweepFolder
from harness.sweep.sweep_files import survey
from tests.labs.factories import make_launch, write_run
from tests.labs.sentences import refuses


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1..8", range(1, 9)),
        ("1..64*2", [1, 2, 4, 8, 16, 32, 64]),
        ("4,1,2,2", [1, 2, 4]),
        ("3", [3]),
        ("1..3,8", [1, 2, 3, 8]),
    ],
)
def test_counts_are_parsed(text, counts):
    assert parse_counts("NODES", text) == tuple(counts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8..1", "runs backwards: write 1..8"),
        ("0", "below 1"),
        ("", "not a list of counts"),
        ("1..8*1", "never grows"),
        ("-2", "not a list"),
        ("1..9999999999", "above 1,000,000"),
        ("²", "not a list"),
    ],
)
def test_counts_that_make_no_sense_are_one_sentence(text, message):
    with pytest.raises(UserError, match="^" + re.escape(f"NODES={text} ") + f".*{message}"):
        parse_counts("NODES", text)


@given(st.text(max_size=12))
def test_any_text_is_counts_or_a_user_error(text):
    try:
        counts = parse_counts("NODES", text)
    except UserError:
        return
    assert counts == tuple(sorted(set(counts)))
    assert counts[0] >= 1


@pytest.mark.parametrize(
    ("setting", "refusal"),
    [
        (
            {"learning_rate": -1.0},
            ("too small: use more", "1.0"),
        ),
        ({"learning_rate": float("nan")}, ("is not a finite",)),
        (
            {"optimizer": "adm"},
            ("did you mean", "adam"),
        ),
        (
            {"epochs": 0},
            ("is too small: use", "0"),
        ),
        (
            {"seed": -1},
            ("is too small: use", "1"),
        ),
        ({"batch_per_rank": 8, "global_batch": 8}, ("exactly one of batch",)),
    ],
)
def test_settings_out_of_range_are_one_sentence(setting, refusal):
    with refuses(*refusal):
        resolve(dataset="mnist", model="dnn", **setting)


def sweep(**changes):
    workload = resolve(dataset="mnist", model="dnn")
    return dataclasses.replace(Sweep(workload=workload, layouts=(Layout(nodes=1), Layout(nodes=2))), **changes)


def test_a_sweep_keeps_its_folder_when_layouts_and_repeats_are_added():
    more = sweep(layouts=(Layout(nodes=4),), repeats=9)
    assert more.name == sweep().name
    assert sweep(workload=resolve(dataset="mnist", model="dnn", seed=1)).name != sweep().name
    assert sweep(data_id="other-data").name != sweep().name
    places = {
        sweep(layouts=(Layout(nodes=1, gpus_per_rank=gpus),), scheduler=one).name.rsplit("-", 1)[0]
        for gpus in (0, 1)
        for one in ("local", "slurm", "pbs")
    }
    assert {name.removeprefix("mnist-dnn-default-strong") for name in places} == {
        "",
        "-slurm",
        "-pbs",
        "-gpus",
        "-gpus-slurm",
        "-gpus-pbs",
    }


def test_points_have_keys_of_their_own_that_do_not_change():
    points = sweep().points()
    assert len({point.key for point in points}) == len(points) == 6
    assert [point.key for point in sweep().points()] == [point.key for point in points]


def test_each_repeat_has_a_seed_of_its_own_at_every_rank_count():
    """All launches had one seed, so that accuracy had no spread."""
    assert {(point.repeat, point.seed) for point in sweep().points()} == {(0, 0), (1, 1), (2, 2)}
    assert {len({p.seed for p in sweep().points() if p.layout == layout}) for layout in sweep().layouts} == {3}
    fixed = sweep(workload=resolve(dataset="mnist", model="dnn", seed=7))
    assert {point.seed for point in fixed.points()} == {7}
    assert fixed.name != sweep().name and len({point.key for point in fixed.points()}) == 6


def test_weak_scaling_gives_rows_in_proportion_to_the_ranks():
    weak = sweep(scaling="weak", workload=resolve(dataset="mnist", model="dnn", samples=1000), repeats=1)
    assert [point.workload.samples for point in weak.points()] == [1000, 2000]
    with refuses("SAMPLES="):
        sweep(scaling="weak")


def test_records_survive_json(tmp_path):
    record = make_launch(2, 0, 1.5)
    assert decode(encode(record), RunRecord, tmp_path) == record
    point = sweep().points()[0]
    assert decode(encode(point), Point, tmp_path) == point


@pytest.mark.parametrize("cut", [0, 1, 100, -20])
def test_a_record_cut_in_half_is_one_sentence(tmp_path, cut):
    (tmp_path / "run.json").write_bytes(encode(make_launch(2, 0, 1.5))[:cut])
    with refuses("is cut or damaged"):
        read_run(tmp_path)


def test_a_record_of_another_schema_is_refused(tmp_path):
    (tmp_path / "run.json").write_bytes(encode(dataclasses.replace(make_launch(2, 0, 1.5), schema=99)))
    with refuses("run the point again", "99"):
        read_run(tmp_path)


def test_a_table_of_steps_of_another_launch_is_noticed(tmp_path):
    run = make_launch(2, 0, 1.5)
    folder = write_run(tmp_path, run)
    steps = folder / STEPS_FILE
    (folder / RUN_FILE).write_bytes(
        encode(dataclasses.replace(run, steps_sha256=hashlib.sha256(steps.read_bytes()).hexdigest()))
    )
    assert read_run(folder).point == run.point
    table = pq.read_table(steps)
    pq.write_table(table.append_column("other", pa.array([], pa.int32())), steps)
    with pytest.raises(UserError, match=STEPS_FILE):
        read_run(folder)
    sweep_survey = survey(SweepFolder(tmp_path), [run.point])
    assert not sweep_survey.records
    assert STEPS_FILE in sweep_survey.damaged[run.point.folder]


def test_records_without_the_hash_of_their_steps_are_read(tmp_path):
    run = make_launch(2, 0, 1.5)
    assert read_run(write_run(tmp_path, run)) == run


def resumed(run, *, epoch, steps):
    """Return `run` as one that was taken up again so many steps into an epoch."""
    first = Segment(
        started=run.started, ended=run.started, begin=(0, 0), end=(epoch, steps), ranks=2, stopped="SIGTERM"
    )
    last = dataclasses.replace(first, ended=run.ended, begin=(epoch, steps), end=(len(run.epochs), 0), stopped="")
    return dataclasses.replace(run, segments=(first, last))


@pytest.mark.parametrize(("epoch", "steps", "timed"), [(0, 7, [1, 2]), (1, 0, [2]), (2, 7, [])])
def test_a_resumed_launch_is_timed_after_the_epoch_where_it_was_taken_up(epoch, steps, timed):
    run = resumed(make_launch(2, 0, 1.5), epoch=epoch, steps=steps)
    assert [record.epoch for record in run.timed_epochs] == timed
    assert [record.epoch for record in run.as_timed().epochs] == (timed or [0, 1, 2])
    assert run.epoch_s == pytest.approx(median(max(record.seconds) for record in run.as_timed().epochs))
    whole = make_launch(2, 0, 1.5)
    assert whole.timed_epochs == whole.epochs
    assert whole.as_timed() is whole


@pytest.mark.parametrize(
    ("epoch", "invalid", "is_missing"), [(0, (), False), (0, ("busy",), True), (2, ("late",), False)]
)
def test_a_resumed_launch_is_measured_again_only_where_that_helps(tmp_path, epoch, invalid, is_missing):
    run = dataclasses.replace(resumed(make_launch(2, 0, 1.5), epoch=epoch, steps=7), invalid=invalid)
    write_run(tmp_path, run)
    found = survey(SweepFolder(tmp_path), [run.point])
    assert bool(found.missing([run.point])) == is_missing


def test_a_record_with_a_wrong_type_names_the_field(tmp_path):
    content = encode(make_launch(2, 0, 1.5)).replace(b'"steps_per_epoch": ', b'"steps_per_epoch": "many", "x": ')
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(UserError, match=r"\$\.steps_per_epoch"):
        read_run(tmp_path)
