"""Before a script runs all ranks have one seed, also whenever the script seeds again."""

import random
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness.base.errors import UserError
from harness.transparent import install
from harness.transparent.fused import Fusion
from harness.transparent.install import AgreedSeeding, common_seed, fuse_alone, same_randomness
from harness.transparent.patch import HorovodScript, Refused, put_back
from harness.transparent.run_settings import RunSettings
from tests.labs.alike_ranks import alike_runtime
from tests.labs.sentences import refuses


@pytest.fixture
def generators(monkeypatch):
    """Python's and NumPy's functions are put back after the test."""
    state = random.getstate()
    for owner, name in ((random, "seed"), (np.random, "seed"), (np.random, "default_rng")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    yield
    random.setstate(state)


def agree(value):
    """Stand for a rank that gets what rank 0 has given: 5, or a seed."""
    return 5


def test_all_ranks_have_rank_0s_seed():
    assert common_seed(agree) == 5
    assert 0 <= common_seed(lambda value: value) < 2**31


def test_a_script_that_seeds_gets_rank_0s_seed(generators):
    same_randomness(agree, 1)
    random.seed(99)
    drawn = random.random()
    assert drawn == random.Random(5).random()
    np.random.seed(99)
    assert np.random.uniform() == np.random.RandomState(5).uniform()
    assert np.random.default_rng(99).random() == np.random.Generator(np.random.PCG64(5)).random()


def test_a_seed_of_the_operating_system_follows_from_the_common_one(generators):
    same_randomness(agree, 1)
    first = [np.random.default_rng().random() for _ in range(2)]
    same_randomness(agree, 1)
    assert first[0] != first[1]


def test_a_child_and_a_thread_seed_for_themselves():
    seeds = []
    seeding = AgreedSeeding(agree, 1, seeds.append)
    thread = threading.Thread(target=seeding, args=(7,))
    thread.start()
    thread.join()
    seeding(8)
    seeding.enter_child()
    seeding(9)
    assert seeds == [7, 5, 9]


def test_horovods_script_seeds_for_itself(monkeypatch):
    seeds = []
    seeding = AgreedSeeding(agree, 1, seeds.append)
    monkeypatch.setattr(HorovodScript, "active", True)
    seeding(7)
    seeding.undo()
    assert seeds[0] == 7
    assert len(seeds) == 2  # each rank has another, as the script has given none to be agreed on


def test_what_fuses_steps_follows_from_the_settings(monkeypatch):
    assert install.choose_fusion(alike_runtime(fuse="off")) is None
    runtime = alike_runtime(fuse="always")
    assert install.choose_fusion(runtime) is runtime.fusion
    monkeypatch.setattr(type(runtime.witness), "is_witness", True)
    assert install.choose_fusion(alike_runtime(fuse="always")) is None


def test_a_script_alone_fuses_its_steps(monkeypatch):
    installed = []
    monkeypatch.setattr(Fusion, "install", lambda fusion: installed.append(fusion.always))
    fuse_alone(RunSettings(fuse="always"))
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    fuse_alone(RunSettings(fuse="always"))
    assert installed == [True]


def test_another_backend_than_tensorflow_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(UserError):
        install.install(alike_runtime, agree, script=None, threads=1, seed=1)


def test_keras_2_refuses_to_train(monkeypatch):
    optimizers = type("optimizers", (), {"Optimizer": type("O", (), {}), "legacy": type("L", (), {})})
    optimizers.legacy.Optimizer = type("O", (), {})
    old = type("tf_keras", (), {"optimizers": optimizers, "Model": type("M", (), {})})
    monkeypatch.setitem(sys.modules, "tf_keras", old)
    install.refuse_old_keras()
    for method in (old.Model.fit, optimizers.Optimizer.apply_gradients, optimizers.legacy.Optimizer.apply_gradients):
        with pytest.raises(Refused):
            method()
    put_back()


def test_debug_mode_of_data_sets_is_refused():
    with refuses("enable_debug_mode()", "-n 1"):
        install.refuse_debug_mode(tf.data.experimental.enable_debug_mode)
