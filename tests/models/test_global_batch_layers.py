"""What layers do on several ranks: here ranks are threads, which meet where MPI's would."""

import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness import models
from harness.datasets.shards import Shards
from harness.models.global_batch_layers import BatchPart, divide_randomness, normalisations, row_means, synchronise
from harness.train.replica import own_statistics
from harness.train.step import TrainState, train_step

FEATURES, CLASSES, MOST = 6, 3, 70


class Meeting:
    """Sums over ranks that are threads; a rank that does not come breaks it."""

    def __init__(self, ranks):
        self.barrier = threading.Barrier(ranks, timeout=120)
        self.values = [None] * ranks

    def total(self, rank):
        """Return the differentiable sum as rank `rank` calls it."""

        def add(vector):
            self.values[rank] = vector
            self.barrier.wait()
            total = tf.add_n(self.values)
            self.barrier.wait()
            return total

        return tf.custom_gradient(lambda vector: (add(vector), add))


class Taken:
    """A synchroniser that takes the gradients down and applies none."""

    updater = None

    def divisor(self, local_rows, global_rows):
        return global_rows

    def gradients(self, gradients):
        self.gradients_taken = [gradient.numpy() for gradient in gradients]
        return [tf.zeros_like(gradient) for gradient in gradients]


def network(normalised, dropped=0.0):
    keras.utils.set_random_seed(0)
    stages = [keras.layers.Dense(5)]
    if normalised:
        stages.append(keras.layers.BatchNormalization(momentum=0.5))
    if dropped:
        stages.append(keras.layers.Dropout(dropped))
    return keras.Sequential([keras.Input((FEATURES,)), *stages, keras.layers.ReLU(), keras.layers.Dense(CLASSES)])


def step(rows, ranks, *, normalised, dropped=0.0, synchronised=False):
    """Make one step on a partial batch; return every rank's loss, gradients and statistics before and after."""
    shards = Shards(rows=rows, batch=MOST + 1, ranks=ranks)
    data = np.random.default_rng(rows)
    inputs, labels = data.normal(3, 1, (rows, FEATURES)).astype(np.float32), data.integers(0, CLASSES, rows)
    meeting = Meeting(ranks)

    def run(rank, model):
        part, taken = BatchPart(), Taken()
        divide_randomness(model, part, rank)
        if synchronised:
            synchronise(model, row_means(meeting.total(rank), part))
        state = TrainState(
            model=model,
            optimizer=keras.optimizers.SGD(0.1),
            loss="cross-entropy",
            synchroniser=taken,
            part=part,
            statistics=() if synchronised else own_statistics(model),
        )
        before = [variable.numpy() for variable in own_statistics(model)]
        local = shards.partial(rank)
        own = slice(local.start, local.stop)
        batch = (tf.constant(inputs[own]), tf.constant(labels[own], tf.int32))
        loss = train_step(state, lambda: batch, local, rows)
        after = [variable.numpy() for variable in own_statistics(model)]
        return float(loss), taken.gradients_taken, before, after

    replicas = [network(normalised, dropped) for _ in range(ranks)]
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, range(ranks), replicas)), [len(shards.partial(rank)) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("normalised", "dropped"),
    [pytest.param(False, 0.0, marks=pytest.mark.slow), pytest.param(False, 0.5, marks=pytest.mark.slow), (True, 0.5)],
)
@pytest.mark.parametrize(("rows", "ranks"), [(1, 4), (2, 3), (37, 2), (MOST, 4)])
def test_a_partial_batch_gives_the_gradients_of_one_rank(normalised, dropped, rows, ranks):
    """Ranks without rows add zeros, and nothing to synchronised normalisation; dropout drops what one rank drops."""
    ((loss, whole, _, statistics),), _ = step(rows, 1, normalised=normalised, dropped=dropped)
    found, parts = step(rows, ranks, normalised=normalised, dropped=dropped, synchronised=normalised)
    assert sum(part[0] for part in found) == pytest.approx(loss, rel=1e-4, abs=1e-5)
    for index, gradient in enumerate(whole):
        np.testing.assert_allclose(sum(part[1][index] for part in found), gradient, rtol=1e-3, atol=1e-5)
    for part, own_rows in zip(found, parts, strict=True):
        for mine, expected in zip(part[3], statistics, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)
        if not own_rows:
            assert not any(gradient.any() for gradient in part[1])


@pytest.mark.parametrize(("rows", "ranks"), [(1, 4), (3, 2), (MOST, 3)])
def test_a_rank_without_rows_has_finite_zeros_and_its_statistics_stay(rows, ranks):
    found, parts = step(rows, ranks, normalised=True)
    for (loss, gradients, before, after), own_rows in zip(found, parts, strict=True):
        assert np.isfinite([loss, *(np.abs(gradient).max() for gradient in gradients)]).all()
        assert np.isfinite(np.concatenate(after)).all()
        if not own_rows:
            assert loss == 0.0
            assert not any(gradient.any() for gradient in gradients)
            for old, new in zip(before, after, strict=True):
                np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("name", ["alexnet", "resnet50"])
def test_networks_of_images_do_with_no_rows(name):
    """TensorFlow's own convolutions abort the process on no rows."""
    model = models.build_network(name, dataset="imagenet", features=(32, 32, 3), classes=2, init="glorot")
    taken = Taken()
    state = TrainState(
        model=model,
        optimizer=keras.optimizers.SGD(0.1),
        loss="cross-entropy",
        synchroniser=taken,
        part=BatchPart(),
        statistics=own_statistics(model),
    )
    loss = train_step(state, lambda: (tf.zeros([0, 32, 32, 3]), tf.zeros([0], tf.int32)), range(0), 1)
    assert float(loss) == 0.0
    assert not any(gradient.any() for gradient in taken.gradients_taken)


def test_synchronised_normalisation_keeps_the_networks_weights():
    """ResNet-50's zero scales, among others: residual blocks begin as the identity."""
    model = models.build_network("resnet50", dataset="imagenet", features=(32, 32, 3), classes=2, init="glorot")
    before = model.get_weights()
    synchronise(model, row_means(lambda vector: vector, BatchPart(rows=1)))
    assert len(normalisations(model)) == 53
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_synchronised_moments_keep_their_digits_where_means_are_large():
    """Two ranks' columns of mean 10,000 and spread 1: squares of float32 have no digit of the variance left."""
    rows = np.random.default_rng(0).normal(10_000, 1, (64, 4)).astype(np.float32)
    meeting = Meeting(2)

    def run(rank):
        layer = keras.layers.BatchNormalization(momentum=0.0)
        model = keras.Sequential([keras.Input((4,)), layer])
        synchronise(model, row_means(meeting.total(rank), BatchPart(rows=32)))
        model(rows[32 * rank : 32 * rank + 32], training=True)
        return layer.moving_variance.numpy()

    with ThreadPoolExecutor(2) as pool:
        for variance in pool.map(run, range(2)):
            np.testing.assert_allclose(variance, rows.astype(np.float64).var(axis=0), rtol=2e-3)


def masks(first, inputs, steps=3):
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input(inputs.shape[1:]), keras.layers.Dropout(0.5)])
    part = BatchPart(first=first, rows=len(inputs))
    divide_randomness(model, part, rank=int(first > 0))
    return np.stack([model(inputs, training=True) for _ in range(steps)])


@pytest.mark.parametrize("units", [(40,), (3, 3, 5)])
def test_dropout_of_a_part_of_the_batch_is_the_part_of_the_whole_batchs(units):
    rows = np.ones((6, *units), np.float32)
    whole = masks(0, rows)
    parts = [masks(first, rows[first : first + 2]) for first in (0, 2, 4)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    assert set(np.unique(whole)) == {0.0, 2.0}
    assert 0.4 < (whole == 0).mean() < 0.6
    assert not np.array_equal(whole[0], whole[1])
    assert not np.array_equal(whole[:, 0], whole[:, 1])


def test_other_random_layers_draw_different_numbers_on_every_rank():
    def noise(rank):
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((50,)), keras.layers.GaussianNoise(1.0)])
        divide_randomness(model, BatchPart(), rank)
        return np.array(model(np.zeros((2, 50), np.float32), training=True))

    np.testing.assert_array_equal(noise(0), noise(0))
    assert abs(noise(0) - noise(1)).min() > 0
