"""Look for original files where users put them: the data folder itself or its folder named like the set."""

from collections.abc import Iterable
from pathlib import Path


def first(folder: Path, name: str, candidates: Iterable[str]) -> Path | None:
    """Return the first of `candidates` (relative paths) that is a file in `folder`/`name` or `folder`, or None."""
    names = tuple(candidates)
    for base in (folder / name, folder):
        for candidate in names:
            if (base / candidate).is_file():
                return base / candidate
    return None


def packed(*names: str, suffixes: tuple[str, ...] = (".gz",)) -> tuple[str, ...]:
    """Return `names` and each of them with the suffixes of compressed files."""
    return tuple(name + suffix for name in names for suffix in ("", *suffixes))
