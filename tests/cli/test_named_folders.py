"""Folders and files that a user names are used if they are new, empty or ours; nothing else is touched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.base.errors import UserError
from harness.base.files import cache_folder, folder_atomic, make_cache, make_folder
from harness.cli import main
from tests.base.test_removal import project, tree
from tests.labs.factories import make_launch, write_run, write_study


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """Return the working folder of a user, which has a project and a script in it."""
    folder = project(tmp_path / "work")
    (folder / "train.py").write_text("print()\n")
    monkeypatch.chdir(folder)
    return folder


def ask(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def refused(result: Result, *parts: str) -> bool:
    """Say whether a command has ended with a sentence for the user that has all `parts`."""
    return isinstance(result.exception, UserError) and all(part in str(result.exception) for part in parts)


def test_the_whole_command_ends_with_one_line_and_exit_code_2(user: Path) -> None:
    before = tree(user)
    words = [sys.executable, "-m", "harness", "run", "-n", "2", "--record", ".", "train.py"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("harness: --record '.' is not used")
    assert len(ended.stderr.splitlines()) == 1
    assert tree(user) == before


@pytest.mark.parametrize("kind", ["here", "above", "link", "file", "home", "full", "more than ours", "mount"])
def test_a_record_goes_into_no_folder_that_is_not_ours(
    kind: str, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "place"
    if kind == "here":
        record = Path()
    elif kind == "above":
        record = Path("..")
    elif kind == "link":
        record.symlink_to(user)
    elif kind == "file":
        record.write_text("mine")
    elif kind == "home":
        record.mkdir()
        monkeypatch.setenv("HOME", str(record))
    elif kind == "full":
        project(record)
    elif kind == "more than ours":
        with folder_atomic(record) as staging:
            (staging / "run.json").write_text("{}")
        (record / "notes.txt").write_text("mine")
    elif kind == "mount":
        record = Path("/proc")
    before = tree(tmp_path)
    assert refused(ask("run", "-n", "2", "--record", str(record), "train.py"), "--record", "name a new or empty folder")
    assert tree(tmp_path) == before


def test_a_report_replaces_no_page_of_a_user(user: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "results" / "s", make_launch(1, 0, 1.0))
    (user / "docs/bench").mkdir(parents=True)
    (user / "docs/bench/index.md").write_text("mine")
    before = tree(user)
    words = ("report", "s", "--results", str(tmp_path / "results"), "--reports", "docs")
    assert refused(ask(*words), "--reports 'docs' has 'bench' in it")
    assert tree(user) == before


def test_a_sweep_does_not_begin_in_a_folder_of_a_user(user: Path) -> None:
    before = tree(user)
    words = ("sweep", "--dataset", "adult", "--nodes", "1", "--dry-run", "--results", ".")
    assert refused(ask(*words), "--results '.' has")
    assert tree(user) == before


def test_output_replaces_only_what_was_written_as_output(user: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "results" / "s", make_launch(1, 0, 1.0))
    write_study(tmp_path / "results" / "s")
    (user / "thesis.md").write_text("mine")
    (user / "link.md").symlink_to(user / "thesis.md")
    words = ("report", "s", "--results", str(tmp_path / "results"), "--reports", "pages", "--format", "markdown")
    for name in ("thesis.md", "link.md", "src"):
        assert refused(ask(*words, "--output", name), f"--output '{name}'")
    assert (user / "thesis.md").read_text() == "mine"
    for _ in range(2):  # what it has written itself it writes anew
        ended = ask(*words, "--output", "answer.md")
        assert ended.exit_code == 0, ended.output


def test_the_cache_has_a_level_and_a_tag_of_its_own(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(user))
    (user / "images/imagenet").mkdir(parents=True)
    (user / "images/imagenet/mine.jpg").write_text("mine")
    before = tree(user)
    make_folder(cache_folder() / "images" / "index")
    assert (user / "mpi-tf-harness/CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    ended = ask("data", "clean")
    assert ended.exit_code == 0
    assert f"to be removed: indexes of images and synthetic JPEGs, {user}/mpi-tf-harness/images" in ended.output
    assert not (user / "mpi-tf-harness/images").exists()
    assert {name: state for name, state in tree(user).items() if not name.startswith("mpi-tf-harness")} == before


def test_a_folder_of_the_caches_name_with_something_else_in_it_is_no_cache(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(user))
    project(user / "mpi-tf-harness")  # a checkout
    before = tree(user)
    with pytest.raises(UserError, match="HARNESS_CACHE_DIR"):
        make_cache()
    assert refused(ask("data", "clean"), "HARNESS_CACHE_DIR")
    assert tree(user) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_what_another_user_has_in_the_cache_stays(user: Path, cache: Path) -> None:
    make_folder(cache / "prepared" / "2")
    theirs = cache / "prepared/2/theirs.npy"
    theirs.write_text("theirs")
    os.chown(theirs, 65534, 65534)
    assert refused(ask("data", "clean"), "belongs to another user")
    assert theirs.read_text() == "theirs"
