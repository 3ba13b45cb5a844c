"""The command of one rank: files of its own before MPI starts, standard input from a file."""

import pytest
from click.testing import CliRunner

from harness.transparent import file_mechanism, rank_command
from harness.transparent.run_settings import INPUT


@pytest.fixture
def entered(monkeypatch):
    calls = []
    monkeypatch.setattr(file_mechanism, "enter", lambda script, logs, keep: calls.append(keep))
    return calls


@pytest.mark.parametrize(
    ("rank", "text", "keeps", "expected"),
    [
        (None, "", False, []),
        (0, "", False, []),
        (2, "", False, [""]),
        (2, "", True, ["rank-2"]),
        (2, "import horovod", True, []),
    ],
)
def test_a_rank_above_0_has_files_of_its_own(rank, text, keeps, expected, tmp_path, monkeypatch, entered):
    script = tmp_path / "train.py"
    script.write_text(text)
    monkeypatch.setattr(file_mechanism, "rank_by_environment", lambda: rank)
    monkeypatch.delenv("TF_MPI_ENABLE", raising=False)
    rank_command._part_files(script, [], tmp_path / "logs", keeps=keeps)
    assert entered == expected


def test_switches_come_before_the_script_and_its_arguments_after_it(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(rank_command, "_run", lambda *words: runs.append(words))
    monkeypatch.setattr(rank_command, "_part_files", lambda *words, keeps: None)
    monkeypatch.setattr(rank_command, "settle_home", lambda: None)
    monkeypatch.delenv(INPUT, raising=False)
    script = tmp_path / "train.py"
    words = ["--threads", "3", "--batch", "global", str(script), "--threads", "9"]
    outcome = CliRunner().invoke(rank_command.main, words)
    assert outcome.exit_code == 0, outcome.output
    ((path, arguments, threads, gpus, options),) = runs
    assert (path, arguments, threads, gpus) == (script, ("--threads", "9"), 3, 0)
    assert options["batch"] == "global"
