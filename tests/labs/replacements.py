"""Everything that a rank replaces in Keras and TensorFlow, as JSON: ``python -m tests.labs.replacements``.

A process of its own makes the replacements, as not all of them can be undone. No MPI is needed: nothing is exchanged.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.comm import grouped_sums
from harness.comm.hang import HangWatch
from harness.comm.world import World
from harness.transparent import patch
from harness.transparent.install import replace_all
from harness.transparent.run_settings import RunSettings
from harness.transparent.runtime import Runtime
from harness.transparent.witness import Alone, NoWitness


def describe(owner: Any) -> str:
    """Return the full name of a class or module, or of an object's class."""
    if not isinstance(owner, (type, ModuleType)):
        owner = type(owner)
    module = getattr(owner, "__module__", "")
    return f"{module}:{owner.__qualname__}" if module and hasattr(owner, "__qualname__") else str(owner.__name__)


@contextmanager
def installed(*parts: Any) -> Iterator[None]:
    """Have `parts` make their replacements in Keras and TensorFlow, and put all back at the end of the block."""
    try:
        for part in parts:
            part.install()
        yield
    finally:
        patch.put_back()


def replacements() -> list[tuple[str, str]]:
    """Make the replacements of a rank with one other rank; return owner and name of each."""
    grouped_sums.find_library = lambda: None  # type: ignore[assignment, return-value]  # it would load MPI
    settings = RunSettings(fuse="always")
    world = World(comm=Alone(), rank=0, size=2)  # type: ignore[arg-type]
    own_rows = patch.OwnRows(settings)
    own_rows.install()
    watch = HangWatch(world, Path(), 0.0)
    replace_all(Runtime.build(world, settings, watch, own_rows, NoWitness()))
    return [(describe(owner), name) for owner, name, _ in patch.originals]


if __name__ == "__main__":
    json.dump(replacements(), sys.stdout)
