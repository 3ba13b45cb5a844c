"""Records survive the way to JSON and back; whatever stands in a stranger's leads nowhere, and nothing is imported."""

import dataclasses
import hashlib
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness.base.errors import UserError
from harness.schema.command_lines import harness_command, repeat_command
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.presets import resolve, script_workload
from harness.schema.record import RunRecord, Segment, decode, encode, read_run
from harness.schema.sweep import Study, Sweep
from harness.schema.sweep_folder import RUN_FILE, STEPS_FILE, SweepFolder
from harness.sweep.finished_launches import survey
from tests.labs.factories import make_launch, make_point, make_run, make_workload, write_run
from tests.labs.sentences import refuses

SOURCE = Path("run.json")
ENCODED = json.loads(encode(make_run(make_point(2), block="block-1", notes=("a note",))))
WORDS = (
    *("x/../../../../victim", "..", "/etc", "$(touch owned)", "a'; touch owned; '", "a\nb", "evil:Policy", "--user=me"),
    *("LD_PRELOAD", "\x1b]0;x\x07", "`id`", "", "a\u2028b", "=1+1"),
)


def texts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every text in a record."""
    if isinstance(value, str):
        yield place
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from texts(part, (*place, key))


PLACES = list(texts(ENCODED))
SETTABLE = [("point", "workload", name) for name in ("data_file", "label", "drop", "own_rate", "note", "checkpoint")]


def changed(record: Any, place: tuple[Any, ...], text: str) -> Any:
    """Return a copy of `record` with `text` at `place`."""
    copy = json.loads(json.dumps(record))
    part = copy
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = text
    return copy


def is_below(parent: Path, path: Path) -> bool:
    steps = path.parts[len(parent.parts) :]
    return path.is_relative_to(parent) and path != parent and ".." not in steps


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([*PLACES, *SETTABLE]), st.one_of(st.sampled_from(WORDS), st.text()))
@example(("point", "workload", "preset"), "x/../../../../victim")
@example(("point", "workload", "sync"), "evil:Policy")
@example(("block",), "../../x")
@example(("point", "workload", "preset"), "LD_PRELOAD")
def test_no_text_leads_out_of_the_results_or_into_a_command(place: tuple[Any, ...], text: str) -> None:
    modules = set(sys.modules)
    try:
        run = decode(json.dumps(changed(ENCODED, place, text)).encode(errors="surrogatepass"), RunRecord, SOURCE)
        workload = run.point.workload
        sweep = Sweep(workload=workload, layouts=(Layout(nodes=1),), settings=run.point.settings)
    except (UserError, UnicodeDecodeError):
        return
    results = Path("/results")
    files = SweepFolder(results / sweep.name)
    paths = [files.path, files.launch(run.point.folder).path, files.log(run.point.folder), files.script("x")]
    paths += [files.block_turns(run.block)] if run.block else []
    assert [path for path in paths if not is_below(results, path)] == []
    assert is_below(Path("/reports"), Path("/reports") / f"history-{workload.name}-{workload.preset}")
    assert re.fullmatch(r"\w[\w.-]*", sweep.name, flags=re.ASCII)
    try:
        line = harness_command(sweep)
    except UserError:  # a preset that nobody knows has no command
        pass
    else:
        assert "\n" not in line
        words = shlex.split(line)
        assert words[:2] == ["harness", "sweep"]
        assert [word for word in words[2:] if not re.match(r"--[a-z][a-z-]*(=|$)", word)] == []
    for commit in {run.provenance.commit, run.point.code} - {""}:
        assert not commit.startswith("-") and "/" not in commit
    assert {name for name in set(sys.modules) - modules if name.startswith("evil")} == set()


@pytest.mark.parametrize("preset", ["x/../../../../victim", "..", "-x", "", "a b"])
def test_a_preset_is_a_name(preset: str) -> None:
    with refuses("is not allowed: use", "preset", preset):
        make_workload(preset=preset)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "./evil.so"),
        ("PYTHONPATH", "./source"),
        ("PATH", "/tmp"),
        ("BASH_ENV", "x"),
        ("OMPI_MCA_plm_rsh_agent", "/tmp/x"),
        ("OMPI_MCA_btl", "a b"),
        ("HARNESS_REDUCTION", "evil"),
    ],
)
def test_settings_tune_communication_and_nothing_else(name: str, value: str) -> None:
    good = make_point(2)
    assert replace(good, settings=(("OMPI_MCA_btl", "^tcp"), ("HARNESS_REDUCTION", "messages"))).settings
    with pytest.raises(UserError, match=name):
        replace(good, settings=((name, value),))
    content = encode(replace(good, settings=(("HARNESS_REDUCTION", "native"),)))
    foreign = content.replace(b'"HARNESS_REDUCTION"', json.dumps(name).encode()).replace(
        b'"native"', json.dumps(value).encode()
    )
    with refuses("Point", SOURCE, name):
        decode(foreign, Point, SOURCE)


def test_a_study_has_such_settings_and_names_too() -> None:
    sweep = Sweep(workload=make_workload(), layouts=(Layout(nodes=1),))
    study = json.loads(encode(Study(schema=1, sweep=sweep, skipped=())))
    for place, text in (
        (("sweep", "scheduler"), "../x"),
        (("sweep", "code"), "-o/tmp/x"),
        (("sweep", "workload", "dataset"), "../a"),
    ):
        with refuses("is not allowed: use", text):
            decode(json.dumps(changed(study, place, text)).encode(), Study, SOURCE)
    study["sweep"]["settings"] = [["LD_PRELOAD", "x"]]
    with refuses("is not allowed: use", "LD_PRELOAD"):
        decode(json.dumps(study).encode(), Study, SOURCE)


@pytest.mark.parametrize("data_dir", ["$(shell touch owned)", "/data/$USER files", "a'b"])
def test_the_folder_of_originals_is_quoted_for_the_shell(data_dir: str) -> None:
    sweep = Sweep(workload=make_workload(), layouts=(Layout(nodes=1),))
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "submission.json").write_text(json.dumps({"data_dir": data_dir}))
        line = repeat_command(Path(name), sweep)
        assert shlex.split(line)[-1] == f"--data-dir={data_dir}"
        for bad in ("a\nb", "--x", 3, ["x"], "\x1b[2J"):
            (Path(name) / "submission.json").write_text(json.dumps({"data_dir": bad}))
            assert "--data-dir" not in repeat_command(Path(name), sweep)


def test_a_script_whose_line_is_none_is_refused() -> None:
    for line in ("'", "''", "-x", "a\nb"):
        with pytest.raises(UserError):
            make_workload(dataset="script", preset="script", data_file=line)


def sweep(**changes):
    workload = resolve(dataset="mnist", model="dnn")
    return dataclasses.replace(Sweep(workload=workload, layouts=(Layout(nodes=1), Layout(nodes=2))), **changes)


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


def test_a_launch_begins_with_its_first_process(tmp_path: Path) -> None:
    """The record of a network of the harness begins after TensorFlow's import, that of a script before it."""
    run = make_run(make_point(2))  # 30 s, imports of 2.0 and 2.1 s
    assert (run.started - run.launched).total_seconds() == pytest.approx(2.1)
    assert run.wall_seconds == pytest.approx(32.1)
    script = tmp_path / "script.py"
    script.write_text("")
    workload = script_workload(script, [], sync="gradients", batch="global")
    of_script = replace(run, point=replace(run.point, workload=workload))
    assert of_script.launched == of_script.started
    assert of_script.wall_seconds == pytest.approx(30)
