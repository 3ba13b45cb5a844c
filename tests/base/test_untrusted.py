"""What comes from elsewhere, and what goes there: modes of files, names in scripts, secrets."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from harness.__main__ import run_command_line
from harness.base.files import folder_atomic, publish_folder, write_atomic
from harness.cli.secret_arguments import check_secrets
from harness.schema.record import encode, read_point
from tests.labs.factories import make_point
from tests.labs.refusals import refused


@pytest.mark.parametrize(
    ("mask", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0o002, 0o664, 0o775)]
)
def test_files_records_and_cached_folders_have_the_mode_that_the_umask_leaves(
    tmp_path: Path, mask: int, file: int, folder: int
) -> None:
    before = os.umask(mask)
    try:
        write_atomic(tmp_path / "file", "text")
        with folder_atomic(tmp_path / "record") as staging:
            (staging / "run.json").write_text("{}")
        with publish_folder(tmp_path / "cache") as staging:
            (staging / "rows.npy").write_text("")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "record", "record/run.json")]
    modes += [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("cache", "cache/rows.npy")]
    assert modes == [file, folder, file, folder, file]


@pytest.mark.parametrize(
    "name",
    [
        *("X; touch /tmp/owned", "A=B", "", "1A", "A\nB", "$(id)", "LD_PRELOAD", "PYTHONPATH", "PATH", "BASH_ENV"),
        *("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_mca_base_component_path", "OMPI_MCA_mpi_show_mca_params_file"),
    ],
)
def test_a_foreign_points_settings_cannot_write_into_a_job_script(tmp_path: Path, name: str) -> None:
    path = tmp_path / "point.json"
    path.write_bytes(encode(replace(make_point(2), settings=(("HARNESS_REDUCTION", "native"),))))
    assert read_point(path).settings == (("HARNESS_REDUCTION", "native"),)
    text = path.read_text().replace('"HARNESS_REDUCTION"', json.dumps(name))
    path.write_text(text)
    with refused("schema.record.decode"):
        read_point(path)


@pytest.mark.parametrize(
    "argument",
    [
        "--password",
        "--password=hunter2",
        "--db-password=hunter2",
        "-secret",
        "--api_key=hunter2",
        "--token",
        "--hf-token=hunter2",
        "--data=https://me:hunter2@host/x",
    ],
)
def test_arguments_that_look_like_secrets_are_refused_without_being_told(argument: str) -> None:
    with refused("cli.secret_arguments.check_secrets") as caught:
        check_secrets(["--epochs", "3", argument])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "argument", ["--max-tokens=512", "--pad-token", "<pad>", "--tokenizer", "bpe", "secret", "--x=https://host:80/a@b"]
)
def test_other_arguments_are_none(argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["run", "--record", str(tmp_path / "r"), str(tmp_path / "missing.py"), argument]) == 2
    assert "missing.py" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run --record r train.py --token t", "sweep --script train.py --script-arguments"])
def test_no_secret_comes_into_a_record(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    words = [*command.split(), *(["--token hunter2", "--nodes", "1"] if command.startswith("sweep") else [])]
    assert run_command_line(words) == 2
    assert "secret" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
