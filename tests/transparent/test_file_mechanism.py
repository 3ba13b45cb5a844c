"""Which ranks have files of their own, and which folders all of them share."""

import pytest

from harness.transparent import file_mechanism
from harness.transparent.file_mechanism import (
    RankFiles,
    check_trees,
    rank_by_environment,
    rank_places,
    refused_write,
    sees_ranks,
)
from tests.labs.sentences import refuses


@pytest.fixture
def no_launcher(monkeypatch):
    for name in file_mechanism._RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_the_launcher_tells_the_rank(monkeypatch, no_launcher):
    assert rank_by_environment() is None
    monkeypatch.setenv("PMIX_RANK", "3")
    assert rank_by_environment() == 3
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert rank_by_environment() == 1


def test_a_launch_in_which_one_rank_has_no_tree_is_refused():
    check_trees(["", ""])
    with refuses("of a user namespace", "uid_map", "--shared-files"):
        check_trees(["", "uid_map of a user namespace: Operation not permitted"])


def test_a_process_whose_namespace_is_refused_says_why(tmp_path, monkeypatch):
    def refuse():
        raise PermissionError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(file_mechanism, "PrivateTree", refuse)
    monkeypatch.setattr(file_mechanism._Process, "files", None)
    files = file_mechanism.enter(tmp_path / "train.py", tmp_path / "logs")
    assert files.refusal == "unshare: Operation not permitted"


def test_a_script_of_horovods_words_sees_its_ranks(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import keras\n")
    assert not sees_ranks(script, ["--epochs", "3"])
    assert sees_ranks(script, ["--variable_update=horovod"])
    script.write_text("import horovod.keras as hvd\n")
    assert sees_ranks(script, [])


def test_a_rank_sees_the_scripts_folder_and_shares_the_logs(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    places = rank_places(work / "train.py", work / "logs")
    assert work.resolve() in places.deep
    assert (work / "logs").resolve() in places.shared
    assert (work / "logs").is_dir()


def test_logs_in_which_the_script_lies_are_refused(tmp_path, monkeypatch):
    logs = tmp_path / "logs"
    (logs / "work").mkdir(parents=True)
    monkeypatch.chdir(logs / "work")
    with pytest.raises(OSError, match=str(logs)):
        rank_places(logs / "work" / "train.py", logs)


@pytest.mark.parametrize(
    ("place", "number", "is_told"), [("host:/tmp/x", 28, True), ("host:/tmp/x", 2, False), ("", 28, False)]
)
def test_no_room_in_a_ranks_own_tree_is_told_as_that(monkeypatch, place, number, is_told):
    monkeypatch.setattr(file_mechanism._Process, "files", RankFiles(place=place))
    refusal = refused_write(1, OSError(number, "No space left on device", "large.h5"))
    assert (refusal is not None) == is_told
    assert refusal is None or "large.h5" in str(refusal)
