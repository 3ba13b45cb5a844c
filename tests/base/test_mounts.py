"""Mounts of a process's own: where the kernel refuses any part of them, the process is what it was."""

import errno
import os
from pathlib import Path

import pytest

from harness.base import mounts


def identity():
    """Return who this process is, and in which namespaces."""
    namespaces = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("user", "mnt")]
    return os.getresuid(), os.getresgid(), os.getgroups(), namespaces


def refuse(*_):
    raise PermissionError(errno.EPERM, "refused")


@pytest.mark.parametrize("refused", ["setgroups", "uid_map", "gid_map"])
def test_a_refused_map_leaves_the_process_what_it_was(monkeypatch, refused):
    """As on Ubuntu 24.04, where a user namespace is given to everybody and its maps are not."""
    write = mounts._write_map
    monkeypatch.setattr(mounts, "_unshare_mounts", refuse)
    monkeypatch.setattr(mounts, "_write_map", lambda name, text: refuse() if name == refused else write(name, text))
    before = identity()
    with pytest.raises(OSError, match="refused"):
        mounts.enter_namespace()
    assert identity() == before


def test_refused_mounts_leave_the_process_what_it_was(monkeypatch):
    monkeypatch.setattr(mounts, "_mount", refuse)
    before = identity()
    with pytest.raises(OSError, match="refused"):
        mounts.enter_namespace()
    assert identity() == before
    assert not mounts.is_private()


def test_a_line_of_mountinfo_says_what_a_mount_is():
    line = r"77 27 0:39 /a /mnt/my\040disk rw,nosuid,relatime master:1 - ext4 /dev/sda1 ro,errors=continue"
    point = mounts._parse(line)
    assert (point.path, point.kind, point.number, point.source) == (Path("/mnt/my disk"), "ext4", 77, "/dev/sda1")
    assert point.read_only
    assert "nosuid" in point.options


def test_an_open_file_is_in_the_mount_that_shows_it():
    with (Path("/proc/self/status")).open() as status, Path(__file__).open() as source:
        numbers = [mounts.mount_number(file.fileno()) for file in (status, source)]
    assert numbers[0] != numbers[1]
    assert set(numbers) <= {point.number for point in mounts.mount_points()}


def test_a_mount_whose_name_has_a_line_break_of_unicode_is_one_mount(monkeypatch, tmp_path):
    line = "36 35 98:0 / {} rw - tmpfs none rw\n"
    file = tmp_path / "mountinfo"
    file.write_text(line.format("/mnt/a\u2028b") + line.format("/mnt/c\x0cd") + line.format("/mnt/e"))
    monkeypatch.setattr(mounts, "_MOUNTINFO", file)
    assert [str(point.path) for point in mounts.mount_points()] == ["/mnt/a\u2028b", "/mnt/c\x0cd", "/mnt/e"]
