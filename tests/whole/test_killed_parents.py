"""`kill -9` of `harness run` and `harness sweep` leaves nothing; more by hand with ``python -m tests.orphans``."""

import os
import subprocess
import sys

import pytest

from tests.orphans import run

_NOBODY = 65534


def _can_be(uid: int) -> bool:
    """Return whether this process can start Python as another user, who must be able to reach it."""
    try:
        return subprocess.run([sys.executable, "-c", ""], user=uid, check=False).returncode == 0
    except OSError:
        return False


# It starts ranks: what is to end is mpirun's, and the ranks' own scratch and memory.
@pytest.mark.mpi
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("uid", [os.geteuid(), _NOBODY])
def test_a_killed_command_leaves_nothing_after_ten_seconds(kills: int, uid: int) -> None:
    if not _can_be(uid):
        pytest.skip(f"no Python that user {uid} can start, or this is not root")
    killed, found = run(kills, seed=5, uid=uid)
    assert killed == kills
    assert found == []
