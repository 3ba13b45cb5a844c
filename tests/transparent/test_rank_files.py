"""Ranks above 0 write nothing where rank 0 writes: not only below the working directory."""

import os
import shutil
import tempfile
import threading
from functools import partial
from pathlib import Path

import h5py
import pytest

from harness.base.scratch import opened_folder
from harness.transparent import rank_files
from harness.transparent.patch import wrapped
from harness.transparent.rank_files import PrivateFiles


def test_a_rank_s_own_files_lie_apart_wherever_the_script_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "results", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    files, log = PrivateFiles(tmp_path / "here" / "logs"), tmp_path / "results" / "log.csv"
    log.write_text("rank 0\n")
    for name in ("log.csv", "../results/log.csv"):
        with files._open(open, name, "a") as mine:
            mine.write("mine\n")
    assert log.read_text() == "rank 0\n" and not (tmp_path / "here" / "log.csv").exists()
    assert files._open(open, log).read() == "rank 0\nmine\n"
    assert files._open(open, "log.csv").read() == "mine\n"
    with files._open(open, tmp_path / "temporary" / "part", "w") as part:
        part.write("what it is")
    assert (tmp_path / "temporary" / "part").read_text() == "what it is"
    assert files.private("/dev/null") is None and files.private(Path.home() / ".keras" / "keras.json") is None


def test_a_folder_is_listed_when_rank_0_has_written_there_what_this_rank_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that makes its data and lists it else has other rows on every rank."""
    monkeypatch.chdir(tmp_path)
    files = PrivateFiles(tmp_path / "logs")
    for name in "ab":
        files._open(open, name, "w").close()
    (tmp_path / "a").touch()
    threading.Timer(0.3, (tmp_path / "b").touch).start()
    assert sorted(files._list(os.listdir)) == ["a", "b"]
    files._open(open, "c", "w").close()
    monkeypatch.setattr(rank_files, "_PATIENCE_S", 0.1)
    assert sorted(files._list(os.listdir)) == ["a", "b"]  # rank 0 has no such file: nobody waits for ever


def test_a_rank_writes_an_hdf5_file_that_rank_0_has_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 opens files on its own, and locks them."""
    monkeypatch.chdir(tmp_path)
    opens = wrapped(h5py.File.__init__, PrivateFiles(tmp_path / "logs")._open_h5)
    with h5py.File("data.h5", "w") as first:
        first["x"] = [1]
        monkeypatch.setattr(h5py.File, "__init__", opens)
        with h5py.File("data.h5", "w") as mine:
            mine["x"] = [2]
        with h5py.File("data.h5") as mine:
            assert (mine["x"][0], first["x"][0]) == (2, 1)


def test_a_temporary_folder_is_removed_with_all_that_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`shutil.rmtree` removes what is in a folder by the folder's descriptor."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary" / "made").mkdir(parents=True)
    (tmp_path / "temporary" / "made" / "rows").touch()
    (tmp_path / "real").touch()
    files = PrivateFiles(tmp_path / "logs")
    for name in ("unlink", "rmdir"):
        monkeypatch.setattr(os, name, partial(files._delete, getattr(os, name)))
    shutil.rmtree(tmp_path / "temporary" / "made")
    assert not (tmp_path / "temporary" / "made").exists()
    with opened_folder(tmp_path) as folder:
        os.unlink("real", dir_fd=folder)
    assert (tmp_path / "real").exists()
