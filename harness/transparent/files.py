"""Files are written by rank 0 only: what the others write below the working directory goes into a private folder."""

import atexit
import builtins
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from harness.base.hostlock import HeldFolder


@cache
def private_folder() -> Path:
    """Return this process's own folder, which is removed at its end; if it is killed, when a later rank starts here."""
    folder = HeldFolder(Path(tempfile.gettempdir()), "harness-rank-")
    atexit.register(folder.close)
    return folder.path


class PrivateFiles:
    """The writes of one rank that is not rank 0. What it has written it reads back; the rest it reads as it is."""

    def __init__(self, apart: Path) -> None:
        """Start with nothing written; files below the folder `apart` are every rank's own already."""
        self._apart = _full(apart)
        self._root = Path.cwd().resolve()
        self._private = private_folder()
        self._written: dict[Path, Path] = {}

    def install(self) -> None:
        """Replace `open` and the functions that make, rename and delete files."""
        opened = builtins.open
        builtins.open = io.open = self._opening(opened)
        os.mkdir = self._tolerant(os.mkdir)
        for name in ("remove", "unlink", "rmdir"):
            setattr(os, name, self._deleting(getattr(os, name)))
        for name in ("rename", "replace"):
            setattr(os, name, self._renaming(getattr(os, name)))
        shutil.rmtree = self._deleting(shutil.rmtree)  # type: ignore[assignment]

    def private(self, path: Any) -> Path | None:
        """Return where a file below the working directory is kept by this rank; None for any other file."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None  # a file descriptor
        full = _full(path)
        if (
            not full.is_relative_to(self._root)
            or full.is_relative_to(self._private)
            or full.is_relative_to(self._apart)
        ):
            return None
        return self._written.get(full) or self._private / full.relative_to(self._root)

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            private = self.private(file)
            if private is None:
                return original(file, mode, *args, **kwargs)
            full = _full(file)
            if set(mode) & set("wax+"):
                private.parent.mkdir(parents=True, exist_ok=True)
                if full not in self._written and set(mode) & set("a+") and full.exists():
                    shutil.copyfile(full, private)
                self._written[full] = private
            elif full not in self._written:
                return original(file, mode, *args, **kwargs)
            return original(private, mode, *args, **kwargs)

        return open

    def _tolerant(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(path, *args, **kwargs)
            except FileExistsError:
                if self.private(path) is None or not os.path.isdir(path):  # noqa: PTH112
                    raise  # otherwise rank 0 was faster

        return mkdir

    def _deleting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def delete(path: Any, *args: Any, **kwargs: Any) -> None:
            if self.private(path) is None and "dir_fd" not in kwargs:
                original(path, *args, **kwargs)
            elif isinstance(path, (str, bytes, os.PathLike)):
                self._written.pop(_full(path), None)

        return delete

    def _renaming(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def rename(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            if self.private(source) is None:
                original(source, target, *args, **kwargs)
                return
            full, new = (_full(path) for path in (source, target))
            if full in self._written:
                self._written[new] = self._written.pop(full)

        return rename


def _full(path: Any) -> Path:
    """Return the absolute path, links unresolved: a link and what it points to are deleted apart."""
    return Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 - resolve() would follow the link
