"""The state of one rank: what is noted once, counted and switched."""

import pytest
import tensorflow as tf

from harness.base.errors import UserError
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.runtime import in_dataset
from harness.transparent.witness import PeerRank
from tests.labs.alike_ranks import alike_runtime
from tests.labs.sentences import refuses


def test_a_note_is_kept_once_and_rank_0_prints_it(capsys):
    for rank, lines in ((0, 1), (1, 0)):
        runtime = alike_runtime(rank)
        runtime.compute_whole("why")
        runtime.compute_whole("why")
        assert runtime.notes == [Note(code=NoteCode.COMPUTED_WHOLE, values={"reason": "why"})]
        assert runtime.mixes
        assert len(capsys.readouterr().err.splitlines()) == lines


class LostWitness(PeerRank):
    """Rank 0 whose witness has gone."""

    def judges_next(self):
        return False


def test_a_training_that_begins_without_a_witness_is_not_divided_and_one_without_any_is():
    runtime = alike_runtime()
    assert runtime.begin_judged()  # nothing is compared, as the user has asked for
    runtime.witness = PeerRank()
    assert runtime.begin_judged()
    assert not runtime.notes
    runtime.witness = LostWitness()
    assert not runtime.begin_judged()
    assert [note.code for note in runtime.notes] == [NoteCode.NOT_DIVIDED_FROM]


@pytest.mark.parametrize(
    ("settings", "compares"), [({}, True), ({"unjudged": True}, False), ({"sync": "weights:2"}, False)]
)
def test_what_is_divided_is_compared_unless_the_user_asks_for_less(settings, compares):
    assert alike_runtime(**settings).compares_with_one_process == compares


def test_switches_are_on_within_their_block_only():
    runtime = alike_runtime()
    with runtime.quietly(), runtime.trainer():
        assert (runtime.quiet, runtime.in_trainer) == (True, True)
    assert (runtime.quiet, runtime.in_trainer) == (False, False)
    runtime.collectives.counting = True
    with runtime.fused_step(True):
        assert (runtime.fused, runtime.lean, runtime.collectives.counting) == (True, True, False)
    assert (runtime.fused, runtime.lean, runtime.collectives.counting) == (False, False, True)


def test_a_gradient_of_a_loop_makes_it_one_that_trains():
    runtime = alike_runtime()
    runtime.loop = DatasetLoop(dataset=None, lines=())
    variable = tf.Variable(1.0)
    runtime.count_step(variable)
    assert runtime.loop.trains and runtime.loop.takes_gradients
    assert runtime.loop.owners == {id(variable)}
    assert runtime.steps == 1
    assert runtime.synchronised


def test_a_script_that_was_to_see_to_its_ranks_trains_only_after_horovods_init():
    """Otherwise every rank would write the files of the one training that all of them make."""
    runtime = alike_runtime()
    runtime.sees_ranks = True
    with refuses("hvd.init()", "-n 1"):
        runtime.count_step(tf.Variable(1.0))
    assert not runtime.synchronised


def test_a_step_that_is_built_is_counted_as_traced():
    runtime = alike_runtime()

    @tf.function
    def step():
        runtime.count_step()

    step()
    assert (runtime.traced, runtime.steps) == (1, 0)
    assert not runtime.mixes


def test_a_loop_inside_a_compiled_function_is_computed_whole():
    runtime = alike_runtime()

    @tf.function
    def train(numbers):
        for _ in numbers:
            runtime.count_step()

    train(tf.data.Dataset.range(2))
    assert runtime.mixes


def test_a_loop_whose_batches_are_never_divided_is_computed_whole():
    runtime = alike_runtime()
    for _ in range(16):
        assert not runtime.mixes
        runtime.count_step()
    assert runtime.mixes


def test_epochs_are_not_seen_in_a_loop():
    runtime = alike_runtime(sync="weights:epoch")
    with runtime.trainer():
        runtime.count_step()
    with pytest.raises(UserError):
        runtime.count_step()


def test_an_owner_is_new_once():
    runtime = alike_runtime()
    owner = type("Owner", (), {})()
    assert [runtime.is_new(owner) for _ in range(2)] == [True, False]


def test_verifying_ends_a_trial_first():
    runtime = alike_runtime()
    ends = []
    runtime.at_end = lambda: ends.append(True)
    assert runtime.verify() is None
    assert ends == [True]


def test_a_graph_of_a_data_set_is_told_by_its_name():
    inside = []
    list(tf.data.Dataset.range(1).map(lambda v: inside.append(in_dataset(tf.compat.v1.get_default_graph())) or v))
    assert inside == [True]
    assert not in_dataset(tf.Graph())
