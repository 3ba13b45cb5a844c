"""A training step: its loss, and the weights of one that XLA compiles."""

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness.comm.reduction import BridgeReduction
from harness.comm.synchroniser import Synchroniser
from harness.models.global_batch_layers import BatchPart
from harness.schema.presets import resolve
from harness.schema.sync_policies import Gradients, NoSync, SyncPolicy
from harness.train.optimizer import build_optimizer
from harness.train.step import TrainState, row_losses, smooth, train_step
from tests.labs.communicators import Alone

BATCH_ROWS = 8
STEPS = 3
EXCHANGES = ("Harness", "PyFunc", "EagerPyFunc", "_Send", "_Recv")


def test_smoothed_loss_is_the_cross_entropy_of_the_smoothed_labels():
    logits = tf.constant(np.random.default_rng(0).normal(size=(5, 4)), tf.float32)
    labels = tf.constant([0, 1, 2, 3, 0])
    targets = tf.one_hot(labels, 4) * 0.9 + 0.1 / 4
    expected = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
    found = smooth(row_losses("cross-entropy", labels, logits), logits, 0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class Averages(BridgeReduction):
    """Sums of one rank, which are the gradients themselves."""

    def sum(self, tensors: list[tf.Tensor], scale: float = 1.0, label: str = "sum") -> list[tf.Tensor]:
        return [tf.identity(tensor) for tensor in tensors]


def trained(
    *, compiled: bool, policy: SyncPolicy, optimizer: str, precision: str = "float32"
) -> tuple[list[np.ndarray], list[str], TrainState]:
    """Return weights after `STEPS` steps, the types of the operations of a step's graph, and the state."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Input((6, 6, 1)),
        keras.layers.Conv2D(4, 3, activation="relu", dtype=precision),
        keras.layers.Flatten(),
        keras.layers.Dense(3, dtype=precision),
    ]
    model = keras.Sequential(layers)
    workload = resolve(dataset="mnist", model="dnn", optimizer=optimizer, learning_rate=0.01, precision=precision)
    made = build_optimizer(workload, steps_per_epoch=STEPS, ranks=1)
    made.build(model.trainable_variables)
    state = TrainState(
        model=model,
        optimizer=made,
        loss="cross-entropy",
        synchroniser=Synchroniser(policy=policy, reduction=Averages(Alone()), weight=1.0),
        part=BatchPart(),
        xla=compiled,
        xla_draw=compiled,
        xla_update=compiled,
    )
    rows = tf.constant(np.random.default_rng(2).normal(size=(4 * BATCH_ROWS, 6, 6, 1)).astype(np.float32))
    labels = tf.constant(np.arange(4 * BATCH_ROWS, dtype=np.int32) % 3)
    step = tf.function(stepping(state, rows, labels), autograph=False)
    order = np.random.default_rng(3).permutation(4 * BATCH_ROWS).astype(np.int32)
    for number in range(STEPS):
        step(tf.constant(order[number * BATCH_ROWS : (number + 1) * BATCH_ROWS]))
    graph = step.get_concrete_function(tf.TensorSpec([BATCH_ROWS], tf.int32)).graph
    return [weight.numpy() for weight in model.weights], [op.type for op in graph.get_operations()], state


def stepping(state: TrainState, rows: tf.Tensor, labels: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    def step(numbers: tf.Tensor) -> tf.Tensor:
        return train_step(
            state, lambda: (tf.gather(rows, numbers), tf.gather(labels, numbers)), range(BATCH_ROWS), BATCH_ROWS
        )

    return step


@pytest.mark.slow  # XLA compiles
@pytest.mark.parametrize("policy", [NoSync(), Gradients()])
@pytest.mark.parametrize(
    ("optimizer", "precision"), [("momentum", "float32"), ("adam", "float32"), ("sgd", "mixed_float16")]
)
def test_a_step_that_xla_compiles_makes_the_same_weights(policy: SyncPolicy, optimizer: str, precision: str) -> None:
    plain, _, counted = trained(compiled=False, policy=policy, optimizer=optimizer, precision=precision)
    compiled, types, state = trained(compiled=True, policy=policy, optimizer=optimizer, precision=precision)
    tolerance = 1e-5 if precision == "float32" else 2e-3
    for weight, expected in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=tolerance, atol=tolerance)
    assert state.flops.per_row == counted.flops.per_row > 0
    calls = types.count("StatefulPartitionedCall") + types.count("PartitionedCall")
    assert calls == (1 if isinstance(policy, NoSync) else 2)  # one cluster, or one before the sum and one after it


@pytest.mark.slow  # XLA compiles
def test_a_step_of_one_rank_has_no_exchange_and_no_way_through_the_host() -> None:
    for compiled in (False, True):
        _, types, _ = trained(compiled=compiled, policy=NoSync(), optimizer="momentum")
        assert not [kind for kind in types if kind.startswith(EXCHANGES)]
