"""Which ranks there are, as operations of a graph."""

import tensorflow as tf

from harness.horovod import rank_queries
from tests.labs.horovod_ranks import begin_horovod


def test_a_compiled_function_asks_whenever_it_runs(monkeypatch):
    function = tf.function(lambda: (rank_queries.rank_op(), rank_queries.size_op(), rank_queries.local_size_op()))
    for rank, size in ((0, 2), (2, 3)):
        begin_horovod(monkeypatch, rank, size)
        assert [int(number) for number in function()] == [rank, size, size]
    assert int(rank_queries.process_set_included_op()) == 1
