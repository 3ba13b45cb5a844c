"""The command line as a whole: quick help, exit codes, one sentence for bad input."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli
from harness.__main__ import run_command_line
from harness.base import __version__
from harness.base.provenance import package_version
from harness.cli import COMMANDS, MAKE
from harness.comm.mpi_library import mpi_title

HEAVY = ("tensorflow", "keras", "mpi4py", "pandas", "matplotlib", "pyarrow", "scipy", "sklearn")


def harness(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "harness", *arguments], capture_output=True, text=True, check=False)


def test_the_versions_are_those_of_what_is_installed() -> None:
    shown = harness("--version")
    assert (shown.returncode, shown.stderr) == (0, "")
    ours, tensorflow, keras, mpi = shown.stdout.splitlines()
    assert ours.split() == ["harness", __version__]
    assert tensorflow.split() == ["TensorFlow", package_version("tensorflow")]
    assert keras.split() == ["Keras", package_version("keras")]
    assert mpi.removeprefix("MPI: ") == mpi_title()


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_versions_import_nothing_heavy(option: str) -> None:
    program = (
        f"import sys; sys.argv = ['harness', '{option}']\n"
        "from harness.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert option == "--version" or all(name in finished.stdout for name in COMMANDS)


def test_every_module_of_a_command_is_in_the_list():
    modules = {path.stem for path in Path(cli.__file__).parent.glob("command_*.py")}
    assert modules == {f"command_{name}" for name in (*COMMANDS, MAKE)}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell):
    finished = harness("completion", shell)
    assert finished.returncode == 0 and f"_HARNESS_COMPLETE={shell}_complete" in finished.stdout


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("harness st", ["study", "status"]),
        ("harness study i", ["init"]),
        ("harness sweep --dataset mnist --data-k", ["--data-kind"]),
        ("harness --ver", ["--version"]),
    ],
)
def test_commands_and_options_are_completed(words, completed, monkeypatch):
    monkeypatch.setenv("_HARNESS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert [line.partition(",")[2] for line in harness().stdout.splitlines()] == completed


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    finished = harness(command, "--help")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith(f"Usage: harness {command}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "--dataset", "higs"), "did you mean 'higgs'"),
        (("sweep", "--dataset", "mnist", "--nodes", "8..1"), "--nodes 8..1 runs backwards"),
        (("sweep", "--dataset", "mnist", "--nodes", "0"), "--nodes 0 has a count below 1"),
        (("sweep", "--dataset", "mnist", "--sync", "never"), "--sync never is not a sync policy"),
        (("train", "--dataset", "mnist", "--data-dir", "no-such-folder"), "no-such-folder"),
        (("report", "no-such-sweep"), "no-such-sweep"),
        (("train", "--point", "no-such-file"), "cannot be read"),
        (("sweep", "--dataset", "adult", "--nodes", "1..1000000"), "--nodes 1..1000000 is 1,000,000 counts"),
        (("sweep", "--dataset", "adult", "--nodes", "1..99", "--threads", "1..99"), "9,801 combinations"),
        (("sweep", "--dataset", "adult", "--nodes", "1", "--repeats", "99999999"), "99,999,999 launches"),
        (("sweep", "--script", __file__, "--script-arguments", "'x"), "cannot be split"),
        (("status", "--results", "\udcff"), "is not UTF-8"),
        (("paper", "--nodes", "1..99999"), "--nodes 1..99999 is 99,999 counts"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(arguments, message):
    finished = harness(*arguments)
    assert finished.returncode == 2, finished.stderr
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr
    assert sum(line.startswith("harness:") for line in finished.stderr.splitlines()) == 1


def test_unknown_options_and_commands_exit_with_two():
    assert harness("sweep", "--no-such-option").returncode == 2
    assert harness("no-such-command").returncode == 2


def test_a_study_file_that_is_a_folder_is_told_by_every_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/study/sweep.json").mkdir(parents=True)
    for words in (["status"], ["report"], ["claims"], ["history"], ["check", "study"]):
        assert run_command_line(words) == 2
        said = capsys.readouterr().err
        assert (said.count("\n"), "results/study/sweep.json" in said) == (1, True), said


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("policies", "a", "b", "--base", "2"), "--base"),
        (("policies", "a", "b", "--threshold", "5"), "--threshold"),
        (("bundle", "redraw", "b.tar.gz", "--style", "paper"), "--style"),
        (("check", "study", "--until-sure", "5"), "--until-sure"),
        (("check", "study", "--scheduler", "local"), "--scheduler"),
        (("check", "study", "--data-dir", "."), "--data-dir"),
        (("compare", "a", "b", "--budget", "5"), "--budget"),
        (("compare", "a", "b", "--epochs", "5"), "--epochs"),
        (("compare", "a", "b", "--nodes", "2"), "--nodes"),
        (("claims", "--budget", "5"), "--budget"),
        (("probe", "--launcher", "mpirun -n 4", "--ranks", "4"), "--ranks"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(arguments, option, capsys):
    assert run_command_line(arguments) == 2
    assert option in capsys.readouterr().err
