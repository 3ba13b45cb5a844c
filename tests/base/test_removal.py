"""Only what the harness has made is removed or replaced, whatever a user, a link, a mount or a kill puts in its way."""

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base import removal
from harness.base.errors import UserError
from harness.base.files import folder_atomic
from harness.base.removal import (
    MARK,
    check_file,
    check_folder,
    check_new_folder,
    check_place,
    finish_folder,
    make_place,
    move,
    new_staging_folder,
    publish_staging,
    remove_contents,
    remove_empty_folder,
    remove_file,
    remove_folder,
    remove_left,
    replace_folder,
    umask,
)


def tree(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Return all that is below `folder`: its mode, and its content or where it leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[path.relative_to(folder).as_posix()] = (path.lstat().st_mode, content)
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def made(target: Path, **contents: str) -> Path:
    """Write a finished folder of ours."""
    staging = new_staging_folder(target)
    for name, text in contents.items():
        (staging / name).write_text(text)
    finish_folder(staging)
    replace_folder(staging, target, "output folder")
    return target


def project(folder: Path) -> Path:
    """Make a folder as a user has one."""
    for name in (".git", "src"):
        (folder / name).mkdir(parents=True)
    (folder / ".git/HEAD").write_text("ref")
    (folder / "src/train.py").write_text("print()")
    return folder


def test_a_finished_folder_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    target = made(tmp_path / "record", run="1", steps="1")
    made(target, run="2")
    assert (target / "run").read_text() == "2"
    assert names(target) == [MARK, "run"]
    assert names(tmp_path) == ["record"]


def test_an_empty_folder_is_used_and_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir(mode=0o700)
    target = made(tmp_path / "record", run="1")
    assert (target / "run").read_text() == "1"
    assert target.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "kind", ["project", "file", "link", "link to ours", "ours and more", "working", "parent", "dots", "place"]
)
def test_nothing_that_is_not_ours_is_replaced(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    if kind == "project":
        project(target)
    elif kind == "file":
        target.write_text("mine")
    elif kind == "link":
        target.symlink_to(project(tmp_path / "elsewhere"))
    elif kind == "link to ours":
        target.symlink_to(made(tmp_path / "elsewhere", run="1"))
    elif kind == "ours and more":
        (made(target, run="1") / "thesis.pdf").write_text("mine")
    elif kind in ("working", "dots"):
        target.mkdir()
        monkeypatch.chdir(target)
        target = Path("." if kind == "working" else "..")
    elif kind == "parent":
        (target / "below").mkdir(parents=True)
        monkeypatch.chdir(target / "below")
    elif kind == "place":
        make_place(target, "RESULTS")
    before = tree(tmp_path)
    with pytest.raises(UserError, match="name a new or empty folder"):
        check_folder(target, "--record")
    assert tree(tmp_path) == before
    staging = new_staging_folder(tmp_path / "new")
    finish_folder(staging)
    with pytest.raises(UserError):
        replace_folder(staging, target, "--record")
    shutil.rmtree(staging)
    assert tree(tmp_path) == before


def test_the_home_folder_is_not_used_even_where_it_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match="home"):
        check_folder(tmp_path, "--record")


def test_a_folder_with_others_files_is_no_place(tmp_path: Path) -> None:
    project(tmp_path / "mine")
    with pytest.raises(UserError, match=r"--results '.*' has '\.git' in it"):
        check_place(tmp_path / "mine", "--results")
    make_place(tmp_path / "new/results", "--results")
    (tmp_path / "new/results/sweep").mkdir()
    check_place(tmp_path / "new/results", "--results")
    assert (tmp_path / "new/results" / MARK).exists()


def test_a_place_that_another_rank_makes_meanwhile_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mark is not there yet, or comes while its entries are read."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / f"{MARK}.harness-abcdefgh").touch()
    check_place(tmp_path / "logs", "--logs")
    (tmp_path / "others").mkdir()
    (tmp_path / "others/mine").touch()
    read_entries = Path.iterdir

    def marked_before_it_is_read(folder: Path) -> Iterator[Path]:
        make_place(folder, "--logs", is_ours=True)
        return read_entries(folder)

    with pytest.raises(UserError):
        check_place(tmp_path / "others", "--logs")
    monkeypatch.setattr(Path, "iterdir", marked_before_it_is_read)
    check_place(tmp_path / "others", "--logs")


@pytest.mark.parametrize("kind", ["unmarked", "link", "outside", "more", "place", "foreign mark"])
def test_only_folders_of_ours_are_removed(tmp_path: Path, kind: str) -> None:
    below = tmp_path / "below"
    below.mkdir()
    folder = below / "folder"
    if kind == "unmarked":
        project(folder)
    elif kind == "link":
        folder.symlink_to(made(tmp_path / "elsewhere", run="1"))
    elif kind == "outside":
        made(tmp_path / "outside", run="1")
        folder = below / ".." / "outside"
    elif kind == "more":
        (made(folder, run="1") / "sub").mkdir()
        (folder / "sub" / "mine").write_text("mine")
    elif kind == "place":
        make_place(folder, "x")
    elif kind == "foreign mark":
        project(folder)
        (folder / MARK).symlink_to(made(tmp_path / "elsewhere", run="1") / MARK)
    before = tree(tmp_path)
    with pytest.raises(UserError, match="remove it yourself"):
        remove_folder(folder, below=below)
    assert tree(tmp_path) == before


def test_a_folder_of_ours_is_removed_and_links_in_it_are_not_followed(tmp_path: Path) -> None:
    user = project(tmp_path / "project")
    staging = new_staging_folder(tmp_path / "record")
    (staging / "link").symlink_to(user)
    before = tree(user)
    remove_folder(staging, below=tmp_path)
    assert not staging.exists()
    assert tree(user) == before
    remove_folder(staging, below=tmp_path)  # nothing is there


def test_files_that_are_links_or_folders_are_neither_removed_nor_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "folder").mkdir()
    for name in ("link", "folder"):
        with pytest.raises(UserError):
            remove_file(tmp_path / name)
        with pytest.raises(UserError):
            check_file(tmp_path / name, "--output")
    assert (tmp_path / "link").is_symlink()
    remove_file(tmp_path / "mine")
    remove_file(tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_what_was_left_is_removed_and_what_users_have_there_stays(tmp_path: Path) -> None:
    for name in (".git", ".datalad"):
        project(tmp_path / name)
    for name in (".env", ".gitignore", ".backup.tar"):
        (tmp_path / name).write_text("mine")
    before = tree(tmp_path)
    staging = new_staging_folder(tmp_path / "record")
    handle, file = removal.new_staging_file(tmp_path / "run.json")
    os.close(handle)
    remove_left(tmp_path, ended_only=True)
    assert staging.exists()  # this process may be writing it
    assert file.exists()
    remove_left(tmp_path, keep=("record",))
    assert staging.exists()
    remove_left(tmp_path)
    assert tree(tmp_path) == before


def test_a_folder_that_was_being_replaced_gets_its_name_back(tmp_path: Path) -> None:
    old = made(tmp_path / "record", run="old")
    staging = new_staging_folder(old)
    finish_folder(staging)
    old.rename(f"{staging}.before")
    remove_left(tmp_path)
    assert (old / "run").read_text() == "old"
    assert names(tmp_path) == ["record"]


def test_of_two_that_publish_the_first_stays(tmp_path: Path) -> None:
    stagings = [new_staging_folder(tmp_path / "prepared") for _ in range(2)]
    for number, staging in enumerate(stagings):
        (staging / "data").write_text(str(number))
        finish_folder(staging)
    assert publish_staging(stagings[0], tmp_path / "prepared")
    assert not publish_staging(stagings[1], tmp_path / "prepared")
    assert (tmp_path / "prepared/data").read_text() == "0"


def test_what_comes_into_a_folder_while_it_is_replaced_stays_and_so_does_the_new_one(tmp_path: Path) -> None:
    target = made(tmp_path / "record", run="old")
    with pytest.raises(UserError, match="record-2"), folder_atomic(target) as staging:
        (staging / "run").write_text("new")
        (target / "notes").write_text("mine")
    assert tree(target).keys() == {MARK, "run", "notes"}
    assert (target / "run").read_text() == "old"
    assert (tmp_path / "record-2/run").read_text() == "new"


def test_a_mark_of_staging_is_believed_under_a_staging_name_only(tmp_path: Path) -> None:
    staging = new_staging_folder(tmp_path / "record")
    (staging / "train.py").write_text("mine")
    renamed = staging.rename(tmp_path / "project")
    with pytest.raises(UserError, match="not made"):
        check_folder(renamed, "--record")
    with pytest.raises(UserError, match="not made"):
        remove_folder(renamed, below=tmp_path)


def test_what_was_left_is_looked_for_in_no_link_and_under_whole_names_only(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    staging = new_staging_folder(tmp_path / "models/record")
    (tmp_path / "link").symlink_to(tmp_path / "models")
    (tmp_path / ".notes.harness-backup.tar").write_text("mine")
    remove_left(tmp_path / "link")
    remove_left(tmp_path)
    assert staging.exists()
    assert (tmp_path / ".notes.harness-backup.tar").exists()


@pytest.mark.parametrize("name", ["x" * 250, "file/below", "/proc/record", "/sys/record"])
def test_what_cannot_be_written_at_the_end_is_refused_at_the_beginning(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="name another folder"):
        check_new_folder(tmp_path / name, "--record")
    check_new_folder(tmp_path / "new/below", "--record")
    assert names(tmp_path) == ["file"]


def test_a_folder_is_moved_onto_nothing_only(tmp_path: Path) -> None:
    first = made(tmp_path / "first", run="1")
    second = made(tmp_path / "second", run="2")
    with pytest.raises(FileExistsError):
        move(first, second)
    (tmp_path / "link").symlink_to(second)
    with pytest.raises(UserError):
        move(tmp_path / "link", tmp_path / "third")
    move(first, tmp_path / "third")
    assert (tmp_path / "third/run").read_text() == "1"


def test_an_empty_folder_goes_and_one_with_anything_stays(tmp_path: Path) -> None:
    make_place(tmp_path / "empty", "x")
    assert remove_empty_folder(tmp_path / "empty")
    make_place(tmp_path / "full", "x")
    (tmp_path / "full/mine").write_text("mine")
    assert not remove_empty_folder(tmp_path / "full")
    assert (tmp_path / "full" / MARK).exists()


def test_an_empty_folder_that_another_rank_removes_meanwhile_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    read_entries = Path.iterdir

    def removed_before_it_is_read(folder: Path) -> Iterator[Path]:
        folder.rmdir()
        return read_entries(folder)

    monkeypatch.setattr(Path, "iterdir", removed_before_it_is_read)
    assert remove_empty_folder(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_what_another_user_owns_stays(tmp_path: Path) -> None:
    folder = made(tmp_path / "record", run="1")
    os.chown(folder / "run", 65534, 65534)
    for refused in (
        lambda: remove_folder(folder, below=tmp_path),
        lambda: check_folder(folder, "--record"),
        lambda: remove_file(folder / "run"),
        lambda: remove_contents(folder),
    ):
        with pytest.raises(UserError, match="another user"):
            refused()
    assert (folder / "run").read_text() == "1"


_BELOW_A_MOUNT = """
import os, subprocess, sys
from pathlib import Path
from harness.base import removal
from harness.base.errors import UserError
place = Path(sys.argv[1])
target = removal.new_staging_folder(place / "record")
(target / "data").mkdir()
(place / "mine").mkdir()
(place / "mine/thesis").write_text("mine")
subprocess.run(["mount", "--bind", place / "mine", target / "data"], check=True)
for action in (lambda: removal.remove_folder(target, below=place), lambda: removal.remove_contents(target)):
    try:
        action()
    except UserError as error:
        assert "mount" in str(error), error
    else:
        raise SystemExit("removed")
removal.remove_left(place)
assert (place / "mine/thesis").read_text() == "mine"
"""


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="this kernel or user may not mount",
)
def test_nothing_below_a_mount_is_removed(tmp_path: Path) -> None:
    words = ["unshare", "--mount", sys.executable, "-c", _BELOW_A_MOUNT, str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "mine/thesis").read_text() == "mine"


_REPLACING = """
import sys
from pathlib import Path
from harness.base.removal import finish_folder, new_staging_folder, replace_folder
target = Path(sys.argv[1])
number = 0
while True:
    staging = new_staging_folder(target)
    for name in "abc":
        (staging / name).write_text(str(number) * 1000)
    finish_folder(staging)
    replace_folder(staging, target, "record")
    number = (number + 1) % 10
"""


def kills(tmp_path: Path, count: int, seed: int) -> None:
    """Kill a process that replaces a folder again and again: it is whole each time."""
    target = made(tmp_path / "record", a="0" * 1000, b="0" * 1000, c="0" * 1000)
    draw = random.Random(seed)
    for _ in range(count):
        process = subprocess.Popen([sys.executable, "-c", _REPLACING, str(target)])
        time.sleep(0.3 + draw.random() / 5)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        texts = {(target / name).read_text() for name in "abc"}
        assert len(texts) == 1
        assert len(texts.pop()) == 1000
        remove_left(tmp_path)
        assert names(tmp_path) == ["record"]


def test_a_replaced_folder_is_whole_after_a_kill(tmp_path: Path) -> None:
    kills(tmp_path, 5, seed=1)


@pytest.mark.campaign
@pytest.mark.slow
def test_a_replaced_folder_is_whole_after_200_kills(tmp_path: Path) -> None:
    kills(tmp_path, 200, seed=2)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_it_is_that_of_the_process(mask: int) -> None:
    before = os.umask(mask)
    try:
        assert umask() == mask
    finally:
        assert os.umask(before) == mask


def test_files_of_another_thread_have_their_mode_meanwhile(tmp_path: Path) -> None:
    before = os.umask(0o022)
    ends = threading.Event()

    def ask() -> None:
        while not ends.is_set():
            umask()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        modes = set()
        for number in range(3000):
            path = tmp_path / str(number)
            path.touch()
            modes.add(stat.S_IMODE(path.stat().st_mode))
            path.unlink()
    finally:
        ends.set()
        asking.join()
        os.umask(before)
    assert modes == {0o644}
