"""Caches of tests' own, in which the native operation is built already: compiling it takes half a minute."""

from pathlib import Path

from harness.base.files import cache_folder

_BUILT = cache_folder() / "native"  # found before any test has a cache of its own


def own_cache(folder: Path) -> str:
    """Make `folder` a cache without any data, and return its path."""
    _BUILT.mkdir(parents=True, exist_ok=True)
    cache = folder / "mpi-tf-harness"
    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / "native").exists():
        (cache / "native").symlink_to(_BUILT)
    return str(folder)
