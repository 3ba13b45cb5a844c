"""A copy of a folder as it is when a launch begins; what is too large stays a view of the live folder."""

from pathlib import Path

import pytest

from harness.transparent import frozen_folder
from harness.transparent.frozen_folder import FrozenFolder, TooLargeError


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "small.txt").write_text("small")
    (folder / "sub" / "rows.csv").write_text("1,2")
    (folder / "link").symlink_to("small.txt")
    return folder


def frozen(folder, tmp_path, **words):
    words = {"places": (), "levels": 3, **words}
    return FrozenFolder(folder, tmp_path / "copy", tmp_path / "live", **words)


def test_names_and_contents_are_copied_and_later_changes_are_not_seen(folder, tmp_path):
    copy = frozen(folder, tmp_path).copy
    (folder / "small.txt").write_text("changed")
    (folder / "new.txt").touch()
    assert (copy / "small.txt").read_text() == "small"
    assert (copy / "sub" / "rows.csv").read_text() == "1,2"
    assert (copy / "link").readlink() == Path("small.txt")
    assert not (copy / "new.txt").exists()


def test_a_large_file_is_a_link_to_the_live_one(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(frozen_folder, "_FILE_BYTES", 3)
    copy = frozen(folder, tmp_path).copy
    assert (copy / "small.txt").readlink() == tmp_path / "live" / "small.txt"
    assert not (copy / "sub" / "rows.csv").is_symlink()


def test_folders_below_the_last_level_are_seen_live(folder, tmp_path):
    shallow = frozen(folder, tmp_path, levels=0)
    assert [str(path) for path in shallow.live_folders] == ["sub"]
    assert (shallow.copy / "sub").is_dir()


def test_of_a_place_only_the_name_is_copied(folder, tmp_path):
    copy = frozen(folder, tmp_path, places=(folder / "sub",))
    assert list((copy.copy / "sub").iterdir()) == []
    assert copy.live_folders == []


def test_a_folder_of_too_many_entries_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(frozen_folder, "_ENTRIES", 2)
    with pytest.raises(TooLargeError):
        frozen(folder, tmp_path)
