"""Where a command reads and writes, and how it speaks meanwhile: handed on whole, not as five parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """The folders of a command: `results` (records), `reports` (pages), `baselines` and `data_dir` (original files).

    `data_dir` is None for the default folder of data sets. `say` shows a line of progress to the user.
    """

    results: Path = Path("results")
    reports: Path = Path("reports")
    baselines: Path = Path("results/baselines")
    data_dir: Path | None = None
    say: Callable[[str], None] = print
