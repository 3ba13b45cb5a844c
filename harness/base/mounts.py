"""Mounts that only this process and its children see: a mount namespace of its own, where the kernel allows one.

Linux only; see mount_namespaces(7), user_namespaces(7) and the kernel's Documentation/filesystems/overlayfs.rst.
"""

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_CLONE_NEWNS = 0x0002_0000
_CLONE_NEWUSER = 0x1000_0000
_MS_RDONLY = 1 << 0
_MS_REMOUNT = 1 << 5
_MS_BIND = 1 << 12
_MS_REC = 1 << 14
_MS_SLAVE = 1 << 19
_MNT_DETACH = 2
_KEPT_FLAGS = {"nosuid": 1 << 1, "nodev": 1 << 2, "noexec": 1 << 3, "nosymfollow": 1 << 8}
_OWN = "harness-rank-tree"  # the source that /proc/self/mountinfo shows of the mounts that are made here
_MOUNTS = "mounts"
_USER = "user"
_TRIED = (_MOUNTS, _USER)
"""What a namespace of mounts has needed: nothing, or one of users."""

MOUNTS_OF_PROCESS = Path("/proc/self/mountinfo")
libc = ctypes.CDLL(None, use_errno=True)
"""The C library: its unshare, setns, mount and umount2 are all that is asked of the kernel here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MountPoint:
    """A line of /proc/self/mountinfo: what kind of file system is mounted at `path`, and whether for reading only.

    `number` is the kernel's of the mount, `options` are those of the mount alone, `source` is what it was made from.
    """

    path: Path
    kind: str
    read_only: bool
    number: int = 0
    options: tuple[str, ...] = ()
    source: str = ""


def _call(function: str, *arguments: object) -> None:
    """Call a function of the C library that returns 0; raise an OSError where it does not."""
    if getattr(libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    words = [os.fsencode(word) for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), os.fsencode(options))


def enter_namespace() -> bool:
    """Give this process, and all that it starts from now on, mounts of its own; return whether as a user of its own.

    A child tries all of it first: where anything is refused, this process is what it was. It must have one thread
    only.

    Raises:
        OSError: the kernel, or the container, does not allow it.
    """
    reading, answer = os.pipe()
    release, holding = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(holding)
        _try_namespaces(answer, release)
    os.close(answer)
    os.close(release)
    try:
        with open(reading, encoding="utf-8", errors="replace") as pipe:  # noqa: PTH123 - a descriptor
            word, _, text = pipe.readline().rstrip("\n").partition(" ")
        if word not in _TRIED:
            raise OSError(int(word or "0"), text or "the process that tries a namespace has ended")
        if word == _USER:
            _join_user_namespace(child)
        unshare_mounts()
    finally:
        os.close(holding)
        os.waitpid(child, 0)
    return word == _USER


def _try_namespaces(answer: int, release: int) -> NoReturn:
    """Be the child that makes the namespaces: tell how that went, and hold them until `release` is closed."""
    try:
        try:
            word = _make_namespaces()
        except OSError as error:
            word = f"{error.errno or 0} {error.strerror or error}"
        os.write(answer, f"{word}\n".encode())
        os.close(answer)
        os.read(release, 1)
    finally:
        os._exit(0)


def _make_namespaces() -> str:
    """Enter a namespace of mounts, and one of users where that needs one; return which word of `_TRIED` it was."""
    user = os.geteuid()
    group = os.getegid()
    try:
        unshare_mounts()
    except PermissionError:
        _call("unshare", _CLONE_NEWUSER)
        _write_map("setgroups", "deny")
        _write_map("uid_map", f"{user} {user} 1")
        _write_map("gid_map", f"{group} {group} 1")
        unshare_mounts()
        return _USER
    return _MOUNTS


def unshare_mounts() -> None:
    """Enter a namespace of mounts: the host gets nothing of what is mounted here.

    What the host mounts later, by its automounter say, is seen here.
    """
    _call("unshare", _CLONE_NEWNS)
    _mount("none", Path("/"), "", _MS_REC | _MS_SLAVE, "")


def _join_user_namespace(process: int) -> None:
    """Join that of another process; root and working folder stay, as they would not with that of mounts."""
    descriptor = os.open(f"/proc/{process}/ns/user", os.O_RDONLY)
    try:
        _call("setns", descriptor, _CLONE_NEWUSER)
    finally:
        os.close(descriptor)


def _write_map(name: str, text: str) -> None:
    """Write a file of this process that settles who it is in its user namespace."""
    try:
        Path("/proc/self", name).write_text(text)
    except OSError as error:
        raise OSError(error.errno, f"{name} of a user namespace: {error.strerror}") from error


def overlay(lower: Path, upper: Path, work: Path, target: Path, *, in_user_namespace: bool) -> None:
    """Show `lower` at `target`, with what is written there in `upper`; `work` is the kernel's own, beside `upper`.

    Raises:
        OSError: the kernel refuses, as it does where the file system of `upper` is itself an overlay or a network's.
    """
    options = [f"lowerdir={lower}", f"upperdir={upper}", f"workdir={work}"]
    if in_user_namespace:
        options.append("userxattr")  # trusted attributes are for the host's root
    _mount(_OWN, target, "overlay", 0, ",".join(options))


def bind(source: Path, target: Path) -> None:
    """Show `source`, with all that is mounted below it, at `target` too; raise an OSError where the kernel refuses."""
    _mount(str(source), target, "", _MS_BIND | _MS_REC, "")


def set_read_only(target: Path, point: MountPoint, *, read_only: bool) -> None:
    """Let nothing be written through the mount `point`, whose root `target` names, or let it again.

    Raises:
        OSError: the kernel refuses, or `target` is not the root of a mount.
    """
    kept_flags = sum(flag for word, flag in _KEPT_FLAGS.items() if word in point.options)
    _mount("none", target, "", _MS_REMOUNT | _MS_BIND | kept_flags | (_MS_RDONLY if read_only else 0), "")


def mount_memory(target: Path) -> None:
    """Mount an empty file system in memory, of half the memory at most; raise an OSError where the kernel refuses."""
    _mount(_OWN, target, "tmpfs", 0, "mode=0700")


def detach(target: Path) -> None:
    """Take the uppermost mount at `target` away; raise an OSError where nothing is mounted there."""
    _call("umount2", os.fsencode(target), _MNT_DETACH)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Path]:
    """Yield a name for `path` as it is now, which it keeps whatever is mounted over it meanwhile.

    Raises:
        OSError: there is no such file or folder.
    """
    descriptor = os.open(path, os.O_PATH)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def mount_number(descriptor: int) -> int:
    """Return the kernel's number of the mount in which an open file or folder is."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


def mount_points(file: Path = MOUNTS_OF_PROCESS) -> list[MountPoint]:
    """Return the mounts that this process sees, in the order in which they were made; `file` as proc(5) has them."""
    return [_parse(line) for line in os.fsdecode(file.read_bytes()).split("\n") if line]


def is_private() -> bool:
    """Tell whether this process sees a tree that was made here for a rank, or for a parent of this process."""
    return any(point.source == _OWN for point in mount_points())


def _parse(line: str) -> MountPoint:
    before, _, after = line.partition(" - ")
    fields = before.split(" ")
    kind, source, super_options = after.split(" ")[:3]
    options = tuple(fields[5].split(","))
    place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
    return MountPoint(
        path=Path(place),
        kind=kind,
        read_only="ro" in (*options, *super_options.split(",")),
        number=int(fields[0]),
        options=options,
        source=source,
    )
