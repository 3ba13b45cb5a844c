"""``harness study``: the file of a command line, of a recorded sweep, and the schema of such files."""

import json
import resource
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.base.errors import UserError
from harness.cli import main
from harness.cli.command_sweep import sweep_command as sweep_click
from harness.cli.common_options import take
from harness.cli.launch_options import build_submission, take_batch
from harness.cli.training_options import LayoutOptions, build_layouts
from harness.schema.layout import Layout
from harness.schema.record import encode
from harness.schema.setting_words import study_name
from harness.schema.study_text import page_studies, recorded_study, study_text
from harness.schema.sweep import Study, Sweep
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.plan import Axes, combine
from harness.sweep.site import JobRequest
from harness.sweep.submission_settings import Submission, write_submission
from tests.cli.test_study_file import STUDIES, STUDY, WORDS, taken
from tests.labs.asked import asked_sweep
from tests.labs.sentences import says
from tests.schema.test_command_lines import MNIST, SWEEPS, resolve


def study(*words: object) -> Result:
    return CliRunner().invoke(main, ["study", *map(str, words)], standalone_mode=False)


def record(folder: Path, sweep: Sweep, submission: Submission) -> Path:
    """Write what a command leaves of `sweep` before its first launch, and return its folder."""
    files = SweepFolder(folder / sweep.name)
    files.path.mkdir(parents=True)
    files.study.write_bytes(encode(Study(schema=1, sweep=sweep, skipped=())))
    write_submission(files, submission)
    return files.path


def sweep_of(values: dict[str, Any]) -> Sweep:
    layouts, refused = build_layouts(take(LayoutOptions, dict(values)), Submission())
    assert not refused
    return asked_sweep(dict(values), layouts)


def test_the_file_of_a_command_line_is_that_command_line(tmp_path: Path) -> None:
    path = tmp_path / "written.toml"
    ended = study("init", path, *WORDS)
    assert ended.exception is None, ended.output
    assert taken(str(path)) == taken(*WORDS)
    says(ended.output, path, "harness sweep")


def test_a_file_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("# mine\n")
    dead_link = tmp_path / "link.toml"
    dead_link.symlink_to(tmp_path / "nowhere")
    for place in (path, dead_link):
        ended = study("init", place, "--dataset", "mnist")
        assert isinstance(ended.exception, UserError)
        says(str(ended.exception), place)
    assert path.read_text() == "# mine\n" and not (tmp_path / "nowhere").exists()


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    """A limit on the size of files is met in the middle of a write, as a full disk is."""
    path = tmp_path / "study.toml"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        ended = study("init", path, "--dataset", "mnist")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ended.exception is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((), ("--dataset",)),
        (("--dataset", "mnst"), ("mnst", "'mnist'")),
        (("--dataset", "mnist", "--nodes", "4..1"), ("--nodes 4..1", "1..4")),
        (("--dataset", "mnist", "--learning-rate", "-1"), ("learning rate", "-1")),
    ],
)
def test_what_is_no_sweep_is_refused_and_nothing_is_written(
    words: tuple[str, ...], parts: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "study.toml"
    ended = study("init", path, *words)
    assert isinstance(ended.exception, UserError)
    says(str(ended.exception), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sweep", SWEEPS, ids=study_name)
def test_the_file_of_a_recorded_sweep_is_that_sweep(sweep: Sweep, tmp_path: Path) -> None:
    folder = record(tmp_path / "results", sweep, Submission(data_dir="/data"))
    path = tmp_path / "again.toml"
    ended = study("init", path, "--from", folder)
    assert ended.exception is None, ended.exception
    values = taken(str(path))
    again = sweep_of(values)
    assert (again, again.name) == (sweep, sweep.name)
    assert (str(values["data_dir"]), values["scheduler"]) == ("/data", "local")


@pytest.mark.parametrize("sweep", SWEEPS, ids=study_name)
def test_the_file_beside_a_page_is_the_sweep_that_it_shows(sweep: Sweep, tmp_path: Path) -> None:
    folder = record(tmp_path / "results", sweep, Submission(data_dir="/data"))
    (text,) = page_studies(folder, sweep)
    path = tmp_path / "study.toml"
    path.write_text(text)
    assert sweep_of(taken(str(path))) == sweep


def test_the_command_line_comes_before_the_record(tmp_path: Path) -> None:
    sweep = Sweep(workload=resolve(**MNIST, epochs=3, seed=7), layouts=(Layout(nodes=1), Layout(nodes=2)), repeats=4)
    record(tmp_path, sweep, Submission())
    path = tmp_path / "again.toml"
    ended = study("init", path, "--from", sweep.name, "--results", tmp_path, "--epochs", 1, "--nodes", "1..4")
    assert ended.exception is None, ended.exception
    tables = tomllib.loads(path.read_text())
    assert tables["train"] == {"epochs": 1, "seed": 7}
    assert tables["ranks"] == {"nodes": "1..4", "repeats": 4}


def test_a_record_of_a_cluster_keeps_where_it_ran(tmp_path: Path) -> None:
    request = JobRequest(
        partition="long", walltime="0:10:00", exclusive=False, retries=2, extra=("--gres=nvme:1",), mode="turns"
    )
    sweep = Sweep(workload=resolve(**MNIST), layouts=(Layout(nodes=2),), scheduler="slurm")
    before = Submission(scheduler="slurm", request=request)
    folder = record(tmp_path / "results", sweep, before)
    path = tmp_path / "again.toml"
    assert study("init", path, "--from", folder).exception is None
    submission, _ = build_submission(take_batch(taken(str(path))))
    assert submission == before
    (page,) = page_studies(folder, sweep)
    assert "where" not in tomllib.loads(page)  # of one site, and pages are given away


def test_layouts_of_two_commands_are_two_files_of_a_page_and_no_study(tmp_path: Path) -> None:
    filled = combine(Axes(nodes=(1, 2), ranks_per_node=(2,)), None)[0]
    sweep = Sweep(workload=resolve(**MNIST), layouts=(*filled, Layout(nodes=4)))
    folder = record(tmp_path / "results", sweep, Submission())
    ended = study("init", tmp_path / "again.toml", "--from", folder)
    assert isinstance(ended.exception, UserError) and not (tmp_path / "again.toml").exists()
    layouts = set()
    for number, text in enumerate(page_studies(folder, sweep)):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        part = sweep_of(taken(str(path)))
        assert part.name == sweep.name
        layouts |= set(part.layouts)
    assert layouts == set(sweep.layouts)


def test_hard_texts_survive(tmp_path: Path) -> None:
    note = 'a "quoted" \\ note, \u00e9 \U0001f600 # $HOME'
    sweep = Sweep(workload=resolve(**MNIST, note=note), layouts=(Layout(nodes=1),))
    (tables,) = recorded_study(sweep)
    assert tomllib.loads(study_text(tables, "A remark."))["output"] == {"note": note}


def fits(value: object, schema: dict[str, Any]) -> bool:
    """Say whether a value of TOML is of a schema of one key."""
    if "anyOf" in schema:
        return any(fits(value, part) for part in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if isinstance(value, list):
        return schema["type"] == "array" and all(fits(part, schema["items"]) for part in value)
    kinds = {bool: ("boolean",), int: ("integer", "number"), float: ("number",), str: ("string",)}
    named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not set(kinds[type(value)]) & set(named):
        return False
    if isinstance(value, str):
        return True
    assert isinstance(value, (int, float))
    low = value >= schema.get("minimum", value) and value > schema.get("exclusiveMinimum", value - 1)
    return low and value <= schema.get("maximum", value)


def is_of_schema(text: str) -> bool:
    tables = json.loads(study("schema").output)["properties"]
    for name, values in tomllib.loads(text).items():
        keys = tables.get(name, {}).get("properties", {})
        if not all(key in keys and fits(value, keys[key]) for key, value in values.items()):
            return False
    return True


def test_the_schema_takes_what_is_a_study() -> None:
    texts = [STUDY, *(path.read_text() for path in STUDIES.glob("*.toml"))]
    for sweep in SWEEPS:
        texts += [study_text(tables) for tables in recorded_study(sweep)]
    assert [text for text in texts if not is_of_schema(text)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        "[train]\nepocs = 1",
        "[train]\nepochs = 0",
        "[train]\nepochs = true",
        "[train]\nlearning-rate = 0",
        "[train]\nloss = 'none'",
        "[data]\ndataset = 'mnst'",
        "[ranks]\nnodes = [0]",
        "[check]\nthreshold = 99",
        "[where]\nmpi = 'whel'",
    ],
)
def test_the_schema_refuses_what_a_sweep_refuses(wrong: str, tmp_path: Path) -> None:
    assert not is_of_schema(wrong)
    path = tmp_path / "study.toml"
    path.write_text(wrong)
    line = ["sweep", str(path), "--dry-run", "--results", str(tmp_path / "results"), "--reports", str(tmp_path / "r")]
    if "dataset" not in wrong:
        line += ["--dataset", "mnist", "--data-kind", "synthetic"]
    assert isinstance(CliRunner().invoke(main, line, standalone_mode=False).exception, UserError)


def test_every_setting_of_a_sweep_is_in_the_schema() -> None:
    tables = json.loads(study("schema").output)["properties"]
    keys = {f"--{key}" for name, table in tables.items() if name != "check" for key in table["properties"]}
    of_every_answer = {"--json", "--quiet", "--format", "--output"}
    shown = [option for option in sweep_click.params if not getattr(option, "hidden", False)]
    options = {option.opts[-1] for option in shown if option.opts[-1].startswith("--")}
    assert keys == options - of_every_answer and "--yes" in keys
