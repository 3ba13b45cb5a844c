"""What ranks above 0 print goes into a file of their own."""

import os

import pytest

from harness.transparent.rank_output import rank_output


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
