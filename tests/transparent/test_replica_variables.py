"""The variables that must be equal on all ranks: which are remembered, compared and put back."""

import pytest
import tensorflow as tf

from harness.schema.own_code import find_policy
from harness.transparent.replica_variables import ReplicaVariables, initialised
from harness.transparent.witness import NoWitness
from tests.labs.lone_rank import lone_collectives


@pytest.fixture
def replica() -> ReplicaVariables:
    collectives = lone_collectives()
    return ReplicaVariables(collectives.world, collectives.rows, collectives, NoWitness(), find_policy("gradients"))


def test_a_variable_is_remembered_once(replica):
    first = tf.Variable(1.0)
    second = tf.Variable(2.0)
    replica.remember([first])
    replica.remember([first, second])
    assert [id(variable) for variable in replica.trained] == [id(first), id(second)]
    replica.forget()
    assert replica.trained == []


def test_nothing_is_compared_where_nothing_was_trained(replica):
    replica.add_untrained(tf.Variable(1.0))
    assert replica.verify() is None


def test_the_hash_follows_from_trained_and_untrained_variables(replica):
    weight = tf.Variable([1.0, 2.0])
    statistic = tf.Variable(3.0)
    replica.remember([weight])
    alone = replica.verify()
    replica.add_untrained(statistic)
    both = replica.verify()
    statistic.assign(4.0)
    assert len({alone, both, replica.verify()}) == 3


def test_untrained_variables_are_numbers_with_values(replica):
    number = tf.Variable(1)
    replica.add_untrained(number)
    replica.add_untrained(tf.Variable("a word"))
    assert [id(variable) for variable in replica.untrained] == [id(number)]
    assert initialised([number])


def test_a_variable_of_rows_is_known_as_long_as_it_lives(replica):
    rows = tf.Variable(tf.zeros([4, 2]))
    weight = tf.Variable(tf.zeros([4, 2]))
    replica.note_variable(rows, of_rows=True)
    replica.note_variable(weight, of_rows=False)
    assert replica.is_of_rows(rows)
    assert not replica.is_of_rows(weight)
    replica.note_variable(rows, of_rows=False)
    assert not replica.is_of_rows(rows)
