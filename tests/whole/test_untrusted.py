"""What comes from elsewhere, and what goes there: modes of files, names in scripts, secrets."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from harness.__main__ import run_command_line
from harness.base.files import folder_atomic, publish_folder, write_atomic
from harness.base.provenance import relevant_environment
from harness.base.secret_text import WITHHELD
from harness.schema.record import encode, read_point
from harness.sweep.site import JobRequest, Site, refuse_recorded_secrets
from harness.transparent.script_process import main
from tests.labs.factories import make_point
from tests.labs.sentences import refuses


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
    with refuses("is not allowed: use"):
        read_point(path)


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


def test_an_argument_that_is_no_secret_is_allowed_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "--script", "train.py", "--script-arguments", "--token 3", "--nodes", "1"]
    assert run_command_line([*words, "--allow-argument", "token"]) == 2
    assert "train.py" in capsys.readouterr().err  # what is not there, not the argument


def test_a_rank_that_is_started_by_hand_refuses_a_secret_too(tmp_path: Path) -> None:
    words = ["--record", str(tmp_path / "r"), str(tmp_path / "train.py"), "--token", "hunter2"]
    with pytest.raises(SystemExit) as ended:
        main(words, standalone_mode=False)
    assert ended.value.code == 2
    assert not (tmp_path / "r").exists()


def test_the_environment_of_a_record_has_no_value_of_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "hunter2")
    monkeypatch.setenv("UCX_NET_DEVICES", "https://me:hunter2@host")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    recorded = relevant_environment()
    assert recorded["OMP_NUM_THREADS"] == "2"
    assert recorded["NCCL_AUTH_TOKEN"] == recorded["UCX_NET_DEVICES"] == WITHHELD


@pytest.mark.parametrize(
    "line",
    [
        'environment = {HF_TOKEN = "hunter2"}',
        'setup = ["module load x", "export WANDB_API_KEY=hunter2"]',
        'launcher_options = ["-x", "DB_PASSWORD=hunter2"]',
        'request = {extra = ["--export=API_KEY=hunter2"]}',
    ],
)
def test_a_secret_in_a_site_is_refused_before_anything_is_written(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(line + "\n")
    words = ["sweep", "--site", "mine.toml", "--dataset", "mnist", "--nodes", "1", "--scheduler", "local", "--dry-run"]
    assert run_command_line(words) == 2
    assert "hunter2" not in (said := capsys.readouterr().err) and "secret" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_a_site_that_reads_a_secret_from_a_file_is_none() -> None:
    site = Site(setup=("export HF_TOKEN=$(cat ~/.token)", "module load keys"), environment={"TOKENIZERS": "4"})
    refuse_recorded_secrets(site, JobRequest())
