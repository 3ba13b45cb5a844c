"""To ask for the umask changes nothing, not even for a moment in another thread."""

import os
import stat
import threading
from pathlib import Path

import pytest

from harness.base.removal import umask


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_it_is_that_of_the_process(mask: int) -> None:
    before = os.umask(mask)
    try:
        assert umask() == mask
    finally:
        assert os.umask(before) == mask


def test_files_of_another_thread_have_their_mode_meanwhile(tmp_path: Path) -> None:
    before = os.umask(0o022)
    ends = threading.Event()

    def ask() -> None:
        while not ends.is_set():
            umask()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        modes = set()
        for number in range(3000):
            path = tmp_path / str(number)
            path.touch()
            modes.add(stat.S_IMODE(path.stat().st_mode))
            path.unlink()
    finally:
        ends.set()
        asking.join()
        os.umask(before)
    assert modes == {0o644}
