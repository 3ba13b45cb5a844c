"""Files that are compared with those of tests/golden."""

import difflib
import os
from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "golden"


ACCEPT = "HARNESS_ACCEPT_GOLDEN"


def compare_golden(script: str, golden: Path) -> None:
    if os.environ.get(ACCEPT):
        golden.write_text(script)
    expected = golden.read_text() if golden.exists() else ""
    difference = "".join(difflib.unified_diff(expected.splitlines(True), script.splitlines(True), str(golden), "now"))
    fix = f"if this is what the script should be: {ACCEPT}=1 before the test's command"
    assert not difference, f"{difference}\n{fix}"
