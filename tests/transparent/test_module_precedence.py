"""A script's own package `harness` wins over this one."""

import subprocess
import sys
from pathlib import Path

from harness.transparent.module_precedence import PRIVATE, ROOT, has_own

START = ROOT / "transparent" / "start.py"


def test_a_package_of_the_scripts_own_is_told_from_the_harness_itself(tmp_path: Path) -> None:
    assert not has_own(tmp_path) and not has_own(ROOT.parent)
    (tmp_path / "harness").mkdir()
    assert not has_own(tmp_path)  # without __init__.py it gives way
    (tmp_path / "harness" / "__init__.py").touch()
    (tmp_path / "horovod.py").touch()
    assert has_own(tmp_path) and has_own(tmp_path, "horovod")


def test_ranks_of_such_a_script_have_the_harness_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "harness.py").touch()
    (tmp_path / "train.py").touch()
    program = f"""
import runpy, sys
sys.argv = ["start.py", "--help", "train.py"]
try: runpy.run_path({str(START)!r}, run_name="__main__")
except SystemExit: pass
top = {{name.partition(".")[0] for name in sys.modules}}
import {PRIVATE}.transparent.session as session
print("harness" in top, session.ChildProcesses.__module__)
"""
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.splitlines()[-1] == f"False {PRIVATE}.transparent.children"
