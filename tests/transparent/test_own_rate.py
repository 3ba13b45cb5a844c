"""What a script prints of its own speed is read, and printed as before."""

import sys

import pytest

from harness.transparent.own_rate import OwnRate


def test_the_last_number_that_a_script_prints_is_its_rate(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    rate = OwnRate("images/sec: ([0-9.,]+)")
    rate.install()
    print("images/sec: 7.5 +/- 0.0\nno rate here\nimages/", end="")
    print("sec: 1,250.5")
    print("images/sec: ,")
    assert rate.value == 1250.5
    assert capsys.readouterr().out.count("images/sec") == 3


@pytest.mark.parametrize("text", ["", "images/sec: 3", "rows/sec: 3\n"])
def test_a_line_without_an_end_or_the_pattern_is_no_rate(text):
    rate = OwnRate("images/sec: ([0-9]+)")
    rate.read(text)
    assert rate.value is None
