"""What `harness run` gives to its ranks."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.__main__ import run_command_line
from harness.cli import command_run
from harness.cli.command_run import RunOptions, rank_words
from harness.sweep.launch_command import LaunchCommand
from harness.transparent.run_settings import RunSettings


def test_every_setting_reaches_the_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    options = RunOptions(
        script=script,
        arguments=("--epochs", "3"),
        allow_argument=("KEY", "TOKEN"),
        ranks=2,
        threads=1,
        gpus_per_rank=1,
        settings=RunSettings(hang_timeout=0.0, keep_rank_files=True),
    )
    words = rank_words(LaunchCommand(words=("mpirun", "-n", "2")), options)
    switches = words[5 : words.index(str(script))]
    assert sorted(switches) == [
        "--allow-argument=KEY",
        "--allow-argument=TOKEN",
        "--batch=per-rank",
        "--fuse=auto",
        "--gpus-per-rank=1",
        "--hang-timeout=0.0",
        "--keep-rank-files",
        "--logs=harness-logs",
        "--sync=gradients",
        "--threads=1",
        "--verify=0",
        "--witness=off",
    ]
    assert words[-2:] == ["--epochs", "3"]
    assert "--keep-rank-files" not in rank_words(LaunchCommand(words=()), replace(options, settings=RunSettings()))


def test_where_ranks_have_no_trees_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("import keras\n")
    started: list[object] = []
    monkeypatch.setattr(command_run, "namespace_refusal", lambda: "unshare: Operation not permitted")
    monkeypatch.setattr(command_run, "run_ranks", lambda *words, **settings: started.append(words) or 0)

    def code(*words: str) -> int:
        return run_command_line(["run", *words, str(script)])

    assert (code("-n", "2"), started) == (2, [])
    assert code("-n", "2", "--shared-files") == 0
    assert code("-n", "1") == 0
    script.write_text("import horovod.keras\n")
    assert code("-n", "2") == 0
    assert len(started) == 3


def test_a_script_on_ranks_starts_no_others_on_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setenv(command_run.MARK, "-")
    monkeypatch.setattr(command_run, "run_ranks", lambda *words, **settings: 0)
    assert run_command_line(["run", "-n", "2", str(script)]) == 2
