"""The command line as a whole: quick help, exit codes, one sentence for bad input."""

import subprocess
import sys

import pytest

from harness.cli import COMMANDS

HEAVY = ("tensorflow", "keras", "mpi4py", "pandas", "matplotlib", "pyarrow", "scipy", "sklearn")


def harness(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "harness", *arguments], capture_output=True, text=True, check=False)


def test_help_imports_nothing_heavy():
    program = (
        "import sys; sys.argv = ['harness', '--help']\n"
        "from harness.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert all(name in finished.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    finished = harness(command, "--help")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith(f"Usage: harness {command}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "--dataset", "higs"), "did you mean 'higgs'"),
        (("sweep", "--dataset", "mnist", "--nodes", "8..1"), "NODES=8..1 runs backwards"),
        (("sweep", "--dataset", "mnist", "--nodes", "0"), "NODES=0 has a count below 1"),
        (("sweep", "--dataset", "mnist", "--sync", "never"), "SYNC=never is no sync policy"),
        (("train", "--dataset", "mnist", "--data-dir", "no-such-folder"), "no-such-folder"),
        (("report", "no-such-sweep"), "no-such-sweep"),
        (("train", "--point", "no-such-file"), "cannot be read"),
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
