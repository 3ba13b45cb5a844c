"""What adding a figure takes, and what drawing a report loads."""

import subprocess
import sys
from pathlib import Path

import pytest

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"


@pytest.mark.slow  # Python, pandas and matplotlib start anew
def test_a_report_loads_nothing_that_launches(tmp_path: Path) -> None:
    program = (
        "import sys; from harness.cli import main\n"
        f"main(['report', {str(SWEEP)!r}, '--reports', {str(tmp_path)!r}], standalone_mode=False)\n"
        "print(*sorted(name for name in sys.modules), sep='\\n')"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    names = loaded.stdout.splitlines()
    assert "harness.report.sweep_answer" in names
    # Which schedulers there are and which settings jobs have, for an option's help.
    registry = {"harness.sweep", "harness.sweep.schedulers", "harness.sweep.site"}
    registry |= {f"harness.sweep.{name}" for name in ("scheduler_answers",)}
    launching = (
        "harness.sweep",
        "harness.doctor",
        "harness.probe.probe_runner",
        "harness.probe.measuring_ranks",
        "harness.comm",
    )
    heavy = ("harness.train", "harness.transparent", "harness.bench", "tensorflow", "keras", "mpi4py")
    assert [name for name in names if name.startswith((*launching, *heavy)) and name not in registry] == []
