"""A sweep is named in the same way for every command."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.cli import main
from harness.cli.sweep_argument import find_measurement, find_sweep, find_sweeps, newest_sweep
from tests.labs.factories import make_run, write_run, write_study
from tests.labs.sentences import refuses

COMMANDS = (
    ("status",),
    ("cancel",),
    ("report",),
    ("check",),
    ("history",),
    ("baseline", "save", "kept"),
    ("compare", "mnist-dnn-a"),
)


def age(folder: Path, seconds: int) -> None:
    """Let `folder`, its study and its launches be written to so many seconds before now."""
    for path in (*folder.glob("*/run.json"), folder / "sweep.json", folder):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - seconds))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the results of the current folder: two sweeps that were launched, and a newer one that was planned."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("mnist-dnn-b", "mnist-dnn-a", "higgs-dnn-c")):
        write_study(tmp_path / "results" / name)
        if name != "higgs-dnn-c":
            write_run(tmp_path / "results" / name, make_run())
        age(tmp_path / "results" / name, 100 - number)
    return tmp_path / "results"


def run(*words: str) -> tuple[int, str]:
    """Return the exit code of the command and what it says on both streams."""
    result = CliRunner().invoke(main, words, standalone_mode=False)
    if isinstance(result.exception, UserError):
        return 2, result.output + str(result.exception)
    return (1 if result.exception else result.return_value or 0), result.output + str(result.exception)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_refuses_the_same_names(command: tuple[str, ...], results: Path) -> None:
    before = sorted(results.rglob("*"))
    for name, sentence in (("mnist-dnn-x", "did you mean 'mnist-dnn-"), ("results/nosuch", "nosuch")):
        code, said = run(*command, name)
        assert (code, sentence in said) == (2, True), said
    code, said = run(*command, "mnist-dnn")
    both = "mnist-dnn-a" in said and "mnist-dnn-b" in said
    assert (code, both) == (0 if command == ("status",) else 2, True), said
    assert sorted(results.rglob("*")) == before


@pytest.mark.parametrize("name", ["mnist-dnn-a", "results/mnist-dnn-a", "results/mnist-dnn-a/", "mnist-dnn-a/."])
def test_a_name_a_path_and_a_beginning_are_one_sweep(name: str, results: Path) -> None:
    assert find_sweep(name, Path("results")).samefile(results / "mnist-dnn-a")
    assert find_measurement(name, results=Path("results"), baselines=None).launches
    assert find_sweep("higgs", Path("results")).name == "higgs-dnn-c"
    assert find_sweep("results/higgs", Path("elsewhere")).name == "higgs-dnn-c"
    (launch,) = (results / "mnist-dnn-a").glob("n*")
    assert find_measurement(str(launch), results=Path("elsewhere"), baselines=None).launches


def test_the_current_folder_is_a_sweep_too(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results / "mnist-dnn-a")
    assert find_sweep(".", Path("results")).name == "mnist-dnn-a"


def test_a_path_keeps_its_folder(results: Path, tmp_path: Path) -> None:
    write_study(tmp_path / "other/mnist-dnn-a")
    _, said = run("cancel", "other/nothing")
    assert "'other/nothing'" in said
    assert find_sweeps("other/mnist-dnn-a", Path("results")) == (Path("other/mnist-dnn-a"),)


def test_the_newest_that_was_launched_is_meant_and_told(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert newest_sweep(results).name == "mnist-dnn-a"
    assert "mnist-dnn-a" in capsys.readouterr().err
    age(results / "mnist-dnn-a", 1000)
    assert newest_sweep(results).name == "mnist-dnn-b"
    write_study(results / "mnist-dnn-a")  # planned again
    assert newest_sweep(results).name == "mnist-dnn-b"
    write_study(tmp_path / "planned/alone")
    assert newest_sweep(tmp_path / "planned").name == "alone"
    with refuses("sweep` first, or name"):
        newest_sweep(tmp_path)


def test_of_several_sweeps_none_is_cancelled_unasked(results: Path) -> None:
    with refuses("harness status"):
        CliRunner().invoke(main, ["cancel"], standalone_mode=False, catch_exceptions=False)
