"""Where the script is, and which part of a traceback is its own."""

import contextlib
import runpy
import sys
import traceback
import types

import pytest

from harness.base.errors import UserError
from harness.readers.script_data import DataSet
from harness.transparent.patch import (
    ImportHook,
    OwnRows,
    Refusals,
    is_script,
    put_back,
    replace,
    with_script_traceback,
)
from harness.transparent.run_settings import RunSettings
from tests.labs.replacements import installed


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
    with installed(OwnRows(RunSettings(batch="global"))), pytest.raises(UserError):
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


def test_a_refusal_that_the_script_catches_ends_it_at_the_end():
    """As in a search whose trials may fail."""

    def train(rows):
        return rows

    def refuse(original, rows):
        if rows % 2:
            raise UserError("an odd number of rows cannot be divided")
        return original(rows)

    library = types.SimpleNamespace(__name__="library", train=train)
    put_back()
    replace(library, "train", ("rows",), refuse)
    assert library.train(2) == 2
    Refusals.check()
    with contextlib.suppress(Exception):
        library.train(3)
    assert library.train(4) == 4
    with pytest.raises(UserError):
        Refusals.check()
    put_back()
    Refusals.check()
