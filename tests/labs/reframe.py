"""Checks run by ReFrame."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


SMALL = "--data-kind=synthetic,--samples=2000,--epochs=20,--repeats=1"


ADULT = "Scaling.*workload=adult.*ranks=2"


def reframe(folder: Path, *words: str, check: str = ADULT, environment: Mapping[str, str] = os.environ) -> str:
    """Run the `check` staged in `folder`, with further `words`; return what ReFrame says."""
    program = shutil.which("reframe")
    if program is None:
        pytest.skip("ReFrame is not installed (pip install reframe-hpc, best in an environment of its own)")
    harness = folder / "harness"
    harness.write_text(f'#!/bin/sh\nexec {sys.executable} -m harness "$@"\n')
    harness.chmod(0o755)
    command = [program, "-c", str(ROOT / "jobs/reframe"), "--prefix", str(folder), "-r", "--exec-policy=serial"]
    command += ["--nocolor", "-n", check, "-S", f"executable={harness}", *words]
    searched = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    made = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": searched},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    said = made.stdout + made.stderr
    assert (made.returncode == 0) == ("[  PASSED  ]" in said), said
    if "exit code 3" in said or re.search("sanity error: .* times not valid: ", said):
        pytest.skip("no valid times: the machine was busy")
    return said


def performance(said: str) -> dict[str, float]:
    """Return the performance variables that ReFrame prints."""
    return {name: float(value) for name, value in re.findall(r"P: (\w+): ([\d.]+) ", said)}
