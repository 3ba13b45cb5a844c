"""Before the script runs: one seed for all ranks, and all replacements, once TensorFlow has been imported."""

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.errors import UserError
from harness.base.turns import current_turns
from harness.schema.record_notes import Note
from harness.transparent.children import child_seed
from harness.transparent.patch import HorovodScript, ImportHook, Refusals, offer_old_names, refusing

if TYPE_CHECKING:
    from harness.transparent.fused import Fusion
    from harness.transparent.run_settings import RunSettings
    from harness.transparent.runtime import Runtime
    from harness.transparent.script_record import FitObservations


def common_seed(agree: Callable[[Any], Any]) -> int:
    """Return a seed that rank 0 has drawn; `agree` returns rank 0's value on all."""
    return int(agree(random.SystemRandom().randrange(2**31)))


def same_randomness(agree: Callable[[Any], Any], seed: int) -> "list[AgreedSeeding]":
    """Seed Python's and NumPy's generators equally on all ranks, also whenever the script seeds them again."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    owners = ((random, "seed"), (np.random, "seed"), (np.random, "default_rng"))
    seedings = [AgreedSeeding(agree, seed, getattr(owner, name)) for owner, name in owners]
    for (owner, name), seeding in zip(owners, seedings, strict=True):
        setattr(owner, name, seeding)
    return seedings


class AgreedSeeding:
    """A function that takes a seed, which gets rank 0's seed on every rank: seeds may be made of the time.

    None, which asks the operating system for a seed, is replaced by a number that follows from `seed`.
    """

    def __init__(self, agree: Callable[[Any], Any], seed: int, original: Callable[..., Any]) -> None:
        self._agree = agree
        self._original = original
        self._fresh = random.Random(seed)
        self._script_has_seeded = False
        self._seed = seed
        self._in_child = False

    def enter_child(self) -> None:
        """Exchange nothing any more: this is a child process of a rank."""
        self._in_child = True
        self._fresh = random.Random(child_seed(self._seed))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Seed the generator, or return a new one."""
        arguments = [*args, *kwargs.values()]
        if HorovodScript.active:
            return self._original(*args, **kwargs)
        if not arguments or arguments[0] is None:
            return self._original(self._fresh.randrange(2**32))
        self._script_has_seeded = True
        if self._in_child:
            return self._original(*args, **kwargs)
        in_main_thread = threading.current_thread() is threading.main_thread()
        if isinstance(arguments[0], (int, float, str, bytes)) and in_main_thread:
            return self._original(self._agree(arguments[0]), *arguments[1:])
        return self._original(*args, **kwargs)

    def undo(self) -> None:
        """Seed differently on every rank, unless the script has given a seed: it relies on different shuffles."""
        if not self._script_has_seeded:
            self._original(random.SystemRandom().randrange(2**31))


_PREFETCHED = 16  # steps at the beginning of a turn whose batches the script's pipeline may have made ready before it


def install(
    build: "Callable[[], Runtime]", agree: Callable[[Any], Any], *, script: Path, threads: int, seed: int
) -> "tuple[Runtime, FitObservations]":
    """Prepare TensorFlow and Keras for a script on ranks; return the state, which `build` makes, and the measurements.

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
    from harness.base.scratch import keep_generated_files
    from harness.transparent.preflight import check_ranks
    from harness.transparent.script_record import FitObservations, MissedTurns, StepTimes, taken_calls
    from harness.transparent.tf1 import keep_trained_at_close

    tf.random.set_seed = AgreedSeeding(agree, seed, tf.random.set_seed)
    keep_generated_files()
    runtime = build()
    offer_old_names()
    measured = FitObservations()
    if runtime.settings.record is not None:
        measured.install(runtime)
        steps = StepTimes(lambda: measured.fitting, lambda: taken_calls(runtime.collectives.reductions))
        steps.install()
        measured.loop_epochs = steps.epochs
    keep_trained_at_close()
    turns = current_turns()
    if turns is not None:
        turns.first_steps = _PREFETCHED
    if runtime.ranks > 1:
        runtime.witness.install(runtime)
        replace_all(runtime)
        Refusals.on_ranks = True
        ImportHook(refuse_old_keras, ["tf_keras"]).install()
        MissedTurns().install()
        check_ranks(runtime, script)
    else:
        if turns is not None:
            _take_turns_alone()
        if (fusion := choose_fusion(runtime)) is not None:
            fusion.install()
    return runtime, measured


def _take_turns_alone() -> None:
    """Have the only rank of a launch, whose gradients are not averaged, pass its turn in every optimizer's step."""
    import tensorflow as tf
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    from harness.comm.turn_pass import pass_turn
    from harness.transparent.patch import replace

    def apply(original: Callable[..., Any], optimizer: Any, grads: Any, *others: Any, **named: Any) -> Any:
        grads = list(grads)
        gradients = [pair[0] if isinstance(pair, tuple) else pair for pair in grads]
        with tf.control_dependencies(pass_turn(gradients)):
            return original(optimizer, grads, *others, **named)

    replace(BaseOptimizer, "apply", ("self", "grads"), apply, stays=True)
    replace(tf.compat.v1.train.Optimizer, "apply_gradients", ("self", "grads_and_vars"), apply, stays=True)


def refuse_debug_mode(original: Callable[..., Any]) -> None:
    """Stand for `tf.data.experimental.enable_debug_mode`.

    Raises:
        UserError: always.
    """
    raise UserError(
        "the script asks for tf.data's debug mode, in which batches are no tensors that could be divided over the "
        "ranks: leave out tf.data.experimental.enable_debug_mode(), or run it with -n 1"
    )


def replace_all(runtime: "Runtime") -> None:
    """Make all replacements of a rank that has others beside it."""
    import tensorflow as tf

    from harness.transparent.checkpoints import Checkpoints
    from harness.transparent.collectives import Scalars
    from harness.transparent.divided_keras_data import divide_adapters
    from harness.transparent.divided_loops import Loops
    from harness.transparent.divided_random_numbers import ScriptDraws
    from harness.transparent.gradients import GradientAverager
    from harness.transparent.keras_layers import Layers
    from harness.transparent.keras_metrics import Metrics
    from harness.transparent.keras_trainer import Trainers
    from harness.transparent.patch import replace
    from harness.transparent.step_outputs import StepOutputs
    from harness.transparent.tf1 import Sessions

    averager = GradientAverager(runtime)
    scalars = Scalars(runtime.collectives)
    loops = Loops(runtime, scalars)
    averager.install()
    divide_adapters(runtime)
    Trainers(runtime, scalars, loops.end_trial, fusion=choose_fusion(runtime)).install()
    Layers(runtime).install()
    ScriptDraws(runtime).install()
    Metrics(runtime, scalars).install()
    loops.install()
    Sessions(runtime, averager).install()
    StepOutputs(runtime.collectives.trial).install()
    Checkpoints(runtime).install()
    replace(tf.data.experimental, "enable_debug_mode", (), refuse_debug_mode)
    runtime.at_end = loops.end_trial


def choose_fusion(runtime: "Runtime") -> "Fusion | None":
    """Return what fuses steps; None where it is not asked for, and in the witness, which makes few steps."""
    from harness.transparent.fused import FusingRanks, Fusion

    mode = runtime.settings.fuse
    if mode == "off" or runtime.witness.is_witness:
        return None
    several = runtime.ranks > 1
    ranks = FusingRanks(
        agree=lambda value: runtime.collectives.gather(value, "number of steps")[0] if several else value,
        settled=lambda: runtime.witness.over,
        body=runtime.fused_step,
        note=runtime.note,
        divided=several,
    )
    fusion = Fusion(ranks, always=mode == "always")
    runtime.fusion = fusion
    return fusion


def fuse_alone(settings: "RunSettings") -> None:
    """Fuse the steps of a script that runs on one rank, without replacements."""
    import contextlib

    import keras

    from harness.transparent.fused import FusingRanks, Fusion

    if keras.backend.backend() != "tensorflow":
        return
    notes: list[Note] = []

    def note(fresh: Note) -> None:
        if fresh not in notes:
            notes.append(fresh)
            print(f"harness: {fresh}", file=sys.stderr, flush=True)

    ranks = FusingRanks(
        agree=lambda value: value,
        settled=lambda: True,
        body=lambda _: contextlib.nullcontext(),
        note=note,
        divided=False,
    )
    Fusion(ranks, always=settings.fuse == "always").install()


def refuse_old_keras() -> None:
    """Have Keras 2, which has modules of its own, refuse to train."""
    import tf_keras

    @refusing
    def refuse(*_: Any, **__: Any) -> None:
        raise UserError(
            "the script trains with Keras 2 (tf_keras), which cannot be divided over the ranks: leave out "
            "TF_USE_LEGACY_KERAS and use Keras 3"
        )

    for optimizer in (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer):
        optimizer.apply_gradients = refuse
    tf_keras.Model.fit = refuse
