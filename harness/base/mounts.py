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

_CLONE_NEWNS = 0x0002_0000
_CLONE_NEWUSER = 0x1000_0000
_MS_BIND = 1 << 12
_MS_REC = 1 << 14
_MS_PRIVATE = 1 << 18
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class MountPoint:
    """A line of /proc/self/mountinfo: what kind of file system is mounted at `path`, and whether for reading only."""

    path: Path
    kind: str
    read_only: bool


def _call(function: str, *arguments: object) -> None:
    """Call a function of the C library that returns 0; raise an OSError where it does not."""
    if getattr(_libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    words = [os.fsencode(word) for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), os.fsencode(options))


def enter_namespace() -> bool:
    """Give this thread, and all that it starts from now on, mounts of its own; return whether a user namespace had to.

    A process that may not do so needs a user namespace, and for that it must have one thread only.

    Raises:
        OSError: the kernel, or the container, does not allow it.
    """
    user = os.geteuid()
    group = os.getegid()
    try:
        _call("unshare", _CLONE_NEWNS)
        needs_user_namespace = False
    except PermissionError:
        _call("unshare", _CLONE_NEWNS | _CLONE_NEWUSER)
        needs_user_namespace = True
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", Path("/"), "", _MS_REC | _MS_PRIVATE, "")  # else the host would get what is mounted here
    return needs_user_namespace


def overlay(lower: Path, upper: Path, work: Path, target: Path, *, in_user_namespace: bool) -> None:
    """Show `lower` at `target`, with what is written there in `upper`; `work` is the kernel's own, beside `upper`.

    Raises:
        OSError: the kernel refuses, as it does where the file system of `upper` is itself an overlay or a network's.
    """
    options = [f"lowerdir={lower}", f"upperdir={upper}", f"workdir={work}"]
    if in_user_namespace:
        options.append("userxattr")  # trusted attributes are for the host's root
    _mount("overlay", target, "overlay", 0, ",".join(options))


def bind(source: Path, target: Path) -> None:
    """Show `source`, with all that is mounted below it, at `target` too; raise an OSError where the kernel refuses."""
    _mount(str(source), target, "", _MS_BIND | _MS_REC, "")


def mount_memory(target: Path) -> None:
    """Mount an empty file system in memory, of half the memory at most; raise an OSError where the kernel refuses."""
    _mount("tmpfs", target, "tmpfs", 0, "mode=0700")


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


def mount_points() -> list[MountPoint]:
    """Return the mounts that this process sees, in the order in which they were made."""
    return [_parse(line) for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()]


def _parse(line: str) -> MountPoint:
    before, _, after = line.partition(" - ")
    fields = before.split()
    kind, _, super_options = after.split(" ")[:3]
    read_only = "ro" in (*fields[5].split(","), *super_options.split(","))
    place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
    return MountPoint(path=Path(place), kind=kind, read_only=read_only)
