"""Loops over a data set: the first batch comes whole, later ones are of the trial and then divided."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.collectives import Scalars
from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.divided_loops import (
    TRANSITIONS,
    CompiledStep,
    CompiledSteps,
    Loops,
    LoopTrial,
    StepCalls,
    TrainingEvent,
    TrainingState,
    advance,
    as_tensors,
    indivisible,
    rows_in,
)
from harness.transparent.divided_random_numbers import ScriptDraws
from harness.transparent.patch import Refused, put_back
from tests.labs.alike_ranks import alike_runtime
from tests.labs.replacements import installed


class Script:
    """A script's loop on one of two ranks: batches of 4 rows, of which `take` yields the next as the rank gets it."""

    def __init__(self, rank=1, **settings):
        self.runtime = alike_runtime(rank, **{"batch": "global", **settings})
        self.loops = Loops(self.runtime, Scalars(self.runtime.collectives))
        self.loops.install()
        self.dataset = tf.data.Dataset.range(40).batch(4)
        self.begin()

    def begin(self):
        """Go through the data set from its beginning, at the lines from which this is called."""
        self.iterator = iter(self.dataset)

    @property
    def loop(self):
        return self.runtime.loop

    def take(self):
        batch = next(self.iterator)
        with self.runtime.quietly():  # a script that takes its rows out of TensorFlow gets whole batches
            return batch.numpy().tolist()

    def train(self):
        """Make a step of a compiled function that is known to be divisible."""
        self.runtime.count_step()


@pytest.fixture(autouse=True)
def original_functions():
    """TensorFlow's own are put back after each test."""
    yield
    put_back()


def test_a_loop_that_does_not_train_gets_whole_batches():
    script = Script()
    assert [script.take() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert not script.loop.trains


def test_a_loop_is_divided_from_its_second_batch_on():
    script = Script()
    assert script.take() == [0, 1, 2, 3]
    script.train()
    assert script.take() == [6, 7]
    assert script.loop.is_divided
    assert script.runtime.divided == 1


def test_the_same_lines_over_the_same_data_are_divided_from_the_first_batch_on():
    script = Script()
    first_batches = []
    for _ in range(2):
        script.begin()
        first_batches.append(script.take())
        script.train()
        script.take()
        script.train()
    assert first_batches == [[0, 1, 2, 3], [2, 3]]


def test_a_batch_per_rank_is_made_of_as_many_of_the_scripts_batches():
    script = Script(batch="per-rank")
    script.take()
    script.train()
    assert script.take() == [8, 9, 10, 11]


def test_what_is_made_meanwhile_is_observed_with_a_whole_batch():
    script = Script()
    script.take()
    script.train()
    script.take()
    script.runtime.generation += 1  # another model, say
    assert script.take() == [8, 9, 10, 11]


def test_rows_of_a_ranks_own_are_not_divided():
    script = Script()
    script.runtime.own_rows.present = True
    assert script.take() == [0, 1, 2, 3]
    assert not script.loop.is_divided


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loop_that_takes_gradients_itself_has_a_trial(rank):
    script = Script(rank)
    variable = tf.Variable(1.0)
    script.take()
    script.runtime.count_step(variable)
    rows = [4, 5, 6, 7]
    assert script.take() == (rows + rows if rank else rows)  # every row twice where the step does not count
    assert script.runtime.collectives.trial.goes_on
    script.loops.end_trial()
    assert not script.runtime.collectives.trial.goes_on


def test_a_line_that_trains_no_more_is_refused_at_its_second_part():
    script = Script()
    for trains in (True, False):
        script.begin()
        script.take()
        if trains:
            script.train()
            script.take()
            script.train()
        else:
            with pytest.raises(Refused):
                script.take()


def test_numbers_that_the_script_takes_out_are_weighted_by_rows():
    script = Script()
    script.take()
    script.train()
    script.take()
    gathered = [(1.0, 1.0), (4.0, 2.0)]
    script.runtime.collectives.gather = lambda value, label: gathered
    agreed = tf.constant(4.0).numpy()
    assert agreed == 3.0
    assert agreed.dtype == np.float32
    assert tf.constant(False).numpy() is np.bool_(True)  # rank 0's


def test_a_trial_goes_from_state_to_state():
    trial = LoopTrial()
    assert trial.state is TrainingState.UNKNOWN
    trial.note(TrainingEvent.TRAINED)
    trial.note(TrainingEvent.INDEPENDENT)
    assert trial.state is TrainingState.DIVIDED


# Calls of compiled steps: each is given this rank's part of a batch, or all of it where nothing else is right.

BATCH = tf.constant([[1.0], [2.0], [3.0], [4.0]])


def step_calls(rank=0, **settings):
    runtime = alike_runtime(rank, **settings)
    ends = []
    return runtime, StepCalls(runtime, Scalars(runtime.collectives), lambda: ends.append(True)), ends


def known_step(calls, batch, *events):
    """Return a compiled function, and what `calls` knows of it after `events`: it trains on batches like `batch`."""
    function = tf.function(lambda v: v)
    step = calls.steps.find(function, (batch,), {})
    for event in events:
        step.note(event)
    return function, step


def test_a_rank_has_its_rows_and_their_place():
    runtime, calls, _ = step_calls(rank=1)
    assert calls.divide(BATCH).numpy().ravel().tolist() == [3.0, 4.0]
    runtime.rows.present_rows = 2
    place = runtime.rows.place()
    assert (float(place.first), float(place.rows), float(place.total)) == (2.0, 2.0, 4.0)
    assert runtime.divided == 1


def test_a_batch_of_parts_with_other_lengths_is_not_divided():
    assert not indivisible(BATCH)
    assert indivisible(tf.constant(1.0))
    assert indivisible((BATCH, BATCH[:2]))


def test_arrays_are_divided_for_a_step_that_is_known_to_be_divisible():
    _, calls, ends = step_calls(rank=1)
    array = np.array(BATCH)
    function, step = known_step(calls, array, TrainingEvent.TRAINED, TrainingEvent.INDEPENDENT)
    seen = []

    def original(function, rows):
        seen.append(np.ravel(rows).tolist())

    calls.call(original, function, array)
    step.returns_rows = True
    calls.call(original, function, array)
    assert seen == [[3.0, 4.0], [1.0, 2.0, 3.0, 4.0]]
    assert len(ends) == 2


@pytest.mark.parametrize(("rank", "counted"), [(0, 4.0), (1, 0.0)])
def test_arrays_of_which_every_rank_computes_all_rows_count_as_many_as_one_process_has(rank, counted):
    """The witness is compared in their number."""
    runtime, calls, _ = step_calls(rank=rank)
    array = np.array(BATCH)
    function, _ = known_step(calls, array, TrainingEvent.TRAINED, TrainingEvent.MIXED)
    seen = []
    calls.call(lambda function, rows: seen.append(float(runtime.rows.weight())), function, array)
    assert seen == [counted]
    assert float(runtime.rows.weight()) == runtime.rows.default


def test_a_call_that_trains_nothing_leaves_the_step_idle():
    _, calls, _ = step_calls()
    function, step = known_step(calls, BATCH)
    assert calls.call(lambda function, rows: "outcome", function, BATCH) == "outcome"
    assert step.state is TrainingState.IDLE


def test_a_step_that_takes_rows_of_the_whole_batch_is_given_all_of_them():
    """What it computes of its part is completed by the other ranks, which are alike."""
    runtime, calls, _ = step_calls(rank=1)
    runtime.loop = loop = DatasetLoop(dataset=None, lines=(), batch=BATCH, is_divided=True)
    loop.part = calls.divide(BATCH)
    rows = (loop.part, 2 * loop.part, tf.constant(7.0))
    function, _ = known_step(calls, rows, TrainingEvent.TRAINED, TrainingEvent.MIXED)
    seen = []

    def original(function, rows):
        seen.extend(rows)
        return rows[0]

    outcome = calls.call(original, function, rows)
    whole, computed, scalar = seen
    assert whole is BATCH
    assert computed.numpy().ravel().tolist() == [6.0, 8.0] * 2
    assert float(scalar) == 7.0
    assert outcome.numpy().ravel().tolist() == [3.0, 4.0]  # rows that it returns are this rank's again
    assert loop.is_divided


@pytest.mark.parametrize("trains", [False, True])
def test_the_numbers_of_a_step_are_combined_and_of_another_function_left_alone(trains):
    script = Script(rank=0)

    @tf.function
    def step(value):
        script.runtime.traced += trains  # as when an optimizer's step is traced
        return value

    assert float(step(tf.constant(5.0))) == 5.0
    assert script.runtime.steps == int(trains)


# Compiled steps are told apart by their function and by what of their arguments is no tensor.

X = np.ones((12, 3), np.float32)


def test_another_model_makes_another_step_and_another_batch_does_not():
    steps, function = CompiledSteps(SimpleNamespace()), tf.function(lambda model, v, late=False: v)
    first, second = object(), object()
    found = [
        steps.find(function, (first, X), {}),
        steps.find(function, (first, tf.constant(X[:3])), {}),
        steps.find(function, (second, X), {}),
        steps.find(function, (first, X), {"late": True}),
        steps.find(function, (first, X), {"late": 1}),
    ]
    assert found[0] is found[1]
    assert len(set(found)) == 4


def test_a_step_of_a_fixed_number_of_rows_is_whole():
    runtime = alike_runtime()
    function = tf.function(lambda v: v, input_signature=[tf.TensorSpec(X.shape)])
    function(X)
    step = CompiledStep(function=function, held=())
    assert CompiledSteps(runtime).probe(step, (X,), {})
    assert step.why_whole
    assert step.state is TrainingState.WHOLE
    assert runtime.mixes


def test_a_step_that_draws_what_is_not_of_single_rows_is_whole_without_a_probe():
    runtime = alike_runtime()
    with installed(ScriptDraws(runtime)):
        function = tf.function(lambda v: v + tf.random.gamma([], 1.0))
        function(X)
    step = CompiledStep(function=function, held=())
    assert CompiledSteps(runtime).probe(step, (X,), {})
    assert step.state is TrainingState.WHOLE


def test_a_step_without_a_batch_or_a_graph_cannot_be_probed():
    steps = CompiledSteps(alike_runtime())
    function = tf.function(lambda v: v)
    step = CompiledStep(function=function, held=())
    assert not steps.probe(step, (X,), {})
    function(X)
    assert not steps.probe(step, (3.0,), {})
    assert step.state is TrainingState.UNKNOWN


def test_where_weights_are_averaged_every_step_is_divided_unprobed():
    function = tf.function(lambda v: v)
    function(X)
    step = CompiledStep(function=function, held=())
    assert CompiledSteps(alike_runtime(sync="weights:2")).probe(step, (X,), {})
    assert step.state is TrainingState.DIVIDED


def test_a_step_that_has_returned_rows_is_known_to():
    step = CompiledStep(function=None, held=())
    step.note_outcome({"loss": tf.constant(1.0)})
    assert not step.returns_rows
    step.note_outcome((tf.constant(1.0), tf.ones([2])))
    assert step.returns_rows


def test_the_rows_of_a_batch_are_those_of_its_tensors():
    assert rows_in((tf.ones([4, 2]), {"y": tf.ones([3])}, tf.constant(1.0), "word")) == {3, 4}
    assert rows_in(X) == set()
    assert rows_in(as_tensors([X])) == {12}


# The states of a training: each is reached, the last ones are left by nothing.


def test_every_state_is_reached_and_the_last_ones_are_left_by_nothing():
    reached = {TrainingState.UNKNOWN}
    for _ in TrainingState:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(TrainingState)
    last = set(TrainingState) - {before for before, _ in TRANSITIONS}
    assert last == {TrainingState.WHOLE, TrainingState.REFUSED}
    assert {event for _, event in TRANSITIONS} == set(TrainingEvent)


def test_nothing_is_divided_without_a_probe_where_gradients_are_shared():
    for (before, event), after in TRANSITIONS.items():
        if after is TrainingState.DIVIDED and event is not TrainingEvent.NOT_SHARED:
            assert before is TrainingState.PROBED


def test_the_documentation_shows_the_table():
    page = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
    section = page.partition("## How a script's training is divided")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| ([a-z ]+): (.*) \| (\w+) \|$", section, re.MULTILINE)
    documented = {
        (TrainingState(before), TrainingEvent[event.replace(" ", "_").upper()]): TrainingState(after)
        for before, event, _, after in rows
    }
    assert documented == TRANSITIONS
    assert all(TrainingEvent[event.replace(" ", "_").upper()].value == meaning for _, event, meaning, _ in rows)


def test_what_cannot_happen_is_a_mistake():
    with pytest.raises(KeyError):
        advance(TrainingState.DIVIDED, TrainingEvent.MIXED)


def calls_at_once(change, **settings):
    """Return how many elements a parallel map by `change` makes at once."""
    Script(**settings)
    mapped = tf.data.Dataset.range(4).map(change, num_parallel_calls=2)
    put_back()
    return int(mapped._num_parallel_calls)


def test_a_map_that_draws_makes_one_element_at_a_time_where_one_process_is_to_draw_the_same():
    def draw(number):
        return tf.random.normal([2])

    assert calls_at_once(draw) == 1
    assert calls_at_once(lambda number: tf.function(draw)(number)) == 1
    assert calls_at_once(lambda number: number + 1) == 2
    assert calls_at_once(draw, unjudged=True) == 2


def test_a_loop_whose_trial_would_show_nothing_gets_whole_batches():
    script = Script()
    script.take()
    script.runtime.count_step(tf.Variable(1.0))
    script.loop.why_untried = "it draws"
    assert script.take() == [4, 5, 6, 7]
    assert script.runtime.mixes
    assert not script.runtime.collectives.trial.goes_on
