"""A user without a name or home, as in containers: every command works, or says in one sentence what it needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base import current_user
from harness.base.errors import UserError
from harness.base.files import cache_folder
from harness.sweep.site import known_sites
from tests.mpi.launch import ROOT

UNKNOWN = 54321  # the number of a user who is in no passwd file
AS_UNKNOWN = ("unshare", "--user", f"--map-user={UNKNOWN}", f"--map-group={UNKNOWN}")
VARIABLES = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "HARNESS_CACHE_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make this process that of a user without name and home; return the folder for temporary files."""

    def no_entry(number: int) -> None:
        raise KeyError(number)

    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what the code sets is taken back, too
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_without_a_home_there_are_folders_and_a_name(nobody: Path) -> None:
    own = nobody / f"mpi-tf-harness-{os.getuid()}"
    assert current_user.home_folder() is None and current_user.user_name() == str(os.getuid())
    assert known_sites()
    assert cache_folder() == own / "mpi-tf-harness" and own.stat().st_mode & 0o777 == 0o700
    assert os.environ["HARNESS_CACHE_DIR"] == str(own)  # what is started from here has the same


@pytest.mark.parametrize("variable", ["HARNESS_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_folder_that_is_named_is_taken(variable: str, nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, str(nobody / "named"))
    assert cache_folder().is_relative_to(nobody / "named") and not list(nobody.iterdir())


def test_a_home_that_cannot_be_written_to(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nobody / "file").write_text("")
    (nobody / "locked").mkdir()
    for home in ("file", "file/below", "locked"):
        monkeypatch.setenv("HOME", str(nobody / home))
        monkeypatch.delenv("HARNESS_CACHE_DIR", raising=False)
        if home == "locked":  # root may write everywhere
            monkeypatch.setattr("os.access", lambda path, mode: False)
        assert cache_folder() == nobody / f"mpi-tf-harness-{os.getuid()}" / "mpi-tf-harness"


def test_home_is_settled_once(nobody: Path) -> None:
    current_user.settle_home()
    assert current_user.home_folder() == nobody / f"mpi-tf-harness-{os.getuid()}" == Path(os.environ["HOME"])
    assert cache_folder() == Path.home() / ".cache" / "mpi-tf-harness"


def test_a_folder_that_others_prepared_is_refused(nobody: Path) -> None:
    own = nobody / f"mpi-tf-harness-{os.getuid()}"
    (nobody / "theirs").mkdir()
    own.symlink_to(nobody / "theirs")
    with pytest.raises(UserError, match="HARNESS_CACHE_DIR"):
        cache_folder()
    own.unlink()
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(UserError, match="HARNESS_CACHE_DIR"):
        cache_folder()
    own.rmdir()
    own.write_text("")
    with pytest.raises(UserError, match="HARNESS_CACHE_DIR"):
        current_user.settle_home()


def test_no_temporary_folder_either(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(nobody / "nowhere" / "below"))
    with pytest.raises(UserError, match="HARNESS_CACHE_DIR"):
        cache_folder()


def as_unknown(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "HARNESS_FETCH": "0"}
    environment = [f"{name}={value}" for name, value in (given | variables).items()]
    if subprocess.run([*AS_UNKNOWN, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces are not permitted here")
    command = [*AS_UNKNOWN, "env", "-i", *environment, sys.executable, "-m", "harness", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("data", "list"), 0),
        (("status",), 2),
        (
            (
                "site",
                "check",
            ),
            0,
        ),
        (("sweep", "--dataset", "adult", "--nodes", "1", "--dry-run"), 0),
        (("run", "nowhere.py"), 2),
        (("data", "prepare", "adult", "--samples", "1000"), 0),
    ],
)
def test_commands_of_a_user_whom_nobody_knows(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    ended = as_unknown(tmp_path, *words)
    assert ended.returncode == code and "Traceback" not in ended.stderr, ended.stderr
    assert sum("HOME" in line for line in ended.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("~"))


def test_a_cache_that_is_named_needs_no_home(tmp_path: Path) -> None:
    ended = as_unknown(tmp_path, "data", "list", HARNESS_CACHE_DIR=str(tmp_path / "cache"))
    assert ended.returncode == 0 and f"data in {tmp_path / 'cache'}" in ended.stdout
