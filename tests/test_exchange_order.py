"""Exchanges in one graph wait for each other: else one rank's weights could meet the other's loss in a sum."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from harness.transparent.collectives import Collectives
from harness.transparent.gradients import Synchroniser

tf = pytest.importorskip("tensorflow")


class Local:
    """Sums over one rank, by operations on no resource, as the native one."""

    def sum(self, tensors, scale=1.0):
        return [tf.identity(tensor) for tensor in tensors]


@pytest.fixture
def collectives(monkeypatch):
    watch = SimpleNamespace(named=lambda size, label: None, inside=lambda label, size: nullcontext())
    made = Collectives(SimpleNamespace(size=2), SimpleNamespace(even=True, given=lambda rows: nullcontext()), watch)
    monkeypatch.setattr(made, "_group", lambda size: Local())
    return made


def waits_for(later, earlier):
    """Return whether `later` can only run after `earlier`."""
    seen, left = set(), [later]
    while left:
        operation = left.pop()
        if operation is earlier:
            return True
        if operation.name not in seen:
            seen.add(operation.name)
            left += [*operation.control_inputs, *(tensor.op for tensor in operation.inputs)]
    return False


def test_a_sum_waits_for_the_one_built_before_it(collectives):
    @tf.function
    def step(x, y):
        (first,), (second,) = collectives.sum([x], "first"), collectives.sum([y], "second")
        assert waits_for(second.op, first.op) and not waits_for(first.op, second.op)
        return first + second

    assert float(step(tf.constant(1.0), tf.constant(2.0))) == 3.0


def test_a_reported_loss_waits_for_the_weights_of_every_fourth_step(collectives):
    sync = SimpleNamespace(what="weights", every=4)
    runtime = SimpleNamespace(sync=sync, collectives=collectives, rows=collectives.rows)
    synchroniser, variable = Synchroniser(runtime), tf.Variable(1.0)

    @tf.function
    def step(loss):
        synchroniser.after_step(step, [variable])
        (mean,) = collectives.mean([loss], "reported numbers")
        branches = [op for op in mean.graph.get_operations() if op.type in ("If", "StatelessIf")]
        assert branches and all(waits_for(mean.op, branch) for branch in branches)
        return mean

    assert float(step(tf.constant(2.0))) == 2.0
