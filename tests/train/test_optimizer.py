"""The fused updates are Keras's own, to rounding."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

from harness.comm.native_library import find_library
from harness.comm.native_reduction import NativeReduction
from harness.comm.reduction import BridgeReduction
from harness.comm.synchroniser import Synchroniser
from harness.schema.message_cost import Algorithm
from harness.schema.presets import resolve
from harness.schema.sync_policies import NoSync
from harness.train.optimizer import FusedAdam, FusedMomentum, FusedSGD, build_optimizer, learning_rate
from harness.train.step import sum_and_update

STEPS = 30


def train(optimizer: keras.optimizers.Optimizer) -> np.ndarray:
    """Return a vector after some steps of a compiled loop with made gradients of many sizes."""
    variable = keras.Variable(np.linspace(-1, 1, 50, dtype=np.float32))
    optimizer.build([variable])
    random = np.random.default_rng(0)
    gradients = tf.constant(random.normal(size=(STEPS, 50)) * 10.0 ** random.integers(-6, 3, (STEPS, 50)), tf.float32)

    @tf.function
    def loop():
        for index in tf.range(STEPS):
            optimizer.apply([gradients[index]], [variable])

    loop()
    return variable.numpy()


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize(
    ("name", "keras_class"),
    [
        ("sgd", keras.optimizers.SGD),
        ("momentum", lambda rate: keras.optimizers.SGD(rate, momentum=0.9)),
        ("adam", keras.optimizers.Adam),
    ],
)
def test_fused_updates_are_those_of_keras(name, keras_class, schedule):
    workload = resolve(dataset="mnist", model="dnn", optimizer=name, learning_rate=0.01, schedule=schedule, epochs=1)
    rate = keras.optimizers.schedules.CosineDecay(0.01, decay_steps=STEPS) if schedule == "cosine" else 0.01
    ours, theirs = train(build_optimizer(workload, steps_per_epoch=STEPS, ranks=1)), train(keras_class(rate))
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
    assert np.abs(ours - np.linspace(-1, 1, 50)).max() > 0.01


SETTINGS = {
    "weight_decay": {"weight_decay": 0.1},
    "clipnorm": {"clipnorm": 0.2},
    "clipvalue": {"clipvalue": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.2},
    "use_ema": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    "loss_scale_factor": {"loss_scale_factor": 8.0},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 3},
}
ATTRIBUTES = {"constraint": keras.constraints.MaxNorm(0.2), "overwrite_with_gradient": True, "trainable": False}
RULES = {
    "sgd": (FusedSGD, keras.optimizers.SGD),
    "momentum": (FusedMomentum, lambda rate: keras.optimizers.SGD(rate, momentum=0.9)),
    "adam": (FusedAdam, keras.optimizers.Adam),
}


class ClimbingSGD(FusedSGD):
    """An optimizer of the user's own that makes another step."""

    def update_step(self, gradient, variable, learning_rate):
        variable.assign_add(learning_rate * gradient)


@pytest.fixture
def alone():
    """Return what updates the weights of one rank by its own gradients, in the native operation."""
    from mpi4py import MPI

    if not MPI.Is_initialized():  # a test before this one built the native operation, which asks MPI for its name only
        MPI.Init()
    answer = find_library()
    assert answer.library, answer.missing_because
    native = NativeReduction(MPI.COMM_SELF, answer.library, largest=0, algorithm=Algorithm.MESSAGES)
    return Synchroniser(policy=NoSync(), reduction=BridgeReduction(MPI.COMM_SELF), weight=1.0, own_updates=native)


def weights_after(make, apply, settings=None, attributes=None, dtype="float32"):
    """Return the weights after 4 steps of an optimizer with these settings on variables with these attributes.

    It was built with one more variable, before them, that was frozen since.
    """
    variables = [keras.Variable(np.linspace(-1, 2, 12).reshape(4, 3), dtype=dtype) for _ in range(3)]
    for name, value in (attributes or {}).items():
        for variable in variables[1:]:
            setattr(variable, name, value)
    optimizer = make(0.01)
    for name, value in (settings or {}).items():
        setattr(optimizer, name, value)
    optimizer.build(variables)
    optimizer.apply([place + tf.ones_like(each.value) for place, each in enumerate(variables)], variables)
    for seed in range(4):
        gradient = tf.constant(np.random.default_rng(seed).normal(size=(4, 3)), dtype)
        apply(optimizer, [gradient, -gradient], variables[1:])
    return np.concatenate([np.asarray(tf.cast(variable.value, tf.float64)).ravel() for variable in variables])


def test_every_setting_of_keras_that_an_optimizer_takes_is_among_those_compared():
    compared = {*SETTINGS, *SETTINGS["use_ema"], "learning_rate", "name", "self", "kwargs"}
    assert set(inspect.signature(BaseOptimizer.__init__).parameters) == compared


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("changed", ["nothing", *SETTINGS, *ATTRIBUTES, "bfloat16"])
def test_an_update_in_the_sum_is_that_of_keras_whatever_is_set(alone, rule, changed):
    ours, theirs = RULES[rule]
    options = {
        "settings": SETTINGS.get(changed),
        "attributes": {changed: ATTRIBUTES[changed]} if changed in ATTRIBUTES else None,
        "dtype": "bfloat16" if changed == "bfloat16" else "float32",
    }
    found = weights_after(ours, lambda optimizer, *pair: sum_and_update(optimizer, alone, *pair), **options)
    expected = weights_after(theirs, lambda optimizer, *pair: optimizer.apply(*pair), **options)
    tolerance = 0.02 if changed == "bfloat16" else 2e-6
    assert found == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_a_step_of_the_users_own_is_made(alone):
    climbs, falls = (
        weights_after(make, lambda optimizer, *pair: sum_and_update(optimizer, alone, *pair))
        for make in (ClimbingSGD, FusedSGD)
    )
    assert (climbs + falls) / 2 == pytest.approx(np.tile(np.linspace(-1, 2, 12), 3), abs=1e-6)
    assert np.abs(climbs - falls).max() > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_an_update_of_float64_in_the_sum_has_all_its_digits(alone, rule):
    steps = (
        lambda optimizer, *pair: sum_and_update(optimizer, alone, *pair),
        lambda optimizer, *pair: optimizer.apply(*pair),
    )
    found, expected = (weights_after(RULES[rule][0], apply, dtype="float64") for apply in steps)
    assert found == pytest.approx(expected, rel=0, abs=1e-14)


def rates(steps, *, ranks, **settings):
    workload = resolve(dataset="imagenet", model="resnet50", **settings)
    rate = learning_rate(workload, steps_per_epoch=10, ranks=ranks)
    return [float(rate(tf.constant(step))) for step in steps] if callable(rate) else rate


def test_papers_rate_falls_by_its_factor_every_step():
    found = rates([0, 1, 1000], ranks=4, preset="matex-imagenet")
    assert found == pytest.approx([0.02, 0.02 * 0.999964, 0.02 * 0.999964**1000], rel=1e-5)


def test_linear_scaling_warms_up_from_the_rate_of_one_rank():
    settings = {"epochs": 4, "warmup_epochs": 2, "learning_rate": 0.1, "rate_scaling": "linear"}
    found = rates([0, 10, 20, 35], ranks=8, schedule="constant", **settings)
    assert found == pytest.approx([0.1, 0.45, 0.8, 0.8])
    assert rates([0], ranks=1, schedule="constant", **settings) == 0.1
    cosine = rates([20, 30, 40], ranks=8, schedule="cosine", **settings)
    assert cosine == pytest.approx([0.8, 0.4, 0.0], abs=1e-6)
