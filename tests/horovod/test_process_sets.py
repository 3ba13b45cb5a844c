"""Which ranks there are, and sets of them."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from harness.base.turns import clock
from harness.horovod import mpi_exchange, process_sets
from harness.horovod.process_sets import ProcessSet
from tests.labs.alike_ranks import AlikeComm
from tests.labs.horovod_ranks import begin_horovod


@pytest.fixture
def three_ranks(monkeypatch):
    monkeypatch.setattr(AlikeComm, "Split", lambda comm, color, key=0: AlikeComm(0, 2), raising=False)
    begin_horovod(monkeypatch, 1, 3)


def test_before_init_nothing_is_known(monkeypatch):
    monkeypatch.setattr(process_sets, "_current", None)
    assert not process_sets.is_initialized()
    with pytest.raises(ValueError):
        process_sets.rank()


def test_a_set_knows_its_ranks_and_this_ranks_place_in_it(three_ranks):
    members = ProcessSet([2, 1])
    assert (members.size(), members.rank()) == (None, None)
    process_sets.add_process_set(members)
    assert (members.ranks, members.size(), members.rank(), members.included()) == ([1, 2], 2, 0, True)
    assert process_sets._get_process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [1, 2]}
    assert process_sets.remove_process_set(members)
    assert not process_sets.remove_process_set(members)
    assert not process_sets.remove_process_set(process_sets.global_process_set)


@pytest.mark.parametrize("ranks", [[], [0, 3], [0, 1, 2]])
def test_sets_that_are_empty_strange_or_there_already_are_refused(three_ranks, ranks):
    with pytest.raises(ValueError):
        process_sets.add_process_set(ranks)


def test_a_rank_that_is_not_in_a_set_exchanges_nothing_in_it(three_ranks):
    others = process_sets.add_process_set([0, 2])
    assert others.rank() == -1
    with pytest.raises(tf.errors.InvalidArgumentError):
        _ = others.exchange
    with pytest.raises(ValueError):
        _ = ProcessSet([0]).exchange


def test_ranks_are_integers():
    with pytest.raises(ValueError):
        ProcessSet([0, "1"])


def test_the_ranks_that_are_left_go_on_without_sets(three_ranks, monkeypatch):
    members = process_sets.add_process_set([0, 1])
    followed = []
    monkeypatch.setattr(process_sets.host, "follow", followed.append)
    ranks = process_sets.current_ranks()
    monkeypatch.setattr(process_sets, "_find", lambda world, comm, joins: ranks)
    world = type(ranks.world)(comm=AlikeComm(0, 2), rank=0, size=2)
    process_sets.go_on(world)
    assert process_sets.global_process_set.ranks == [0, 1]
    assert members.process_set_id is None
    assert followed == [world]


@pytest.mark.parametrize(
    ("text", "joins"),
    [
        ("import horovod.tensorflow as hvd\nhvd.join()\n", True),
        ("from horovod.tensorflow import join\n", True),
        ("import horovod.tensorflow as hvd\nos.path.join('a')  # hvd.join\n", False),
    ],
)
def test_a_script_that_joins_is_known_by_its_text(tmp_path, monkeypatch, text, joins):
    script = tmp_path / "train.py"
    script.write_text(text)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(script)))
    assert process_sets._calls_join() == joins


@pytest.mark.parametrize("recorded", [False, True])
def test_a_timeline_has_the_native_sums_since_its_start_and_leaves_them_to_a_record(tmp_path, monkeypatch, recorded):
    begin_horovod(monkeypatch)
    monkeypatch.setattr(mpi_exchange, "calls", [] if recorded else None)
    process_sets.start_timeline(str(tmp_path / "timeline.json"))
    now = clock()
    earlier, later = [now - 60, now - 59], [now + 1, now + 1.5]
    native = SimpleNamespace(take_calls=lambda: np.array([earlier, later]))
    monkeypatch.setattr(process_sets.global_process_set, "_sums", SimpleNamespace(reductions=[native]))
    process_sets.stop_timeline()
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert [(event["name"], event["dur"]) for event in events] == [("allreduce", pytest.approx(5e5))]
    assert mpi_exchange.calls == ([tuple(earlier), tuple(later)] if recorded else None)


def test_a_number_is_asked_for_whenever_a_graph_runs():
    numbers = iter(range(5))
    function = tf.function(lambda: process_sets.asked_for(lambda: next(numbers)))
    assert [int(function()) for _ in range(3)] == [0, 1, 2]
