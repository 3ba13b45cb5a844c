"""What `harness run` gives to its ranks, and what it passes on of theirs."""

import os
import queue
import threading
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


RULE = b"-" * 74 + b"\n"
ABORT = RULE + b"MPI_ABORT was invoked on rank 0\n\nYou may or may not see output.\n" + RULE
ENDED = RULE + b'prterun has exited due to process rank 0 calling\n"abort".\n' + RULE
KILLED = RULE + b"prterun noticed that process rank 1 exited on signal 9\n" + RULE


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ABORT + b"harness: rank 0: no\n" + ENDED, b"harness: rank 0: no\n"),
        (b"harness: no\n" + ABORT + ENDED + b"more", b"harness: no\nmore"),
        (KILLED, KILLED),
        (
            RULE + b"epoch 1\n" + RULE + b"epoch 2\n--- half a rule",
            RULE + b"epoch 1\n" + RULE + b"epoch 2\n--- half a rule",
        ),
        (b"10 %\r20 %\r\n- a list\n", b"10 %\r20 %\r\n- a list\n"),
    ],
)
def test_what_ranks_write_is_passed_on_without_the_launchers_words_on_an_abort(
    text: bytes, expected: bytes, step: int
) -> None:
    written: list[bytes] = []
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream:
        reader = threading.Thread(target=command_run.RanksErrors(written.append).read, args=[stream])
        reader.start()
        for begin in range(0, len(text), step):
            os.write(write, text[begin : begin + step])
        os.close(write)
        reader.join()
    assert b"".join(written) == expected


def test_an_unfinished_line_is_passed_on_at_once() -> None:
    """As a progress bar is."""
    written: queue.Queue[bytes] = queue.Queue()
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream:
        reader = threading.Thread(target=command_run.RanksErrors(written.put).read, args=[stream])
        reader.start()
        os.write(write, b"10 %")
        parts = [written.get(timeout=60), written.get(timeout=60)]
        os.close(write)
        reader.join()
    assert b"".join(parts) == b"10 %"
