"""A run of a user's script as a run record: the epochs of its `fit`, timed on every rank and gathered at its end."""

import contextlib
import dataclasses
import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers import data_adapters
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from harness.base.cores import host_cores
from harness.base.cpu_contention import CpuUsage, other_loads
from harness.base.errors import SharedError, UserError
from harness.base.setting_names import setting
from harness.base.turns import BLOCK, clock, current_turns
from harness.comm import turn_pass
from harness.comm.core_ping import core_distance
from harness.comm.energy_counters import EnergyMeter, MeasuredEnergy
from harness.comm.gpus import Gpu
from harness.comm.harness_variables import scheduler_name
from harness.comm.host_clock import HostClock, read_offset
from harness.comm.placement_check import RankPlace, observe
from harness.comm.reduction import Reduction, in_sequence
from harness.comm.turn_pass import pass_turn
from harness.comm.world import World
from harness.horovod import mpi_exchange
from harness.schema.code_identity import script_id
from harness.schema.data_record import DataRecord
from harness.schema.point import Point
from harness.schema.record import SCHEMA, EpochRecord, RankRecord, RunRecord, WeightsRecord
from harness.schema.record_notes import Note
from harness.train.launch_record import apart, disturbances, finite, launch_provenance, rank_record, write_run
from harness.train.step_table import Columns, on_one_clock, step_columns
from harness.transparent.divided_keras_data import rows_per_batch
from harness.transparent.patch import HorovodScript, replace
from harness.transparent.runtime import Runtime

_ONE_EPOCH = "the only epoch includes compilation: train at least 2"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptEpoch:
    """One epoch on one rank. Times in seconds; `calls` float64 [n, 2]: entry and exit of every synchronisation call,
    in seconds since the epoch's `start` on this rank's clock. `logs` as Keras's callbacks get them at its end."""

    steps: int
    start: float
    seconds: float
    evaluate_s: float
    calls: npt.NDArray[np.float64]
    logs: dict[str, float]
    begin: CpuUsage
    end: CpuUsage


class EpochClock(keras.callbacks.Callback):
    """Comes before the script's own callbacks, so that their time between epochs is not counted."""

    async_safe = True  # Keras need not wait for the step to count it

    def __init__(self, reductions: Callable[[], tuple[Reduction, ...]]) -> None:
        super().__init__()
        self.epochs: list[ScriptEpoch] = []
        self._reductions = reductions
        self._steps = 0
        self._begin = self._evaluation = 0.0
        self._calls: npt.NDArray[np.float64] = np.empty((0, 2))
        self._seconds: float | None = None
        self._usage = CpuUsage.now()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the epoch's clock."""
        self._take()
        self._usage = CpuUsage.now()
        self._steps = 0
        self._seconds = None
        self._evaluation = 0.0
        self._begin = clock()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the steps, which `steps_per_execution` bundles."""
        self._steps = batch + 1

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stop the epoch's clock: the validation at its end is timed separately."""
        self._stop()
        self._evaluation = clock()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep the epoch."""
        now = clock()
        self._stop()
        self.epochs.append(
            ScriptEpoch(
                steps=self._steps,
                start=self._begin,
                seconds=self._seconds or 0.0,
                evaluate_s=now - self._evaluation if self._evaluation else 0.0,
                calls=self._calls - self._begin,
                logs={name: float(value) for name, value in (logs or {}).items()},
                begin=self._usage,
                end=CpuUsage.now(),
            )
        )
        self._take()

    def _stop(self) -> None:
        if self._seconds is None:
            self._seconds = clock() - self._begin
            if turns := current_turns():
                turns.leave()
            self._calls = self._take()

    def _take(self) -> npt.NDArray[np.float64]:
        return taken_calls(self._reductions())


def taken_calls(reductions: Sequence[Reduction]) -> npt.NDArray[np.float64]:
    """Return float64 [calls, 2], entry and exit of all calls of the `reductions` since they were last taken."""
    return np.concatenate([np.empty((0, 2)), *(reduction.take_calls() for reduction in reductions)])


@dataclass(kw_only=True)
class FitObservations:
    """What the script's calls of `fit` did.

    `rows`, `batch`, `sizes` (parameters, bytes) and `length` (of all weights as one vector) are of the last call.
    `core_ns` is `core_distance` before the script's first line that trains. `awaiting`: a call has begun and has not
    asked for its training rows yet. `loop_epochs` returns what was timed of steps outside of `fit`.
    """

    epochs: list[ScriptEpoch] = field(default_factory=list)
    rows: int = 0
    batch: int = 0
    sizes: tuple[int, int] = (0, 0)
    length: float = 0.0
    core_ns: float = 0.0
    awaiting: bool = False
    fitting: bool = False
    loop_epochs: Callable[[], list[ScriptEpoch]] = list

    def install(self, runtime: Runtime) -> None:
        """Replace `fit` and the maker of data adapters, below whatever divides the data over the ranks."""
        self.core_ns = core_distance(runtime.world)
        replace(TensorFlowTrainer, "fit", ("self", "x", "y"), partial(self._fit, runtime), stays=True)
        replace(data_adapters, "get_data_adapter", ("x", "y"), self._adapter, stays=True)

    def _fit(self, runtime: Runtime, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(original).bind(*args, **kwargs)
        epoch_clock = EpochClock(lambda: runtime.collectives.reductions)
        callbacks = call.arguments.get("callbacks")
        call.arguments["callbacks"] = [epoch_clock, *(keras.tree.flatten(callbacks) if callbacks else [])]
        self.awaiting = self.fitting = True
        try:
            return original(*call.args, **call.kwargs)
        finally:  # a script may end a training by an exception of its own, and go on
            self.awaiting = self.fitting = False
            self.epochs += epoch_clock.epochs
            model = call.arguments["self"]
            self._note_weights(model.trainable_variables)
            runtime.variables.remember(model.weights)

    def _note_weights(self, variables: Iterable[Any]) -> None:
        weights = [np.asarray(variable.numpy()) for variable in variables]
        self.sizes = (sum(weight.size for weight in weights), sum(weight.nbytes for weight in weights))
        self.length = math.hypot(*(float(np.linalg.norm(weight.astype(np.float64))) for weight in weights))

    def measure_loop(self, runtime: Runtime, point: Point, factor: int) -> None:
        """Have the steps that the script has made outside of `fit` be its epochs; all ranks together.

        `factor`: how many of the script's batches all ranks take in a step.

        Raises:
            SharedError: a UserError: a rank makes as many steps alone as together with others, which is weak scaling.
        """
        size = runtime.world.size
        if current_turns() is not None and size > 1 and factor > 1 and point.scaling == "strong":
            raise SharedError(
                UserError(
                    "every rank makes the steps of the script's own loop, which are as many on all numbers of ranks: "
                    f"write {setting('scaling', 'weak')}"
                )
            )
        self.epochs = self.loop_epochs()
        self.batch = point.workload.batch_per_rank or point.workload.global_batch or 0
        steps = self.epochs[-1].steps if self.epochs else 0
        self.rows = self.batch * steps * (1 if runtime.own_rows.present else factor)
        self._note_weights(runtime.variables.trained)

    def _adapter(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        adapter = original(*args, **kwargs)
        if self.awaiting:  # the first adapter that a fit asks for is the one of its training rows
            self.awaiting = False
            self.batch = rows_per_batch(adapter) or 0
            self.rows = getattr(adapter, "_num_samples", 0) or self.batch * (adapter.num_batches or 0)
        return adapter


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptObservations:
    """What one rank has seen of the script. `rows` are the training rows of an epoch over all ranks, 0 if unknown;
    `global_batch` rows of a step; `gpu` what it trained on; `fused` its steps in loops of many; `own_rate` what it says
    of its speed; `meter` samples its devices. Times in seconds."""

    started: datetime
    fit: FitObservations
    rows: int
    global_batch: int
    sha256: str
    reduction: Reduction | None
    notes: tuple[Note, ...]
    import_s: float
    load_before: float
    gpu: Gpu | None = None
    fused: int = 0
    own_rate: float | None = None
    meter: EnergyMeter | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Launch:
    """What the ranks have gathered, as rank 0 writes it.

    `ranks`: one record a rank. `steps`: for each rank, the rows of steps.parquet by epoch. `times`: for each rank and
    epoch, seconds of the epoch and seconds in synchronisation calls. `places`: each rank's place and its host's number
    of processors. `loads`: other work by host. `core_ns`: `core_distance` before and after.
    """

    ranks: tuple[RankRecord, ...]
    clocks: tuple[HostClock, ...]
    steps: tuple[list[Columns], ...]
    times: tuple[list[tuple[float, float]], ...]
    places: list[tuple[RankPlace, int]]
    loads: dict[str, float]
    core_ns: tuple[float, float]


def write_record(world: World, point: Point, seen: ScriptObservations, folder: Path) -> None:
    """Gather what all ranks have seen and write the record into `folder`; all ranks together.

    The first epoch, which includes compilation, is not among the record's when there are more.

    Raises:
        SharedError: a UserError, on every rank: the script has made too few steps, or `folder` cannot be written.
    """
    if not seen.fit.epochs:
        raise SharedError(
            UserError(
                "a record is of the epochs of Keras's fit or of at least 3 steps of an optimizer, which the script "
                "never makes"
            )
        )
    timed = seen.fit.epochs[1:] or seen.fit.epochs
    energy = seen.meter.stop(_windows(timed)) if seen.meter else MeasuredEnergy()
    launch = _gather(world, point, seen, timed)

    def write() -> None:
        assert launch is not None
        record = _record(point, seen, timed, launch)
        notes = (*record.notes, *energy.notes)
        record = dataclasses.replace(record, energy=energy.devices, notes=notes)
        rank_epochs = on_one_clock(launch.steps, launch.clocks)
        write_run(folder, record, [epoch for epochs in rank_epochs for epoch in epochs])

    world.on_root(write)


def _windows(timed: Sequence[ScriptEpoch]) -> list[tuple[float, float]]:
    """Return when the rank has trained: from the first of these epochs to the last, or in turns."""
    turns = current_turns()
    if turns is not None:
        return turns.windows
    last = timed[-1]
    return [(timed[0].start, last.start + last.seconds + last.evaluate_s)]  # Linux has one clock for both


def _gather(world: World, point: Point, seen: ScriptObservations, timed: Sequence[ScriptEpoch]) -> _Launch | None:
    """Measure clocks, loads and distances of cores, and gather what all ranks have seen; None above rank 0."""
    place = observe(seen.gpu)
    usage = (timed[0].begin, timed[-1].end)
    places = world.comm.allgather((place, host_cores()))
    hosts = [placement.host for placement, _ in places]
    loads = other_loads(world.comm, hosts, *usage)
    offset = read_offset(world, hosts)
    core_ns = (seen.fit.core_ns, core_distance(world))
    clock = HostClock(begin=offset, end=offset)
    median_s = float(np.median([epoch.seconds for epoch in timed]))
    rank = rank_record(
        place,
        clock,
        usage,
        point.layout.threads,
        seen.gpu,
        rank=world.rank,
        rows=seen.rows // world.size + (world.rank < seen.rows % world.size),
        batch=seen.global_batch // world.size,
        import_s=seen.import_s,
        load_s=0.0,
        distribute_s=0.0,
        compile_s=max(0.0, seen.fit.epochs[0].seconds - median_s),
        evaluate_s=sum(epoch.evaluate_s for epoch in seen.fit.epochs),
    )
    columns = [epoch_columns(world.rank, number, epoch) for number, epoch in enumerate(timed)]
    times = [(epoch.seconds, float(np.sum(epoch.calls[:, 1] - epoch.calls[:, 0]))) for epoch in timed]
    gathered = world.comm.gather((rank, clock, columns, times), root=0)
    if gathered is None:
        return None
    ranks, clocks, steps, rank_times = zip(*gathered, strict=True)
    return _Launch(
        ranks=ranks, clocks=clocks, steps=steps, times=rank_times, places=places, loads=loads, core_ns=core_ns
    )


def _record(point: Point, seen: ScriptObservations, timed: Sequence[ScriptEpoch], launch: _Launch) -> RunRecord:
    """Return the record of a launch; `timed` are rank 0's epochs."""
    by_nodes = scheduler_name() != "local" and point.layout.nodes > 1  # a run by hand has one node in its layout
    invalid, notes = disturbances(point.layout, launch.places, launch.ranks, launch.loads, by_nodes=by_nodes)
    host = launch.places[0][0].host
    epochs = []
    for number, epoch in enumerate(timed):
        times = [rank_times[number] for rank_times in launch.times]
        epochs.append(epoch_record(number, epoch, times, timed[0].start))
    return RunRecord(
        schema=SCHEMA,
        point=point,
        started=seen.started,
        ended=datetime.now(UTC),
        global_batch=seen.global_batch,
        steps_per_epoch=timed[0].steps,
        data=_data(point, seen),
        provenance=launch_provenance(
            seen.reduction,
            gpu=seen.gpu,
            gpus=[rank.gpu for rank in launch.ranks if rank.host == host],
            load_before=seen.load_before,
            other_load=max(launch.loads.values()),
        ),
        ranks=launch.ranks,
        epochs=tuple(epochs),
        weights=WeightsRecord(
            parameters=seen.fit.sizes[0],
            bytes=seen.fit.sizes[1],
            sha256=seen.sha256,
            identical=bool(seen.sha256),
            length=finite(seen.fit.length),
        ),
        invalid=invalid + (() if len(seen.fit.epochs) > 1 else (_ONE_EPOCH,)),
        block=os.environ.get(BLOCK, ""),
        core_ns=launch.core_ns,
        fused_steps=seen.fused,
        own_rate=seen.own_rate,
        notes=(*notes, *apart(), *seen.notes),
    )


def _data(point: Point, seen: ScriptObservations) -> DataRecord:
    script = point.workload.script
    assert script is not None
    return DataRecord(
        name=point.workload.name,
        kind="real",
        sha256=script_id(script.path),
        train_rows=seen.rows,
        test_rows=0,
        features=(),
        classes=0,
        note="the script brings its own data; the hash is of the script",
    )


def epoch_record(number: int, epoch: ScriptEpoch, parts: Sequence[tuple[float, float]], first: float) -> EpochRecord:
    """Return an epoch's record of its `parts`, each rank's seconds and those of synchronisation, `first` its begin."""
    logs = epoch.logs
    return EpochRecord(
        epoch=number,
        steps=epoch.steps,
        seconds=tuple(part[0] for part in parts),
        sync_seconds=tuple(part[1] for part in parts),
        train_loss=finite(logs.get("loss")),
        test_loss=finite(logs.get("val_loss")),
        test_accuracy=finite(logs.get("val_accuracy")),
        test_auc=finite(logs.get("val_auc")),
        begin_s=epoch.start - first,
    )


def epoch_columns(rank: int, number: int, epoch: ScriptEpoch) -> Columns:
    """Return the epoch's rows of steps.parquet; the loss of single steps is not known, nor is it where calls differ."""
    losses = np.full(epoch.steps, np.nan, np.float32)
    calls = epoch.calls if len(epoch.calls) == epoch.steps else np.empty((0, 2))
    return step_columns(
        rank=rank, epoch=number, begin=epoch.start, losses=losses, calls=calls, period=0 if len(calls) else None
    )


# Steps of the loops that a script writes itself, timed where the harness meets them: at the optimizer.

_LEAST_STEPS = 3  # one that compiles, and two whose distance is a time
_EPOCHS = 4
_EPOCH_STEPS = 5  # at least, where there is more than one epoch


class StepTimes:
    """When every step of a script's own loop has its gradients, on this rank's `clock`, in seconds.

    Steps inside Keras's `fit` are not noted: its epochs are timed as a whole (`FitObservations`); `in_fit` tells. One
    that XLA compiles has no place for it. `native_calls` returns entry and exit of every sum of the native operation.
    """

    def __init__(self, in_fit: Callable[[], bool], native_calls: Callable[[], Any]) -> None:
        self.moments: list[float] = []
        self._native_calls = native_calls
        self._in_fit = in_fit
        self._inside = False
        self._begin: CpuUsage | None = None

    def install(self) -> None:
        """Note the steps of Keras's optimizers and of TensorFlow 1's, and the exchanges that Horovod's words make."""
        mpi_exchange.calls = []
        for owner, name, parameter in _OPTIMIZERS:
            replace(owner, name, ("self", parameter), self._step, stays=True)

    def _step(self, original: Callable[..., Any], optimizer: Any, *args: Any, **named: Any) -> Any:
        if self._inside or self._in_fit():
            return original(optimizer, *args, **named)
        if not tf.executing_eagerly() and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            return original(optimizer, *args, **named)
        pairs, others, named = split_arguments(args, named)
        with self._only_outermost():
            if tf.executing_eagerly():
                self._note()
                return original(optimizer, pairs, *others, **named)
            with tf.control_dependencies(known_tensors(pairs)), in_sequence() as sequence:
                noted = tf.numpy_function(self._note_in_graph, [sequence], tf.int64)
            with tf.control_dependencies([noted]):
                return original(optimizer, pairs, *others, **named)

    @contextlib.contextmanager
    def _only_outermost(self) -> Iterator[None]:
        """Take the optimizers that one of them calls, as a loss scaler does, for part of its step."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _note(self) -> None:
        if self._begin is None:
            self._begin = CpuUsage.now()
        self.moments.append(clock())

    def _note_in_graph(self, _: object) -> np.int64:
        self._note()
        return np.int64(0)

    def epochs(self) -> list[ScriptEpoch]:
        """Return the first step, which compiles, without a time, and the others as epochs of equally many steps.

        They are `_EPOCHS`, so that their times show how steady it was, or one where there are few steps; the steps
        that are left over are the first ones. Nothing is returned of less than `_LEAST_STEPS`.
        """
        if self._begin is None or len(self.moments) < _LEAST_STEPS:
            return []
        count = _EPOCHS if len(self.moments) > _EPOCHS * _EPOCH_STEPS else 1
        steps = (len(self.moments) - 1) // count
        ends = self.moments[::-steps][::-1][-count - 1 :]
        python_calls = np.array(mpi_exchange.calls or [], np.float64).reshape(-1, 2)
        calls = np.concatenate([python_calls, self._native_calls()])
        usage = CpuUsage.now()
        compiled = self._epoch(1, ends[0], ends[0], calls[:0], usage)
        timed = [self._epoch(steps, begin, end, calls, usage) for begin, end in pairwise(ends)]
        return [compiled, *timed]

    def _epoch(self, steps: int, begin: float, end: float, calls: Any, usage: CpuUsage) -> ScriptEpoch:
        """Return so many steps from `begin` to `end`, with those of all exchanges' `calls` that lie between."""
        assert self._begin is not None
        is_inside = (calls[:, 0] >= begin) & (calls[:, 1] <= end)
        return ScriptEpoch(
            steps=steps,
            start=begin,
            seconds=end - begin,
            evaluate_s=0.0,
            calls=calls[is_inside] - begin,
            logs={},
            begin=self._begin,
            end=usage,
        )


_OPTIMIZERS: tuple[tuple[Any, str, str], ...] = (
    (BaseOptimizer, "apply", "grads"),
    (tf.compat.v1.train.Optimizer, "apply_gradients", "grads_and_vars"),
)


class MissedTurns:
    """Passes the turn in steps whose gradients the script has summed by calls of its own, which pass none."""

    def __init__(self) -> None:
        self._passes = 0

    def install(self) -> None:
        """Look at every optimizer's step."""
        if current_turns() is not None:
            for owner, name, parameter in _OPTIMIZERS:
                replace(owner, name, ("self", parameter), self._step, stays=True)

    def _step(self, original: Callable[..., Any], optimizer: Any, *args: Any, **named: Any) -> Any:
        pairs, others, named = split_arguments(args, named)
        passed: list[Any] = []
        if HorovodScript.active and turn_pass.built == self._passes:
            passed = pass_turn(gradients_of(pairs))
        self._passes = turn_pass.built
        with tf.control_dependencies(passed):
            return original(optimizer, pairs, *others, **named)


def split_arguments(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], tuple[Any, ...], dict[str, Any]]:
    """Return the gradients, or pairs of them and variables, of an optimizer's step, and its other arguments."""
    if args:
        return list(args[0]), args[1:], named
    parameters = [parameter for _, _, parameter in _OPTIMIZERS if parameter in named]
    others = {name: value for name, value in named.items() if name not in parameters}
    return list(named[parameters[0]]), (), others


def gradients_of(pairs: Sequence[Any]) -> list[Any]:
    """Return the gradients of `pairs` of them and variables, or of gradients alone."""
    return [pair[0] if isinstance(pair, tuple) else pair for pair in pairs]


def known_tensors(pairs: Sequence[Any]) -> list[Any]:
    """Return the tensors of the gradients, those of sparse ones too."""
    gradients = [gradient for gradient in gradients_of(pairs) if gradient is not None]
    return list(tf.nest.flatten(gradients, expand_composites=True))
