"""What chooses the way of sums, and whether they are made in pieces."""

from types import SimpleNamespace

import pytest

from harness.comm.reduction_choice import is_overlapped, select
from harness.comm.world import World
from tests.labs.sentences import refuses

MB = 2**20


def test_a_wrong_word_for_overlap_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_OVERLAP", "yes")
    with refuses("known are", "yes", "0", "1"):
        select(World(comm=None, rank=0, size=1), [4 * MB])


@pytest.mark.parametrize(
    ("hosts", "sizes", "threads", "chosen", "expected"),
    [
        (("n1", "n2"), [4 * MB, 4 * MB], 2, "", True),
        (("n1", "n2"), [4 * MB, 4 * MB], 2, "0", False),
        (("n1", "n2"), [4 * MB, 4 * MB], 1, "", False),
        (("n1", "n2"), [MB // 4, MB // 4], 2, "", False),
        (("n1", "n1"), [4 * MB, 4 * MB], 2, "", False),
        (("n1", "n1"), [4 * MB, 4 * MB], 2, "1", True),
    ],
)
def test_sums_are_made_in_pieces_between_hosts_where_a_rank_has_a_second_thread_and_there_are_several(
    hosts, sizes, threads, chosen, expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_OVERLAP", chosen)
    comm = SimpleNamespace(allgather=lambda own_host: list(hosts))
    assert is_overlapped(World(comm=comm, rank=0, size=2), sizes, threads) == expected
