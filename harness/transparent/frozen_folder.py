"""A copy of a folder as it is when a launch begins, for ranks that are not to see what rank 0 changes in it.

An overlay alone shows through what rank 0 writes meanwhile: a file half written, a folder that the rank wants to make
itself, rows in a database. So names are copied, and contents up to some size. What is larger, hidden or deep stays a
view of the live folder.
"""

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Collection
from pathlib import Path

_ENTRIES = 5_000
_FILE_BYTES = 4 * 2**20
_DEEP_BYTES = 64 * 2**20
_SHALLOW_BYTES = 16 * 2**20
_LIVE_FOLDERS = 400


class TooLargeError(Exception):
    """A folder has more entries than a launch can copy at its start."""


class FrozenFolder:
    """The copy of `folder` in `copy`.

    `live` is a path at which the live folder will be seen: in the place of large files are links to those there.
    `places`: folders of which the copy needs but the name, as something will be mounted there. Names at most `levels`
    folders below are copied. `live_folders` are those that are to be seen live, relative to `folder`.

    Raises:
        TooLargeError: `folder` itself has too many entries.
        OSError: it cannot be read, or there is no room for the copy.
    """

    def __init__(self, folder: Path, copy: Path, live: Path, *, places: Collection[Path], levels: int) -> None:
        self.folder = folder
        self.copy = copy
        self._live = live
        self._places = places
        self._entries_left = _ENTRIES
        self._bytes_left = _DEEP_BYTES if levels else _SHALLOW_BYTES
        self.live_folders: list[Path] = []
        self._copy_all(levels)

    def _copy_all(self, levels: int) -> None:
        """Copy the names level by level, so that what is deepest is left out first."""
        os.makedirs(self.copy, exist_ok=True)  # noqa: PTH103
        _copy_properties(self.folder, self.copy)
        waiting = deque([(Path(), levels)])
        while waiting:
            relative, levels_left = waiting.popleft()
            try:
                with os.scandir(self.folder / relative) as scanned:
                    entries = list(scanned)
            except (PermissionError, FileNotFoundError):
                self._show_live(relative)
                continue
            if len(entries) > self._entries_left:
                self._show_live(relative)
                continue
            self._entries_left -= len(entries)
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # somebody has removed it meanwhile
                    if self._copy_entry(entry, relative / entry.name, levels_left):
                        waiting.append((relative / entry.name, levels_left - 1))

    def _show_live(self, relative: Path) -> None:
        self.live_folders.append(relative)
        if relative == Path() or len(self.live_folders) > _LIVE_FOLDERS:
            raise TooLargeError(str(self.folder))

    def _copy_entry(self, entry: "os.DirEntry[str]", relative: Path, levels_left: int) -> bool:
        """Copy an entry; return whether it is a folder whose own entries are to be copied."""
        target = self.copy / relative
        if entry.is_symlink():
            target.symlink_to(Path(entry.path).readlink())
            return False
        if entry.is_dir():
            target.mkdir()
            _copy_properties(Path(entry.path), target)
            if Path(entry.path) in self._places:
                return False
            is_copied = levels_left > 0 and not entry.name.startswith(".")
            if is_copied and not os.path.ismount(entry.path):
                return True
            self._show_live(relative)
            return False
        self._copy_file(entry, target, relative)
        return False

    def _copy_file(self, entry: "os.DirEntry[str]", target: Path, relative: Path) -> None:
        size = entry.stat().st_size
        if entry.is_file() and size <= min(_FILE_BYTES, self._bytes_left) and os.access(entry.path, os.R_OK):
            self._bytes_left -= size
            shutil.copy2(entry.path, target)
            _copy_properties(Path(entry.path), target)
        else:
            target.symlink_to(self._live / relative)


def _copy_properties(source: Path, target: Path) -> None:
    """Give `target` the owner, mode and times of `source`, as far as this user may."""
    state = source.stat()
    with contextlib.suppress(OSError):
        os.chown(target, state.st_uid, state.st_gid)
    with contextlib.suppress(OSError):
        shutil.copystat(source, target)
