"""Where the script is, and which part of a traceback is its own."""

import array
import contextlib
import multiprocessing.pool
import runpy
import sys
import traceback
import types

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.readers.script_data import DataSet
from harness.transparent.patch import (
    BufferSlot,
    ImportHook,
    OwnRows,
    Refusals,
    Refused,
    is_script,
    put_back,
    replace,
    with_script_traceback,
)
from harness.transparent.run_settings import RunSettings
from tests.labs.replacements import installed
from tests.labs.sentences import says


def test_a_traceback_begins_in_the_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def fail():\n    return [][1]\n\n\nfail()\n")
    with pytest.raises(IndexError) as caught:
        runpy.run_path(str(script), run_name="__main__")
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[0].filename != str(script)
    error = caught.value.with_traceback(caught.value.__traceback__.tb_next)  # without this test's own frame
    shown = traceback.extract_tb(with_script_traceback(error).__traceback__)
    assert [(frame.filename, frame.lineno) for frame in shown] == [(str(script), 5), (str(script), 2)]


def test_the_room_and_installed_packages_are_not_the_script():
    assert not is_script(with_script_traceback.__code__.co_filename)
    assert not is_script(pytest.__file__)
    assert is_script("/home/user/train.py")


def test_rows_of_a_ranks_own_have_a_batch_of_its_own(monkeypatch):
    made = []
    monkeypatch.setattr(DataSet, "__init__", lambda self, data_name: made.append(data_name))
    rows = OwnRows(RunSettings(batch="per-rank"))
    with installed(rows):
        DataSet("data")
    assert rows.present
    assert made == ["data"]
    with installed(OwnRows(RunSettings(batch="global"))), pytest.raises(Refused):
        DataSet("data")
    assert made == ["data"]


def test_an_import_that_fails_once_and_is_tried_again_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "sometimes_there.py").write_text(
        "import os\nif 'WORKS' not in os.environ:\n    raise ImportError('not yet')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("WORKS", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    acted = []
    ImportHook(lambda: acted.append(True), ("sometimes_there",)).install()
    with pytest.raises(ImportError):
        import sometimes_there
    assert not acted
    monkeypatch.setenv("WORKS", "1")
    import sometimes_there  # noqa: F401

    assert acted == [True]
    monkeypatch.delitem(sys.modules, "sometimes_there")


# A refusal ends the script whatever it does then.


@pytest.fixture
def library():
    """A library whose function `train` is replaced: it is refused an odd number, and fails by itself at 100."""

    def scaled(rows):
        if rows == 100:
            raise ValueError("the library's own")
        return rows

    def train(original, rows):
        if rows % 2:
            raise UserError("an odd number of rows cannot be divided")
        if rows == 50:
            return [][rows]
        return original(rows)

    library = types.SimpleNamespace(__name__="library", train=scaled)
    put_back()
    # As if the code of both were installed: of a replacement, and of what it replaces.
    for function in (scaled, train):
        function.__code__ = function.__code__.replace(co_filename="/usr/lib/site-packages/library.py")
    replace(library, "train", ("rows",), train)
    yield library
    put_back()
    Refusals.check()


def test_no_trial_that_may_fail_takes_a_refusal_for_its_failure(library):
    """As in a search whose trials may fail."""
    with pytest.raises(Refused) as caught, contextlib.suppress(Exception):
        library.train(3)
    assert isinstance(caught.value.error, UserError)


def test_a_script_that_catches_everything_trains_no_more(library):
    assert library.train(2) == 2
    Refusals.check()
    for rows in (3, 4):
        with pytest.raises(Refused) as caught:
            library.train(rows)
        assert "odd" in str(caught.value)
    with pytest.raises(Refused):
        Refusals.check()


def test_what_ends_a_block_is_done_before_a_refusal_ends_the_script(library):
    ended = []

    def rows():
        try:
            yield 3
        finally:
            ended.append("generator")

    @contextlib.contextmanager
    def session():
        try:
            yield
        finally:
            ended.append("session")

    with pytest.raises(Refused), session():
        for count in rows():
            library.train(count)
    assert "session" in ended


def test_a_pool_of_threads_passes_a_refusal_on_and_does_not_wait_for_ever(library):
    with multiprocessing.pool.ThreadPool(1) as pool:
        for rows in (3, 4):
            with pytest.raises(UserError, match="odd"):
                pool.apply_async(library.train, (rows,)).get(timeout=60)
    with pytest.raises(Refused):
        library.train(2)


def test_a_failure_of_a_replacement_is_a_refusal_with_its_place_and_one_of_the_library_is_its_own(library):
    with pytest.raises(IndexError):
        library.train(50)
    Refusals.on_ranks = True
    with pytest.raises(ValueError, match="own"):
        library.train(100)
    Refusals.check()
    with pytest.raises(Refused) as caught:
        library.train(50)
    says(caught.value, "test_patch.py, line", "IndexError")


def test_an_import_hook_refuses_so_that_no_script_takes_the_package_for_a_missing_one(monkeypatch):
    def refuse():
        raise UserError("KERAS_BACKEND=jax cannot run on ranks")

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with pytest.raises(Refused):
        ImportHook(refuse, ("sys",)).install()
    put_back()


class Numbers(array.array):
    def __array__(self, dtype=None, copy=None):
        return np.array([7.0])


@pytest.mark.parametrize("owner", [bytes, bytearray, memoryview, array.array, np.ndarray])
def test_types_with_memory_have_a_function(owner):
    assert BufferSlot(owner).function


@pytest.mark.parametrize("owner", [int, dict, type("Plain", (), {})])
def test_types_without_memory_have_none(owner):
    assert BufferSlot(owner).function is None


def test_without_it_numpy_asks_the_object_and_with_it_again_no_more():
    slot = BufferSlot(Numbers)
    function = slot.function
    numbers = Numbers("d", [1.0, 2.0])
    slot.function = None
    asked = np.asarray(numbers)
    slot.function = function
    assert asked.tolist() == [7.0]
    assert np.asarray(numbers).tolist() == [1.0, 2.0]
