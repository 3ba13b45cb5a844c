"""Compiled steps are told apart by their function and by what of their arguments is no tensor."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from harness.transparent.compiled_steps import CompiledStep, CompiledSteps, as_tensors, rows_in
from harness.transparent.training_states import TrainingState
from tests.labs.alike_ranks import alike_runtime

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
    assert step.is_fixed
    assert step.state is TrainingState.WHOLE
    assert runtime.mixes


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
