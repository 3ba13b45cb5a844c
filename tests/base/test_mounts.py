"""Mounts of a process's own: where the kernel refuses any part of them, the process is what it was."""

import ctypes
import errno
import os
from pathlib import Path

import pytest

from harness.base import mounts

CLONE_NEWNS = 0x0002_0000  # sched.h


def identity():
    """Return who this process is, and in which namespaces."""
    namespaces = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("user", "mnt")]
    return os.getresuid(), os.getresgid(), os.getgroups(), namespaces


class RefusingLibrary:
    """The C library on a kernel that refuses the calls named in `refused`; the others are made."""

    def __init__(self, *refused: str) -> None:
        self._refused = refused
        self._library = mounts.libc

    def unshare(self, flags: int) -> int:
        name = "unshare mounts" if flags == CLONE_NEWNS else "unshare users"
        return self._refuse() if name in self._refused else self._library.unshare(flags)

    def mount(self, *arguments: object) -> int:
        return self._refuse() if "mount" in self._refused else self._library.mount(*arguments)

    def setns(self, *arguments: object) -> int:
        return self._library.setns(*arguments)

    @staticmethod
    def _refuse() -> int:
        ctypes.set_errno(errno.EPERM)
        return -1


@pytest.mark.parametrize("refused", ["setgroups", "uid_map", "gid_map"])
def test_a_refused_map_leaves_the_process_what_it_was(monkeypatch, refused):
    """As on Ubuntu 24.04, where a user namespace is given to everybody and its maps are not."""
    write = Path.write_text

    def write_but_maps(path, text):
        if path == Path("/proc/self", refused):
            raise PermissionError(errno.EPERM, "refused")
        return write(path, text)

    monkeypatch.setattr(mounts, "libc", RefusingLibrary("unshare mounts"))
    monkeypatch.setattr(Path, "write_text", write_but_maps)
    before = identity()
    with pytest.raises(OSError, match=refused):
        mounts.enter_namespace()
    assert identity() == before


def test_refused_mounts_leave_the_process_what_it_was(monkeypatch):
    monkeypatch.setattr(mounts, "libc", RefusingLibrary("mount"))
    before = identity()
    with pytest.raises(PermissionError, match="mount"):
        mounts.enter_namespace()
    assert identity() == before
    assert not mounts.is_private()


def test_a_line_of_mountinfo_says_what_a_mount_is(tmp_path):
    file = tmp_path / "mountinfo"
    file.write_text("77 27 0:39 /a /mnt/my\\040disk rw,nosuid,relatime master:1 - ext4 /dev/sda1 ro,errors=continue\n")
    (point,) = mounts.mount_points(file)
    assert (point.path, point.kind, point.number, point.source) == (Path("/mnt/my disk"), "ext4", 77, "/dev/sda1")
    assert point.read_only
    assert "nosuid" in point.options


def test_an_open_file_is_in_the_mount_that_shows_it():
    with (Path("/proc/self/status")).open() as status, Path(__file__).open() as source:
        numbers = [mounts.mount_number(file.fileno()) for file in (status, source)]
    assert numbers[0] != numbers[1]
    assert set(numbers) <= {point.number for point in mounts.mount_points()}


def test_a_mount_whose_name_has_a_line_break_of_unicode_is_one_mount(tmp_path):
    line = "36 35 98:0 / {} rw - tmpfs none rw\n"
    file = tmp_path / "mountinfo"
    file.write_text(line.format("/mnt/a\u2028b") + line.format("/mnt/c\x0cd") + line.format("/mnt/e"))
    assert [str(point.path) for point in mounts.mount_points(file)] == ["/mnt/a\u2028b", "/mnt/c\x0cd", "/mnt/e"]
