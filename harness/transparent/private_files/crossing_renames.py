"""Renames between mounts of a rank's own tree that one process would make within one file system: by a copy.

The kernel renames nothing from one mount to another, nor a folder below an overlay (EXDEV), and a rank's tree has more
mounts than the tree that everybody sees.
"""

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


class CrossingRenames:
    """Replaces `os.rename` and `os.replace`; `is_one_place` tells whether all of two folders is in one file system."""

    def __init__(self, is_one_place: Callable[[Path, Path], bool]) -> None:
        self._is_one_place = is_one_place

    def install(self) -> None:
        """Put the replacements in place, for child processes too."""
        for name in ("rename", "replace"):
            setattr(os, name, partial(self._rename, getattr(os, name)))

    def _rename(self, original: Callable[..., None], source: Any, target: Any, **folders: int | None) -> None:
        try:
            original(source, target, **folders)
        except OSError as error:
            if error.errno != errno.EXDEV or any(folder is not None for folder in folders.values()):
                raise
            old, new = (Path(os.path.abspath(os.fsdecode(path))) for path in (source, target))  # noqa: PTH100 - links
            if not self._is_one_place(old.parent, new.parent):
                raise
            _move(original, old, new)


def _move(rename: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    """Copy `source` beside `target`, put the copy in its place as the kernel allows it, and remove `source`."""
    copy = target.with_name(f".{target.name}.{os.getpid()}")
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, copy, symlinks=True)
    else:
        shutil.copy2(source, copy, follow_symlinks=False)
    try:
        rename(copy, target)
    except OSError:
        _remove(copy)
        raise
    _remove(source)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
