"""A bundle takes plain files without secrets, and refuses all else with its place and without its value."""

import os
import shlex
import shutil
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.__main__ import run_command_line
from harness.base.errors import UserError
from harness.bundle.write_bundle import copy_plain_files, execution_seconds, refuse_secrets_in_files, same_numbers
from tests.labs.factories import make_launch
from tests.labs.sentences import refuses

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"
LEAKS = {
    "logs/n1.log": "epoch 1\nWARNING: cloning https://me:hunter2@host/x\n",
    "failures/n1.json": '{"reason": "x", "tail": ["HF_TOKEN=hunter2"]}\n',
    "jobs/n1.sh": "#!/bin/sh\nexport WANDB_API_KEY='hunter2'\n",
    "submission.json": '{"site": {"environment": {"DB_PASSWORD": "hunter2"}}}\n',
    "sweep.json": '{"note": "--token hunter2"}\n',
}


@pytest.mark.parametrize("name", sorted(LEAKS))
def test_a_secret_in_any_file_is_refused_with_its_place_and_allowed_by_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(LEAKS[name])
    with pytest.raises(UserError) as caught:
        refuse_secrets_in_files(tmp_path, [name], ())
    sentence = str(caught.value)
    assert f"'{name}', line {len(LEAKS[name].splitlines())}" in sentence and "hunter2" not in sentence
    (allowed,) = shlex.split(sentence.rpartition("--allow ")[2])
    refuse_secrets_in_files(tmp_path, [name], [allowed])


def test_a_bundle_with_a_secret_in_a_log_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(SWEEP, tmp_path / "results/s")
    (tmp_path / "results/s/logs").mkdir()
    (tmp_path / "results/s/logs/n1.log").write_text("password: hunter2\n")
    folders = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    assert run_command_line(["bundle", "s", *folders]) == 2
    said = capsys.readouterr().err
    assert "results/s/logs/n1.log" in said and "hunter2" not in said
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "inside", "nowhere"])
def test_a_link_is_refused_wherever_it_points(target: str, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    (folder / "logs").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (folder / "logs/inside").touch()
    (folder / "logs/link").symlink_to(target)
    with refuses("link, and a bundle", folder / "logs/link"):
        copy_plain_files(folder, tmp_path / "copy", lambda name: False)


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_what_is_no_plain_file_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").mkdir()
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    if kind == "fifo":
        os.mkfifo("s/x")
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("s/x")
    with refuses("is no plain file", "s/x"):
        copy_plain_files(Path("s"), Path("copy"), lambda name: False)


def test_what_is_left_out_may_be_anything(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/.lock").symlink_to("/etc/passwd")
    (tmp_path / "s/run.json").write_text("{}")
    copy_plain_files(tmp_path / "s", tmp_path / "copy", lambda name: name.startswith("."))
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["run.json"]


def test_numbers_are_the_same_within_a_millionth_and_words_are_the_same() -> None:
    assert same_numbers('{"a": 1.00000001, "b": "x"}', '{"a": 1.00000002, "b": "x"}')
    assert same_numbers("a,b\n-1e-3,2\n", "a,b\n-0.001,2\n")
    for text, other in (("1.001", "1.002"), ("-1", "1"), ("1,2", "1"), ("x 1", "y 1"), ("1e5", "1e6"), ("0", "1e-9")):
        assert not same_numbers(text, other)


def test_execution_counts_what_ran_at_once_once_and_no_long_pauses(tmp_path: Path) -> None:
    start = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
    one = make_launch(1, 0, 1.0)

    def at(begin: float, seconds: float) -> object:
        import_s = max(rank.import_s for rank in one.ranks)
        began = start + timedelta(seconds=begin + import_s)
        return type(one)(**_fields(one) | {"started": began, "ended": start + timedelta(seconds=begin + seconds)})

    assert execution_seconds([at(0, 10)]) == pytest.approx(10)
    assert execution_seconds([at(0, 10), at(2, 5), at(5, 15)]) == pytest.approx(20)
    assert execution_seconds([at(25, 10), at(0, 10)]) == pytest.approx(35)
    assert execution_seconds([at(0, 10), at(1000, 10)]) == pytest.approx(20)


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in type(record).__dataclass_fields__}
