"""What a script prints and writes: taken note of in one process, and compared with another's."""

import math
import os
import sys
import tempfile
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from harness.base.files import write_atomic
from harness.transparent.private_files.crossing_renames import CrossingRenames
from harness.transparent.witness.written_outputs import NAMES, Written, WrittenOutputs, written_gaps


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    """Return outputs that hear of files; what hears of them stays with Python until the process ends."""
    outputs = WrittenOutputs([tmp_path_factory.getbasetemp()])
    standard = sys.stdout
    sys.stdout = SimpleNamespace(write=lambda text: len(text))
    outputs.install()
    sys.stdout = standard
    yield outputs
    outputs.pause()


@pytest.fixture
def outputs(heard):
    heard.pause()
    heard.go_on()
    return heard


def text_gaps(ours, theirs, share=1e-2):
    first, second = ({"a text": Written(lines=tuple(text.splitlines()))} for text in (ours, theirs))
    return written_gaps(first, second, share=share)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("seen 16", "seen 32"),
        ("rate 0.02", "rate 0.004"),
        ("loss 0.5172", "loss 0.5721"),
        ("loss nan", "loss 0.5"),
        ("(16, 10)", "(32, 10)"),
        ("one line", "one line\nand another"),
        ("kept", "not kept"),
        ("0.0009", "0.0004"),
    ],
)
def test_other_texts_are_found(ours, theirs):
    (gap,) = text_gaps(ours, theirs)
    assert gap.source == "a text"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("loss 0.5172", "loss 0.5173"),
        ("accuracy 0.57", "accuracy 0.58"),
        ("mean 1.2e-05", "mean -3.0e-05"),
        ("  9.99 s", " 10.00 s"),
        ("<SGD object at 0x7f00aa>", "<SGD object at 0x7f11bb>"),
        ("nan inf", "nan inf"),
    ],
)
def test_rounding_and_addresses_are_no_other_text(ours, theirs):
    assert not text_gaps(ours, theirs)


def test_other_words_are_infinitely_far_apart_and_numbers_as_far_as_they_are():
    (words,), (numbers,) = text_gaps("a", "b"), text_gaps("1.00", "1.04")
    assert math.isinf(words.excess)
    assert 1.0 < numbers.excess < 4.0
    assert text_gaps("1.00", "1.04", share=5e-2) == []


def test_a_text_that_goes_on_is_compared_as_far_as_both_have_it():
    long, short = Written(lines=("1", "2"), goes_on=True), Written(lines=("1",))
    assert not written_gaps({"a file": long}, {"a file": short})
    assert written_gaps({"a file": long}, {"a file": Written(lines=("3",))})


def test_the_scripts_own_prints_are_noted_by_line_from_the_first_step_on(monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=printed.append))
    monkeypatch.setattr(sys, "addaudithook", lambda hook: None)
    outputs = WrittenOutputs()
    outputs.install()
    sys.stdout.write("before")
    outputs.go_on()
    for number in (1, 2):
        sys.stdout.write(f"{number}\n")
    threading.Thread(target=lambda: sys.stdout.write("of a thread")).start()
    exec(compile("import sys; sys.stdout.write('of a package')", "/lib/site-packages/one.py", "exec"))
    (written,) = outputs.observe().values()
    assert written.lines == ("1", "2")
    assert not outputs.observe()
    outputs.pause()
    sys.stdout.write("between two trainings")
    assert not outputs.observe()
    assert printed == ["before", "1\n", "2\n", "of a thread", "of a package", "between two trainings"]


def test_files_are_read_when_they_are_written_and_named_always(outputs, tmp_path):
    (tmp_path / "log.csv").write_text("loss\n0.5\n")
    np.savez(tmp_path / "curve.npz", losses=np.array([3.0, 4.0]))
    np.save(tmp_path / "words.npy", np.array(["one", "two"]))
    (tmp_path / "model.bin").write_bytes(b"\0\1\2")
    written = outputs.observe()
    assert written["the file 'log.csv'"].lines == ("loss", "0.5")
    ((name, measured),) = written["the file 'curve.npz'"].arrays.items()
    assert name.startswith("losses")
    assert measured[0] == 5.0
    assert written["the file 'model.bin'"].lines == ()
    names = [os.path.basename(name) for name in written[NAMES].lines]  # noqa: PTH119 - names alone
    assert names == ["curve.npz", "log.csv", "model.bin", "words.npy"]
    assert [*outputs.observe()] == [NAMES]


def test_what_was_in_a_file_before_is_not_the_scripts(outputs, tmp_path):
    outputs.pause()
    (tmp_path / "log.txt").write_text("an earlier run\n")
    outputs.go_on()
    for line in ("first\n", "second\n"):
        with (tmp_path / "log.txt").open("a") as file:
            file.write(line)
    assert outputs.observe()["the file 'log.txt'"].lines == ("first", "second")


def test_what_the_harness_writes_is_not_the_scripts(outputs, tmp_path):
    write_atomic(tmp_path / "long-0", "waiting")
    assert not outputs.observe()


def test_caches_hidden_folders_and_files_elsewhere_are_not_results(outputs, tmp_path):
    for folder in (".cache", "__pycache__"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "made").write_text("once\n")
    (tmp_path / "new").write_text("moved\n")
    (tmp_path / "new").replace(tmp_path / ".cache" / "moved")
    with open(os.devnull, "w") as nothing:  # noqa: PTH123 - as scripts do
        nothing.write("1\n")
    assert [name for name in outputs.observe() if "made" in name or "moved" in name] == []


def test_a_file_from_before_the_first_step_has_its_text_compared_and_not_its_name(tmp_path, monkeypatch):
    hooks = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=len))
    monkeypatch.setattr(sys, "addaudithook", hooks.append)
    outputs = WrittenOutputs([tmp_path])
    outputs.install()
    hooks[0]("open", (str(tmp_path / "log"), "w", os.O_WRONLY | os.O_TRUNC))
    (tmp_path / "log").write_text("0.51\n")
    written = outputs.observe()
    assert written == {"the file 'log'": Written(lines=("0.51",))}
    assert not written_gaps(written, {})
    assert written_gaps(written, {"the file 'log'": Written(lines=("0.66",))})


def test_a_file_that_is_open_still_is_read_to_its_last_line(outputs, tmp_path):
    with (tmp_path / "log.txt").open("w") as file:
        file.write("first\nsec")
        file.flush()
        written = outputs.observe()["the file 'log.txt'"]
        assert (written.lines, written.goes_on) == (("first",), True)
        file.write("ond\n")
    written = outputs.observe()["the file 'log.txt'"]
    assert (written.lines, written.goes_on) == (("first", "second"), False)


def test_a_file_that_takes_the_place_of_another_has_that_name_and_temporary_ones_have_none(outputs, tmp_path):
    (tmp_path / "log.new").write_text("1\n")
    (tmp_path / "log.new").replace(tmp_path / "log")
    with tempfile.NamedTemporaryFile("w", dir=tmp_path) as file:
        file.write("2\n")
    with tempfile.NamedTemporaryFile("w", dir=tmp_path, delete=False) as file:
        file.write("3\n")
    os.replace(file.name, tmp_path / "best")  # noqa: PTH105 - as scripts call it
    written = outputs.observe()
    assert [*written] == ["the file 'best'", "the file 'log'", NAMES]
    assert (written["the file 'log'"].lines, written["the file 'best'"].lines) == (("1",), ("3",))


def test_a_rename_counts_where_it_is_replaced_as_in_a_tree_of_its_own(outputs, tmp_path, monkeypatch):
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, getattr(os, name))  # put back at the end
    CrossingRenames(lambda *_: True).install()
    (tmp_path / "log.new").write_text("1\n")
    os.replace(tmp_path / "log.new", tmp_path / "log")  # noqa: PTH105 - as scripts call it
    assert [*outputs.observe()] == ["the file 'log'", NAMES]
    write_atomic(tmp_path / "ours", "1\n")
    assert "the file 'ours'" not in outputs.observe()


def test_other_names_of_files_are_found():
    first, second = ({NAMES: Written(lines=lines)} for lines in (("/run/a", "/run/b"), ("/run/a",)))
    (gap,) = written_gaps(first, second)
    assert gap.values[0] == "b"
    assert math.isinf(gap.excess)


def test_arrays_are_compared_by_length_and_direction():
    def gaps(ours, theirs):
        first, second = ({"a file": Written(arrays={"x": np.float64(values)})} for values in (ours, theirs))
        return written_gaps(first, second)

    assert not gaps([5.0, 1.0], [5.01, 1.02])
    assert gaps([5.0, 1.0], [5.0, 1.2])
    assert gaps([5.0, np.nan], [5.0, 1.0])
    assert not gaps([5.0, np.nan], [5.0, np.nan])
