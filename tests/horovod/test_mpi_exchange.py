"""One exchange among ranks: what all ask for is compared first, then it is done."""

import numpy as np
import pytest
import tensorflow as tf

from harness.horovod import mpi_exchange
from harness.horovod.mpi_exchange import (
    AVERAGE,
    MAX,
    MIN,
    SUM,
    Exchange,
    Request,
    disagreement,
    impossible,
)
from harness.horovod.ranks import unwatched
from tests.labs.alike_ranks import AlikeComm
from tests.labs.horovod_ranks import ufunc
from tests.labs.thread_ranks import on_threads

F32 = (("float32", (3, 2)),)


@pytest.fixture(autouse=True)
def without_mpi(monkeypatch):
    monkeypatch.setattr(mpi_exchange, "mpi_operation", ufunc)


def on_ranks(size, work):
    """Return what `work` returns for each rank and its exchange; an error is returned too."""

    def run(comm):
        try:
            return work(comm.Get_rank(), Exchange(comm, unwatched()))
        except tf.errors.OpError as error:
            return type(error)

    return on_threads(size, run)


def asked(kind, array, **words):
    """Return what every one of two ranks gets of an exchange of `array`, a function of the rank."""

    def work(rank, ranks):
        results = ranks.run(Request(kind, "x", **words), [np.asarray(array(rank))])
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


def test_rows_are_gathered_in_the_order_of_the_ranks():
    rows = asked("allgather", lambda rank: np.full((rank + 1, 1), rank))
    assert rows == [[[[0], [1], [1]]]] * 2


def test_one_rank_is_copied_by_all():
    assert asked("broadcast", lambda rank: [rank], root=1) == [[[1]], [[1]]]


def test_objects_travel_too():
    def work(rank, ranks):
        return ranks.run(Request("object", "o", root=1), value={"rank": rank})

    assert on_ranks(2, work) == [[{"rank": 1}]] * 2


def test_what_does_not_fit_or_cannot_be_done_is_refused_on_all_ranks():
    misfit, bad = tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError
    assert asked("allreduce", lambda rank: np.ones(rank + 1)) == [misfit] * 2
    assert asked("broadcast", lambda rank: [1], root=7) == [bad] * 2


def test_exchanges_are_timed_where_somebody_asks(monkeypatch):
    monkeypatch.setattr(mpi_exchange, "calls", [])
    Exchange(AlikeComm(size=1), unwatched()).run(Request("barrier", ""))
    assert len(mpi_exchange.calls) == 1


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
        ((Request("join", ""), FIRST), False),
    ],
)
def test_requests_fit_each_other_or_not(requests, fit):
    assert (disagreement(requests) == "") == fit


@pytest.mark.parametrize(
    ("request_", "possible"),
    [
        (Request("broadcast", "a", root=3, shapes=F32), False),
        (Request("allgather", "a", shapes=(("float32", ()),)), False),
        (Request("allgather", "a", shapes=F32), True),
    ],
)
def test_what_cannot_be_done_is_known_from_the_request(request_, possible):
    assert (impossible(request_, 2) == "") == possible
