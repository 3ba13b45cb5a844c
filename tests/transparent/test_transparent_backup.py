"""A user's script with Keras's BackupAndRestore, killed and started again: it goes on as if nothing had happened."""

import sys

import pytest

from tests.mpi.launch import PROGRAMS, run_ranks

pytestmark = pytest.mark.mpi


def train(folder):
    script = PROGRAMS / "backup_script.py", "adam"
    python = sys.executable if (folder / "kill").exists() else None  # ranks that are killed have one of their own
    return run_ranks(2, "-m", "harness.transparent", *script, cwd=folder, timeout=120, python=python)


def test_a_killed_fit_goes_on_from_its_backup_to_the_weights_of_the_undisturbed_one(tmp_path):
    said = {}
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "killed":
            (folder / "kill").touch()
            assert train(folder).returncode != 0
            assert (folder / "backup" / "latest.weights.h5").exists()
            (folder / "kill").unlink()
        finished = train(folder)
        assert finished.returncode == 0, finished.stderr[-3000:]
        (said[name],) = [line for line in finished.stdout.splitlines() if line.startswith("EPOCHS")]
    assert "[0, 1, 2, 3]" in said["whole"]
    assert said["killed"] == said["whole"].replace("[0, 1, 2, 3]", "[2, 3]")
    assert said["killed"].endswith("LEFT False")
