"""Variables of all ranks are made equal to one rank's."""

import keras
import pytest
import tensorflow as tf

from harness.horovod.variables import BroadcastGlobalVariablesHook, broadcast_, broadcast_variables

pytestmark = pytest.mark.usefixtures("two_ranks")
v1 = tf.compat.v1


def test_variables_of_both_libraries_get_the_values_and_words_are_left_out():
    variables = [tf.Variable([1.0]), keras.Variable([2.0]), tf.Variable("word")]
    broadcast_variables(variables, 1)
    assert [float(value[0]) for value in broadcast_(variables[:2], 0)] == [1.0, 2.0]
    broadcast_variables([], 0)


def test_a_graphs_variables_are_broadcast_when_its_session_is_made():
    hook = BroadcastGlobalVariablesHook(0)
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=[3.0])
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(weight).tolist() == [3.0]


def test_without_a_graph_there_are_no_global_variables():
    with pytest.raises(RuntimeError):
        BroadcastGlobalVariablesHook(0).begin()
