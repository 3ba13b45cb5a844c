"""Small scripts in the style of public tutorials, made of templates: what each prints alone, it prints on ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from string import Template


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """One script. `rtol`: how far its numbers may part on ranks (rounding, or random layers that differ by design).

    `refused`: part of the sentence that ends it before anything wrong is trained; empty for a script that runs. `told`:
    part of the sentence that says that what it computes by hand is of one rank's rows. `threads` of each rank.
    `forks`: its children use TensorFlow, so it must not be imported before they are forked.
    """

    name: str
    source: str
    rtol: float = 2e-3
    refused: str = ""
    told: str = ""
    threads: int = 1
    forks: bool = False


_ROOMS = (
    "children",
    "devices",
    "drawn",
    "fit",
    "habits",
    "loops",
    "mixing",
    "observed",
    "sessions",
    "surroundings",
    "trainings",
    "traps",
    "updates",
)


def scripts() -> dict[str, Script]:
    """Return all scripts by name."""
    rooms = [import_module(f"{__name__}.{name}") for name in _ROOMS]
    found = [script for room in rooms for script in room.SCRIPTS]
    assert len({script.name for script in found}) == len(found)
    return {script.name: script for script in found}


def joined(chosen: Sequence[Script]) -> Script:
    """Return one script that does what those of `chosen` do one after the other, each after a line with its name."""
    graphs = "import tensorflow\ntensorflow.compat.v1.reset_default_graph()\n"
    parts = []
    for script in chosen:
        fresh = graphs if "disable_v2_behavior" in script.source else ""
        parts.append(f"print('SCRIPT {script.name}', flush=True)\n{fresh}{script.source}\n")
    threads = max(script.threads for script in chosen)
    return Script(name="-and-".join(script.name for script in chosen), source="".join(parts), threads=threads)


def programs(count: int) -> dict[str, Script]:
    """Return the random programs of nested functions of the seeds below `count`, by name."""
    source = Path(__file__).parents[1].joinpath("nested_programs.py").read_text()
    chosen = [
        Script(name=f"program-{seed:03}", source=f"import sys\nsys.argv[1:] = ['{seed}', '1']\n{source}", threads=2)
        for seed in range(count)
    ]
    return {script.name: script for script in chosen}


def fill(template: str, **parts: str) -> str:
    """Return `template` with its $names filled in."""
    return Template(template).substitute(parts)


HEAD = """
import json
import numpy as np
import tensorflow as tf
keras = tf.keras
keras.utils.set_random_seed(1)
rng = np.random.RandomState(0)
x = rng.randn(300, 12).astype('float32')
w = rng.randn(12, 3)
c = (x @ w).argmax(1).astype('int32')
b = (x[:, :1] + 0.3 * rng.randn(300, 1) > 0).astype('float32')
r = (x @ w[:, :1] * 0.3).astype('float32')
def report(**numbers):
    plain = lambda v: v.tolist() if hasattr(v, 'tolist') else float(v) if hasattr(v, 'numpy') else v
    print('RESULT', json.dumps({k: [plain(i) for i in v] if isinstance(v, (list, tuple)) else plain(v) for k, v in numbers.items()}))
"""
