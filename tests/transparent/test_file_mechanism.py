"""Which ranks have files of their own, and which folders all of them share."""

import errno
import os
import signal

import pytest

from harness.transparent.private_files import file_mechanism
from harness.transparent.private_files.crossing_renames import CrossingRenames
from harness.transparent.private_files.file_mechanism import (
    RankFiles,
    check_trees,
    namespace_refusal,
    rank_by_environment,
    rank_places,
    refused_write,
)
from harness.transparent.private_files.script_imports import imports_horovod, sees_ranks
from tests.labs.sentences import refuses


@pytest.fixture
def no_launcher(monkeypatch):
    for name in file_mechanism.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_the_launcher_tells_the_rank(monkeypatch, no_launcher):
    assert rank_by_environment() is None
    monkeypatch.setenv("PMIX_RANK", "3")
    assert rank_by_environment() == 3
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert rank_by_environment() == 1


def test_a_launch_in_which_one_rank_has_no_tree_is_refused():
    check_trees(["", ""])
    with refuses("of a user namespace", "uid_map", "--shared-files --unjudged"):
        check_trees(["", "uid_map of a user namespace: Operation not permitted"])


def test_a_process_whose_namespace_is_refused_says_why(tmp_path, monkeypatch):
    def refuse():
        raise PermissionError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(file_mechanism, "PrivateTree", refuse)
    monkeypatch.setattr(file_mechanism.Entered, "files", None)
    files = file_mechanism.enter(tmp_path / "train.py", tmp_path / "logs")
    assert files.refusal == "unshare: Operation not permitted"


def test_a_trial_that_is_refused_or_does_not_end_says_why(monkeypatch):
    def refuse(tree, places):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(file_mechanism.PrivateTree, "show", refuse)
    assert namespace_refusal() == "Operation not permitted"
    monkeypatch.setattr(file_mechanism.PrivateTree, "show", lambda tree, places: signal.pause())
    assert str(-signal.SIGKILL) in namespace_refusal(limit_s=0.1)
    monkeypatch.setattr(file_mechanism.PrivateTree, "show", lambda tree, places: None)
    assert not namespace_refusal()


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
    monkeypatch.setattr(file_mechanism.Entered, "files", RankFiles(place=place))
    refusal = refused_write(1, OSError(number, "No space left on device", "large.h5"))
    assert (refusal is not None) == is_told
    assert refusal is None or "large.h5" in str(refusal)


# A rename that the kernel refuses between two mounts of one place is made by a copy.


@pytest.fixture
def refuse_once(monkeypatch):
    """Give what has `os.rename` fail the first time with an error, as between two mounts."""
    original = os.rename
    monkeypatch.setattr(os, "replace", os.replace)  # both are put back after the test

    def refuse(error):
        refusals = [error]

        def rename(source, target, **folders):
            if refusals:
                raise OSError(refusals.pop(), "refused")
            original(source, target, **folders)

        monkeypatch.setattr(os, "rename", rename)

    return refuse


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_file_and_a_folder_cross_mounts_of_one_place(tmp_path, refuse_once, is_folder):
    source, target = tmp_path / "source", tmp_path / "target"
    if is_folder:
        source.mkdir()
    (source / "part" if is_folder else source).write_text("rows")
    refuse_once(errno.EXDEV)
    CrossingRenames(lambda old, new: True).install()
    os.rename(str(source), str(target))  # noqa: PTH104 - as scripts call it
    assert (target / "part" if is_folder else target).read_text() == "rows"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize(("error", "one_place"), [(errno.EXDEV, False), (errno.EACCES, True)])
def test_what_one_process_could_not_rename_stays_refused(tmp_path, refuse_once, error, one_place):
    source = tmp_path / "source"
    source.write_text("rows")
    refuse_once(error)
    CrossingRenames(lambda old, new: one_place).install()
    with pytest.raises(OSError, match="refused"):
        os.rename(source, tmp_path / "target")  # noqa: PTH104 - as scripts call it
    assert source.read_text() == "rows"


# Whether a script is written for Horovod follows from its imports, and not from a word in it.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import horovod.keras as hvd\n", True),
        ("def main():\n    from horovod import tensorflow\n", True),
        ("if __name__ == '__main__':\n    import horovod.keras\n", True),
        ("if arguments.horovod:\n    import horovod.keras\nelse:\n    import keras\n", False),
        ("import keras\n# was horovod\nname = 'horovod'\n", False),
        ("from .horovod import something\n", False),
        ("import horovod_like\n", False),
        ("this is no Python: import horovod\n", False),
    ],
)
def test_an_import_counts_and_a_word_does_not(tmp_path, text, expected):
    script = tmp_path / "train.py"
    script.write_text(text)
    assert imports_horovod(script) == expected


def test_a_file_beside_the_script_counts_if_it_is_imported(tmp_path):
    script = tmp_path / "train.py"
    (tmp_path / "ranks.py").write_text("import train\nimport horovod.tensorflow\n")
    script.write_text("import keras\n")
    assert not imports_horovod(script)
    script.write_text("from ranks import start\n")
    assert imports_horovod(script)
