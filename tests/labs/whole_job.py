"""The harness called as a user calls it."""

import os
import subprocess
from pathlib import Path

from tests.labs.caches import own_cache
from tests.mpi.launch import warm_python

ROOT = Path(__file__).parents[2]


LIMIT_S = 500


UNSAVED = b'<svg viewBox="0 0 1 1"></svg>'  # in the place of figures' files, most of a page's time


def harness(folder: Path, *words: object, python: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`, as a user does; `python` is `warm_python` if not given."""
    environment = {"PYTHONPATH": str(ROOT), "HARNESS_CACHE_DIR": own_cache(folder / "cache")}
    command = [python or warm_python(), "-m", "harness", *map(str, words)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, env=os.environ | environment, check=False
    )
