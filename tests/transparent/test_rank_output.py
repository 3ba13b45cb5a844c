"""What ranks above 0 print goes into a file of their own."""

import os
import sys

import pytest

from harness.transparent.rank_output import OwnRate, rank_output


def test_a_rank_above_0_prints_into_its_file(tmp_path, capfd):
    """Also what exit handlers print; an error that ends the rank comes to the terminal."""
    with rank_output(2, tmp_path / "logs") as speak:
        os.write(1, b"to output\n")
        os.write(2, b"to errors\n")
    os.write(1, b"afterwards\n")
    speak()
    with pytest.raises(RuntimeError), rank_output(1, tmp_path / "logs"):
        raise RuntimeError
    os.write(1, b"of an error\n")
    assert (tmp_path / "logs" / "rank-2.log").read_text() == "to output\nto errors\nafterwards\n"
    assert capfd.readouterr().out == "of an error\n"


def test_rank_0_prints_to_the_terminal(tmp_path, capfd):
    with rank_output(0, tmp_path / "logs"):
        os.write(1, b"to output\n")
    assert capfd.readouterr().out == "to output\n"
    assert not (tmp_path / "logs").exists()


def test_a_rank_may_speak_earlier(tmp_path, capfd):
    with rank_output(1, tmp_path) as speak:
        os.write(1, b"in the file\n")
        speak()
        os.write(1, b"on the terminal\n")
    assert capfd.readouterr().out == "on the terminal\n"


# What a script prints of its own speed is read, and printed as before.


def test_the_last_number_that_a_script_prints_is_its_rate(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    rate = OwnRate("images/sec: ([0-9.,]+)")
    rate.install()
    print("images/sec: 7.5 +/- 0.0\nno rate here\nimages/", end="")
    print("sec: 1,250.5")
    print("images/sec: ,")
    assert rate.value == 1250.5
    assert capsys.readouterr().out.count("images/sec") == 3


@pytest.mark.parametrize("text", ["", "images/sec: 3", "samples/sec: 3\n"])
def test_a_line_without_an_end_or_the_pattern_is_no_rate(text):
    rate = OwnRate("images/sec: ([0-9]+)")
    rate.read(text)
    assert rate.value is None
