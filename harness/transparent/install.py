"""Put all replacements in place, once, when TensorFlow has been imported."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.comm.world import World
from harness.transparent.settings import Settings

if TYPE_CHECKING:
    from harness.transparent.clock import Measured
    from harness.transparent.collectives import Watch
    from harness.transparent.own_rows import OwnRows
    from harness.transparent.runtime import Runtime


def install(
    world: World, settings: Settings, watch: "Watch", own: "OwnRows", *, script: Path, threads: int, seed: int
) -> "tuple[Runtime, Measured]":
    """Prepare TensorFlow and Keras for a script on the ranks of `world`; return the state and the measurements.

    Raises:
        UserError: Keras is set to another backend than TensorFlow.
        SharedError: the ranks differ in script, versions or threads.
        RunError: this release of Keras or TensorFlow is not the one that the replacements know.
    """
    import keras
    import tensorflow as tf

    if keras.backend.backend() != "tensorflow":
        raise UserError(f"KERAS_BACKEND={keras.backend.backend()} cannot run on ranks: leave it at tensorflow")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.random.set_seed(seed)
    from harness.transparent.clock import Measured
    from harness.transparent.own_rows import offer_old_name
    from harness.transparent.preflight import check_start
    from harness.transparent.randomness import agreed
    from harness.transparent.runtime import Runtime

    tf.random.set_seed = agreed(world, random.Random(seed), tf.random.set_seed)
    runtime = Runtime.build(world, settings, watch, own)
    offer_old_name()
    measured = Measured()
    if settings.record is not None:
        measured.install(runtime)
    if world.size > 1:
        _replace_all(runtime)
        check_start(runtime, script)
    return runtime, measured


def _replace_all(runtime: "Runtime") -> None:
    from harness.transparent import keras_data, keras_layers, keras_losses, keras_trainer, saving
    from harness.transparent.collectives import Scalars
    from harness.transparent.gradients import Synchroniser
    from harness.transparent.keras_metrics import Metrics
    from harness.transparent.loops import Loops
    from harness.transparent.tf1 import Sessions

    synchroniser = Synchroniser(runtime)
    scalars = Scalars(runtime.collectives)
    loops = Loops(runtime, scalars)
    synchroniser.install()
    keras_data.install(runtime)
    keras_trainer.install(runtime, scalars, loops.end_trial)
    keras_layers.install(runtime)
    keras_losses.install(runtime)
    Metrics(runtime, scalars).install()
    loops.install()
    Sessions(runtime, synchroniser).install()
    saving.install(runtime)
    runtime.at_end = loops.end_trial
