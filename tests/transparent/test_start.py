"""The file that starts a rank finds the script's folder among the words of the command."""

import sys
from pathlib import Path

from harness.transparent.start import _script_folder


def test_the_scripts_folder_is_that_of_the_first_python_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["start.py", "--threads", "2", str(tmp_path / "train.py"), "other/data.py"])
    assert _script_folder() == tmp_path


def test_without_a_script_it_is_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["start.py"])
    assert _script_folder() == Path.cwd()
