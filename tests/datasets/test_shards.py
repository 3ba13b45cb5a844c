"""Every row exactly once, the same global batches for every number of ranks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.datasets.shards import Shards, split_evenly

sizes = st.integers(1, 300)
rank_counts = st.integers(1, 9)


def epoch(shards: Shards, rank: int, number: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank's order of an epoch as rows of the data set."""
    full, partial = shards.order(rank, seed=7, epoch=number)
    first = shards.own_rows(rank).start
    return full + first, partial + first


@given(rows=sizes, batch=sizes, ranks=rank_counts)
def test_every_row_belongs_to_exactly_one_rank_and_is_visited_once(rows, batch, ranks):
    shards = Shards(rows=rows, batch=batch, ranks=ranks)
    seen = []
    for rank in range(ranks):
        full, partial = epoch(shards, rank)
        assert full.shape == (rows // batch, len(shards.lanes(rank)))
        visited = np.concatenate([full.ravel(), partial])
        assert sorted(visited) == list(shards.own_rows(rank))
        seen.extend(visited)
    assert sorted(seen) == list(range(rows))


@given(rows=sizes, batch=sizes, ranks=rank_counts, number=st.integers(0, 5))
def test_global_batches_do_not_depend_on_the_ranks(rows, batch, ranks, number):
    alone = Shards(rows=rows, batch=batch, ranks=1)
    divided = Shards(rows=rows, batch=batch, ranks=ranks)
    full, partial = epoch(alone, 0, number)
    parts = [epoch(divided, rank, number) for rank in range(ranks)]
    assert np.array_equal(np.concatenate([part[0] for part in parts], axis=1), full)
    assert np.array_equal(np.concatenate([part[1] for part in parts]), partial)


@given(rows=sizes, batch=sizes, ranks=rank_counts)
def test_partial_batches_add_up(rows, batch, ranks):
    shards = Shards(rows=rows, batch=batch, ranks=ranks)
    assert sum(len(epoch(shards, rank)[1]) for rank in range(ranks)) == shards.remainder


def test_epochs_and_seeds_differ_and_repeat():
    shards = Shards(rows=1000, batch=10, ranks=2)
    first, again = (shards.order(1, seed=1, epoch=0)[0] for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, shards.order(1, seed=1, epoch=1)[0])
    assert not np.array_equal(first, shards.order(1, seed=2, epoch=0)[0])


def test_each_lane_is_shuffled_uniformly():
    """Over many epochs every row of a lane comes first equally often (chi-square, 9 degrees of freedom)."""
    shards = Shards(rows=40, batch=4, ranks=1)
    counts = np.zeros(10)
    for number in range(2000):
        counts[shards.order(0, seed=3, epoch=number)[0][0, 0]] += 1
    assert ((counts - 200) ** 2 / 200).sum() < 33.7  # 99.99 % point


@given(rows=st.integers(0, 500), parts=st.integers(1, 50))
def test_even_split_covers_every_row_once(rows, parts):
    covered = [row for part in range(parts) for row in split_evenly(rows, parts, part)]
    assert covered == list(range(rows))


def test_forty_two_rows_over_four_ranks():
    shards = Shards(rows=42, batch=4, ranks=4)
    rows = [row for rank in range(4) for row in shards.own_rows(rank)]
    assert rows == list(range(42))
