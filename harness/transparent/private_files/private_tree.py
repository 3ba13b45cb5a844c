"""A view of the file system of one process and its children: what it writes, nobody else sees.

In a mount namespace of its own, an overlay lies on every folder that can be written to and has nothing mounted below;
what is written goes into the process's scratch folder. Then every mount that everybody sees is made read-only, so that
nothing real is written where no overlay could lie. Folders in which a script usually writes are copied first
(`private_tree`), so that what rank 0 changes meanwhile does not show. /dev, /proc, /sys and the shared folders stay
what they are.
"""

import contextlib
import errno
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from harness.base import mounts
from harness.base.mounts import MountPoint
from harness.base.removal import remove_scratch
from harness.base.scratch import RANK_PREFIX, HeldFolder

# A copy of a folder as it is when a launch begins, for ranks that are not to see what rank 0 changes in it.
#
# An overlay alone shows through what rank 0 writes meanwhile: a file half written, a folder that the rank wants to
# make itself, rows in a database. So names are copied, and contents up to some size. What is larger, hidden or deep
# stays a view of the live folder.

ENTRIES = 5_000
FILE_BYTES = 4 * 2**20
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
        self.live = live
        self._places = places
        self._entries_left = ENTRIES
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
        if entry.is_file() and size <= min(FILE_BYTES, self._bytes_left) and os.access(entry.path, os.R_OK):
            self._bytes_left -= size
            shutil.copy2(entry.path, target)
            _copy_properties(Path(entry.path), target)
        else:
            target.symlink_to(self.live / relative)


def _copy_properties(source: Path, target: Path) -> None:
    """Give `target` the owner, mode and times of `source`, as far as this user may."""
    state = source.stat()
    with contextlib.suppress(OSError):
        os.chown(target, state.st_uid, state.st_gid)
    with contextlib.suppress(OSError):
        shutil.copystat(source, target)


KEPT_PREFIX = "harness-kept-"
_SHARED = tuple(map(Path, ("/proc", "/sys", "/dev")))
_NOT_OVERLAID = (*_SHARED, *map(Path, ("/lost+found", "/boot")))
_RUN = Path("/run")  # of the system's services, whose sockets are reached on a mount that is read-only
_VIRTUAL = frozenset(("autofs", "cgroup", "cgroup2", "devpts", "devtmpfs", "nsfs", "proc", "sysfs"))
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_DEEP = 8  # levels of folders
PLAIN_PYTHON = "HARNESS_PLAIN_PYTHON"
"""Environment variable: the Python that starts anew what one of `harness.sweep.fork_server` would have forked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreePlaces:
    """Which folders are more than overlaid: absolute paths, links resolved.

    `deep` and `shallow` folders are copied as they are, with what is below them or the names in them only. `shared`
    ones stay the real ones. Overlays lie on what is below `top`.
    """

    deep: Sequence[Path] = ()
    shallow: Sequence[Path] = ()
    shared: Sequence[Path] = ()
    top: Path = Path("/")

    def frozen(self) -> dict[Path, int]:
        """Return the folders to copy, outermost first, and how many levels of each."""
        levels = dict.fromkeys(self.shallow, 0) | dict.fromkeys(self.deep, _DEEP)
        outermost_first = sorted(levels, key=lambda folder: len(folder.parts))
        return {folder: levels[folder] for folder in outermost_first if folder.is_dir() and folder != Path("/")}


class RankScratch:
    """The folder of a process's own files on local disk, made at once, and removed when the process ends in any way.

    What removes it sees what everybody sees: nothing is mounted there.

    Raises:
        OSError: there is no room for it in the temporary folder.
    """

    def __init__(self) -> None:
        place = Path(tempfile.gettempdir()).resolve()
        self._folder = HeldFolder(place, RANK_PREFIX)
        self.path = self._folder.path
        self._outside = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        reading, self._lifeline = os.pipe()
        child = os.fork()
        if child == 0:
            self._watch(reading)
        os.close(reading)
        os.waitpid(child, 0)

    def _watch(self, reading: int) -> NoReturn:
        """Be no child of the process, which may wait for all of its own, and remove the folder at its end.

        In the tree of another rank nothing is removed: that goes with the tree.
        """
        try:
            os.setsid()
            if os.fork() == 0:
                _close_all_but(reading, self._outside)
                if not os.read(reading, 1) and not mounts.is_private():
                    remove_scratch(self.path.name, self._outside)
        finally:
            os._exit(0)

    def keep(self, name: str) -> None:
        """Have the folder outlast the process, under a name that says so; raise an OSError where that fails."""
        os.write(self._lifeline, b"k")
        target = f"{KEPT_PREFIX}{name}-{self.path.name.removeprefix(RANK_PREFIX)}"
        os.rename(self.path.name, target, src_dir_fd=self._outside, dst_dir_fd=self._outside)
        self.path = self.path.with_name(target)

    def close(self) -> None:
        """Have the folder removed now."""
        os.close(self._lifeline)


class PrivateTree:
    """The tree of this process: it sees what everybody sees until `show`.

    It is to be made while the process has one thread: a user namespace needs that. `scratch` has its own files.

    Raises:
        OSError: the kernel, or the container, does not allow it.
    """

    def __init__(self) -> None:
        self._scratch = RankScratch()
        self.unfrozen: list[Path] = []  # folders that have too many entries to be copied
        self.read_only: list[Path] = []  # folders that are the real ones, in which this process can write nothing
        self.is_in_memory = False  # what is written outside of copied folders
        self._real_points: list[MountPoint] = []
        self._mounted: list[Path] = []
        self._made_read_only: list[MountPoint] = []
        try:
            self.in_user_namespace = mounts.enter_namespace()
        except OSError:
            self._scratch.close()
            raise

    @property
    def scratch(self) -> Path:
        """The folder of this process's own files, by its path outside."""
        return self._scratch.path

    def show(self, places: TreePlaces, *, keep: str = "") -> None:
        """See the tree from now on. Where it has a name to `keep` them by, its files outlast this process.

        Raises:
            OSError: the kernel does not allow it; then this process sees what everybody sees.
        """
        self._places = places
        here = Path.cwd()
        try:
            if keep:
                self._scratch.keep(keep)
            self._mount_all()
        except OSError:
            self.leave()
            raise
        finally:
            os.chdir(here)  # what was open before, the working directory too, is outside
        sys.executable = os.environ.get(PLAIN_PYTHON, sys.executable)

    def is_one_place(self, first: Path, second: Path) -> bool:
        """Tell whether two folders are in the same mount for everybody outside."""
        places = [_mount_of(folder.resolve(), self._real_points) for folder in (first, second)]
        return places[0].path == places[1].path

    def leave(self) -> None:
        """See what everybody sees again, what was written meanwhile apart."""
        here = Path.cwd()
        while self._mounted:
            with contextlib.suppress(OSError):
                mounts.detach(self._mounted.pop())
        while self._made_read_only:
            point = self._made_read_only.pop()
            mounts.set_read_only(point.path, point, read_only=False)
        os.chdir(here)

    def _mount_all(self) -> None:
        self._real_points = mounts.mount_points()
        upper_place = self.scratch
        if not self._takes_overlays(upper_place):
            self.is_in_memory = True
            upper_place = self.scratch / "memory"
            upper_place.mkdir()
            self._mount_memory(upper_place)
            if not self._takes_overlays(upper_place):
                raise OSError("the kernel allows no overlays")
        folders = list(overlaid_folders(self._places.top, self._real_points))
        frozen_folders = self._freeze()
        with contextlib.ExitStack() as stack:
            outside = stack.enter_context(mounts.opened(upper_place))
            copies = {frozen: self._stage(frozen.copy, stack) for frozen in frozen_folders}
            shared = {}
            for folder in self._shared_folders():
                with contextlib.suppress(FileNotFoundError):  # somebody has removed it meanwhile
                    shared[folder] = self._stage(folder, stack)
            sockets = {}
            for path in self._sockets():
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    sockets[path] = stack.enter_context(mounts.opened(path))
            real_roots = self._open_real_mounts(stack)
            overlaid = [folder for number, folder in enumerate(folders) if self._overlay(folder, outside, number)]
            for point, root in real_roots:
                self._make_read_only(point, root)
            self.read_only += [folder for folder in self.unfrozen if not _is_below_any(folder, overlaid)]
            views = {frozen: stack.enter_context(mounts.opened(frozen.folder)) for frozen in frozen_folders}
            self._mount_memory(self.scratch)  # over what is not to be seen through the overlay
            for frozen in frozen_folders:
                frozen.live.mkdir(parents=True)
                self._bind(views[frozen], frozen.live)
            live_views = stack.enter_context(mounts.opened(self.scratch))
            for frozen in frozen_folders:
                self._show_copy(frozen, copies[frozen], views[frozen])
            if any(self.scratch.is_relative_to(frozen.folder) for frozen in frozen_folders):
                self._bind(live_views, self.scratch)  # the copy that is shown last has a name for it
            for place, real in (sockets | shared).items():
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # somebody has removed it meanwhile
                    self._bind(real, place)

    def _make_read_only(self, point: MountPoint, root: Path) -> None:
        """Let nothing be written through a mount, unless the host has taken it away meanwhile."""
        try:
            mounts.set_read_only(root, point, read_only=True)
        except OSError:
            if any(there.number == point.number for there in mounts.mount_points()):
                raise
            return
        self._made_read_only.append(point)

    def _stage(self, folder: Path, stack: contextlib.ExitStack) -> Path:
        """Return a name for `folder` by a mount of its own, which stays writable when that of everybody does not."""
        stage = self.scratch / "staged" / str(len(self._mounted))
        stage.mkdir(parents=True)
        self._bind(folder, stage)
        return stack.enter_context(mounts.opened(stage))

    def _open_real_mounts(self, stack: contextlib.ExitStack) -> list[tuple[MountPoint, Path]]:
        """Return the mounts of files that this process could write to, each with a name for its root."""
        roots = []
        for point in self._real_points:
            if point.read_only or point.kind in _VIRTUAL or _is_below_any(point.path, _SHARED):
                continue
            try:
                root = os.open(point.path, os.O_PATH)
            except OSError:  # it is hidden by another mount, or from this user
                continue
            stack.callback(os.close, root)
            if mounts.mount_number(root) == point.number:  # otherwise another mount lies on it
                roots.append((point, Path(f"/proc/self/fd/{root}")))
        return roots

    def _takes_overlays(self, place: Path) -> bool:
        """Tell whether an overlay can keep its files in the folder `place`."""
        lower, upper, target = (place / "probe" / name for name in ("lower", "upper", "target"))
        work = place / "work" / "probe"
        for folder in (lower, upper, target, work):
            folder.mkdir(parents=True)
        try:
            mounts.overlay(lower, upper, work, target, in_user_namespace=self.in_user_namespace)
        except OSError:
            return False
        mounts.detach(target)
        return True

    def _shared_folders(self) -> list[Path]:
        return [folder for folder in self._places.shared if not _is_below_any(folder, _SHARED)]

    def _sockets(self) -> list[Path]:
        """Return the sockets of services on this host, which nobody reaches through an overlay."""
        lines = os.fsdecode(Path("/proc/net/unix").read_bytes()).split("\n")[1:]
        words = [line.split(maxsplit=7) for line in lines]
        paths = {Path(fields[7]) for fields in words if len(fields) > 7 and fields[7].startswith("/")}
        places = [
            path
            for path in paths
            if path.is_relative_to(self._places.top) and not _is_below_any(path, (*_NOT_OVERLAID, _RUN))
        ]
        return [path for path in places if os.access(path, os.W_OK) and path.is_socket()]

    def _freeze(self) -> list[FrozenFolder]:
        """Copy the folders that are to be seen as they are now, and return the copies, that of the outermost first.

        The innermost are copied first: of a folder that has a copy, those around it need but the name.
        """
        mount_places = {*self._places.shared, self.scratch}
        frozen_folders: list[FrozenFolder] = []
        outermost_first = self._places.frozen()
        for number, (folder, depth) in enumerate(reversed(outermost_first.items())):
            copy = self.scratch / "frozen" / str(number)
            live = self.scratch / "live" / str(number)
            try:
                frozen_folders.append(FrozenFolder(folder, copy, live, places=mount_places, levels=depth))
            except TooLargeError:
                self.unfrozen.append(folder)
            else:
                mount_places.add(folder)
        return frozen_folders[::-1]

    def _overlay(self, folder: Path, outside: Path, number: int) -> bool:
        """Lay an overlay on `folder`, whose files are in the folder `outside`; return whether the kernel has one there.

        Raises:
            OSError: there is no room for it.
        """
        try:
            state = folder.stat()
        except FileNotFoundError:  # somebody has removed it meanwhile
            return False
        upper = outside / "written" / str(number)
        work = outside / "work" / str(number)
        os.makedirs(upper)  # noqa: PTH103
        os.makedirs(work)  # noqa: PTH103
        os.chmod(upper, state.st_mode & 0o7777)  # noqa: PTH101
        with contextlib.suppress(OSError):
            os.chown(upper, state.st_uid, state.st_gid)
        try:
            with mounts.opened(folder) as lower:
                mounts.overlay(lower, upper, work, folder, in_user_namespace=self.in_user_namespace)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise
            if folder.exists():
                self.read_only.append(folder)
            return False
        self._mounted.append(folder)
        return True

    def _show_copy(self, frozen: FrozenFolder, copy: Path, view: Path) -> None:
        """Show the copy in the place of the folder, and live what the copy leaves out."""
        self._bind(copy, frozen.folder)
        for relative in frozen.live_folders:
            with contextlib.suppress(FileNotFoundError):  # somebody has removed it meanwhile
                self._bind(view / relative, frozen.folder / relative)

    def _bind(self, source: Path, target: Path) -> None:
        mounts.bind(source, target)
        self._mounted.append(target)

    def _mount_memory(self, target: Path) -> None:
        mounts.mount_memory(target)
        self._mounted.append(target)


def _close_all_but(*descriptors: int) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) not in descriptors:
            with contextlib.suppress(OSError):
                os.close(int(name))


def overlaid_folders(folder: Path, points: Sequence[MountPoint]) -> Iterator[Path]:
    """Yield the largest folders, `folder` or below it, that can be written to and have nothing mounted below them.

    An overlay shows one file system only, and a user namespace may not look below what is mounted on it.
    """
    if _is_below_any(folder, _NOT_OVERLAID) or folder.is_symlink() or not os.access(folder, os.R_OK | os.X_OK):
        return
    mount = _mount_of(folder, points)
    if all(point.path == folder or not point.path.is_relative_to(folder) for point in points):
        is_of_services = folder.is_relative_to(_RUN) and not _is_disk_below_run(mount)
        if not mount.read_only and mount.kind not in _VIRTUAL and not is_of_services:
            yield folder
        return
    with os.scandir(folder) as entries:
        below = sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    for path in below:
        yield from overlaid_folders(path, points)


def _is_disk_below_run(mount: MountPoint) -> bool:
    """Tell whether a mount is of what a user has put in, as below /run/media, and not of the system's services."""
    return mount.path.is_relative_to(_RUN) and mount.kind not in ("tmpfs", "ramfs")


def _mount_of(folder: Path, points: Sequence[MountPoint]) -> MountPoint:
    """Return which of the mounts `points`, in the order in which they were made, shows `folder`."""
    above = [point for point in points if folder.is_relative_to(point.path)]
    deepest = max(len(point.path.parts) for point in above)
    return [point for point in above if len(point.path.parts) == deepest][-1]


def _is_below_any(folder: Path, places: Sequence[Path]) -> bool:
    return any(folder.is_relative_to(place) for place in places)
