"""One exchange among ranks: what all ask for is compared first, then it is done."""

import json

import numpy as np
import pytest
import tensorflow as tf

from harness.horovod import mpi_exchange
from harness.horovod.mpi_exchange import (
    ADASUM,
    AVERAGE,
    MAX,
    MIN,
    SUM,
    Exchange,
    Request,
    Timeline,
    _adasum,
    disagreement,
    impossible,
)
from harness.horovod.process_sets import _unwatched
from tests.labs.alike_ranks import AlikeComm
from tests.labs.horovod_ranks import ufunc
from tests.labs.thread_ranks import on_threads

F32 = (("float32", (3, 2)),)


@pytest.fixture(autouse=True)
def without_mpi(monkeypatch):
    monkeypatch.setattr(mpi_exchange, "_operation", ufunc)


def on_ranks(size, work):
    """Return what `work` returns for each rank and its exchange; an error is returned too."""

    def run(comm):
        try:
            return work(comm.Get_rank(), Exchange(comm, range(size), _unwatched(), Timeline()))
        except tf.errors.OpError as error:
            return type(error)

    return on_threads(size, run)


def asked(kind, array, scales=(1.0, 1.0), **words):
    """Return what every one of two ranks gets of an exchange of `array`, a function of the rank."""

    def work(rank, ranks):
        results = ranks.run(Request(kind, "x", **words), [np.asarray(array(rank))], scales)
        return [result.tolist() for result in results]

    return on_ranks(2, work)


@pytest.mark.parametrize(
    ("op", "total"), [(SUM, [3.0, 5.0]), (AVERAGE, [1.5, 2.5]), (MIN, [1.0, 2.0]), (MAX, [2.0, 3.0])]
)
def test_all_ranks_get_the_same_reduction(op, total):
    assert asked("allreduce", lambda rank: [1.0 + rank, 2.0 + rank], op=op) == [[total], [total]]


def test_small_types_do_not_overflow_and_come_back_in_their_type():
    def work(rank, ranks):
        (result,) = ranks.run(Request("allreduce", "x"), [np.full(3, 100, np.int8)])
        return str(result.dtype), result.tolist()

    assert on_ranks(2, work) == [("int8", [-56] * 3)] * 2


def test_scales_are_applied_before_and_after():
    assert asked("allreduce", lambda rank: [4.0], scales=(0.5, 3.0)) == [[[12.0]]] * 2


def test_rows_are_gathered_in_the_order_of_the_ranks():
    rows = asked("allgather", lambda rank: np.full((rank + 1, 1), rank))
    assert rows == [[[[0], [1], [1]]]] * 2


def test_one_rank_is_copied_by_all():
    assert asked("broadcast", lambda rank: [rank], root=1) == [[[1]], [[1]]]


def test_rows_are_scattered_after_they_are_reduced():
    assert asked("reducescatter", lambda rank: [[1.0], [2.0]]) == [[[[2.0]]], [[[4.0]]]]


def test_every_rank_sends_rows_to_every_other():
    assert asked("alltoall", lambda rank: [10 * rank, 10 * rank + 1]) == [
        [[0, 10], [1, 1]],
        [[1, 11], [1, 1]],
    ]


def test_objects_travel_too():
    def work(rank, ranks):
        one = ranks.run(Request("object", "o", root=1), value={"rank": rank})
        return one + ranks.run(Request("objects", "o"), value=rank)

    assert on_ranks(2, work) == [[{"rank": 1}, 0, 1]] * 2


def test_what_does_not_fit_or_cannot_be_done_is_refused_on_all_ranks():
    misfit, bad = tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError
    assert asked("allreduce", lambda rank: np.ones(rank + 1)) == [misfit] * 2
    assert asked("broadcast", lambda rank: [1], root=7) == [bad] * 2


def test_a_rank_that_has_joined_takes_part_with_zeros():
    def work(rank, ranks):
        sums = [ranks.run(Request("allreduce", "x"), [np.ones(1)])[0].tolist() for _ in range(1 + rank)]
        return sums, ranks.join()

    assert on_ranks(2, work) == [([[2.0]], 1), ([[2.0], [1.0]], 1)]


def test_exchanges_are_timed_where_somebody_asks(tmp_path, monkeypatch):
    monkeypatch.setattr(mpi_exchange, "calls", [])
    timeline = Timeline()
    timeline.start(str(tmp_path / "timeline.json"))
    Exchange(AlikeComm(size=1), [0], _unwatched(), timeline).run(Request("barrier", ""))
    assert len(mpi_exchange.calls) == 1
    timeline.stop()
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["NEGOTIATE_BARRIER", "barrier"]


FIRST = Request("allreduce", "g", shapes=F32)


@pytest.mark.parametrize(
    ("requests", "fit"),
    [
        ((FIRST, FIRST), True),
        ((FIRST, FIRST._replace(shapes=(("float32", (4, 2)),))), False),
        ((FIRST, FIRST._replace(shapes=(("float64", (3, 2)),))), False),
        ((FIRST, FIRST._replace(name="h")), False),
        ((FIRST._replace(op=MAX), FIRST._replace(op=MIN)), False),
        ((FIRST._replace(root=0), FIRST._replace(root=1)), False),
        ((FIRST._replace(kind="allgather"), FIRST._replace(kind="allgather", shapes=(("float32", (4, 2)),))), True),
        ((FIRST._replace(kind="allgather"), FIRST._replace(kind="allgather", shapes=(("float32", (3, 3)),))), False),
        ((Request("join", ""), FIRST), True),
        ((Request("join", ""), FIRST._replace(kind="allgather")), False),
    ],
)
def test_requests_fit_each_other_or_not(requests, fit):
    assert (disagreement(requests, [0, 1]) == "") == fit


@pytest.mark.parametrize(
    ("request_", "possible"),
    [
        (Request("alltoall", "a", shapes=F32), False),
        (Request("alltoall", "a", shapes=F32, extra=(1, 1)), False),
        (Request("broadcast", "a", root=3, shapes=F32), False),
        (Request("reducescatter", "a", shapes=(("float32", ()),)), False),
        (Request("alltoall", "a", shapes=F32, extra=(1, 2)), True),
    ],
)
def test_what_cannot_be_done_is_known_from_the_request(request_, possible):
    assert (impossible(request_, [0, 1]) == "") == possible


def test_adasum_adds_what_is_orthogonal_and_averages_what_is_parallel():
    across = _adasum([np.array([1.0, 0]), np.array([0, 2.0])])
    along = _adasum([np.array([1.0, 3.0])] * 4)
    assert across.tolist() == [1, 2]
    assert along.tolist() == pytest.approx([1, 3])
    assert asked("allreduce", lambda rank: [1.0, 3.0], op=ADASUM) == [[[1.0, 3.0]]] * 2
