"""Calls of compiled steps: each is given this rank's part of a batch, or all of it where nothing else is right."""

import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.collectives import Scalars
from harness.transparent.compiled_steps import CompiledStep
from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.step_calls import StepCalls, indivisible
from harness.transparent.training_states import TrainingEvent
from tests.labs.alike_ranks import alike_runtime

BATCH = tf.constant([[1.0], [2.0], [3.0], [4.0]])


def step_calls(rank=0, **settings):
    runtime = alike_runtime(rank, **settings)
    ends = []
    return runtime, StepCalls(runtime, Scalars(runtime.collectives), lambda: ends.append(True)), ends


def known_step(*events):
    step = CompiledStep(function=tf.function(lambda v: v), held=())
    for event in events:
        step.note(event)
    return step


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
    seen = []

    def call(args, kwargs):
        seen.append(np.ravel(args[0]).tolist())

    step = known_step(TrainingEvent.TRAINED, TrainingEvent.INDEPENDENT)
    calls._call_with_arrays(step, call, (np.array(BATCH),), {})
    step.returns_rows = True
    calls._call_with_arrays(step, call, (np.array(BATCH),), {})
    assert seen == [[3.0, 4.0], [1.0, 2.0, 3.0, 4.0]]
    assert len(ends) == 2


def test_a_call_that_trains_nothing_leaves_the_step_idle():
    _, calls, _ = step_calls()
    step = known_step()
    assert calls._call_whole(step, lambda args, kwargs: "outcome", (BATCH,), {}, None) == "outcome"
    assert step.state is known_step(TrainingEvent.NOTHING_TRAINED).state


def test_a_step_that_takes_rows_of_the_whole_batch_is_given_all_of_them():
    _, calls, _ = step_calls(rank=1)
    loop = DatasetLoop(dataset=None, lines=(), batch=BATCH, is_divided=True)
    loop.part = calls.divide(BATCH)
    seen = []

    def call(args, kwargs):
        seen.append(len(args[0]))
        return args[0]

    mixed = known_step(TrainingEvent.TRAINED, TrainingEvent.MIXED)
    outcome = calls._call_with_part(mixed, call, (loop.part,), {}, loop)
    assert seen == [4]
    assert outcome.numpy().ravel().tolist() == [3.0, 4.0]  # rows that it returns are this rank's again
    assert loop.is_divided


def test_what_a_step_computes_of_its_part_is_completed_by_the_other_ranks():
    _, calls, _ = step_calls(rank=1)
    loop = DatasetLoop(dataset=None, lines=(), batch=BATCH)
    loop.part = calls.divide(BATCH)
    computed, number = 2 * loop.part, tf.constant(7.0)
    whole, rows, scalar = calls._completed((loop.part, computed, number), loop, 2)
    assert whole is BATCH
    assert rows.numpy().ravel().tolist() == [6.0, 8.0] * 2  # ranks that are alike
    assert scalar is number


@pytest.mark.parametrize("compiled", [False, True])
def test_the_numbers_of_a_step_are_combined_and_of_another_function_left_alone(compiled):
    runtime, calls, _ = step_calls()
    runtime.rows.set(2, (0, 4))
    function = tf.function(lambda v: v)
    function._harness_steps = compiled
    outcome = calls._stepped(lambda function, value: value, function, (tf.constant(5.0),), {}, function)
    assert float(outcome) == 5.0
    assert runtime.steps == int(compiled)
