"""What ranks and the witness have in common: they look at the same gradients and numbers, in the same graphs.

The witness is one more process, which runs the script alone and undivided at the same time as the ranks. Rank 0 starts
it. Rank 0 compares the averaged gradients of the first steps of each training, and the numbers that these steps return,
with the witness's (`witness`, `witness`). The comparison needs no knowledge of what a script does: it
shows whatever trains differently on parts of a batch than on whole batches.
"""

import contextlib
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.comm.world import World, abort
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.file_mechanism import WITNESS
from harness.transparent.patch import script_lines, script_place
from harness.transparent.run_settings import INPUT

# What rank 0 and the witness compare: gradients, as lengths and projections, and numbers.

_FOLD = 65521
_DIRECTIONS = 4
_SMALL = 5e-2  # of the length of all gradients of a step: below it a single one's may be nothing but rounding
_LEAST = 0.05  # size of a number that a difference is a share of


class Observation(NamedTuple):
    """A gradient (`kind`) of several variables, or numbers: their `names`, and a row of float64 `measures` for each.

    `rows`: of the batch, of all ranks, 0 where they are not counted. `training`: the number of the script's training
    that a gradient is of.
    """

    kind: str
    names: tuple[str, ...]
    measures: npt.NDArray[np.float64]
    rows: float = 0.0
    training: int = -1

    @property
    def key(self) -> tuple[str, int, tuple[str, ...]]:
        """What identifies it: it is compared with the next observation that has the same key."""
        return self.kind, self.training, self.names


def measures(values: Any, indices: Any = None) -> npt.NDArray[np.float64]:
    """Return the length and some projections of a gradient's `values`, float64 [5].

    Those of a sparse gradient do not depend on the order of its `indices`.
    """
    flat = np.asarray(values, np.float32).ravel()
    length = float(np.linalg.norm(flat))
    if indices is not None:
        weights = _directions()[0, np.asarray(indices) % _FOLD]
        flat = weights @ flat.reshape(len(weights), -1) if len(weights) else flat
    fold = min(len(flat), _FOLD)
    whole = len(flat) // max(fold, 1) * fold
    folded = flat[:whole].reshape(-1, fold).sum(0, dtype=np.float64) if whole else flat
    folded[: len(flat) - whole] += flat[whole:]
    return np.array([length, *(_directions()[:, :fold] @ folded)])


@cache
def _directions() -> npt.NDArray[np.float64]:
    return np.random.RandomState(0).choice([-1.0, 1.0], (_DIRECTIONS, _FOLD))


def compared(first: Observation, second: Observation, least: float = 0.0) -> tuple[float, str]:
    """Return the greatest difference of two observations as a share of the size of what differs, and its name.

    The size of a gradient is taken to be `least` or more.
    """
    both = np.stack([first.measures, second.measures])
    with np.errstate(invalid="ignore"):
        gap = np.abs(both[0] - both[1]).max(1)
    gap[~np.isfinite(both).all(2).any(0)] = 0.0  # both overflow, as half precision may
    size = np.nan_to_num(np.abs(both[:, :, 0]).max(0), posinf=0.0)
    least_size = max(_SMALL * np.linalg.norm(size), least)
    size = np.maximum(size, _LEAST) if first.kind == "number" else size + least_size
    shares = np.nan_to_num(gap / np.maximum(size, np.finfo(np.float32).tiny), nan=np.inf)
    worst = int(np.argmax(shares))
    return float(shares[worst]), first.names[worst]


STEPS = 20  # averaged gradients of each training that are compared by default
NUDGES = "HARNESS_NUDGES"
"""Environment variable of a second witness, which rounds otherwise."""

DRAWN = Note(code=NoteCode.DRAWS_NOT_BY_ROW)


class Alone:
    """The communicator of a process without others."""

    def bcast(self, value: Any, root: int) -> Any:
        """Return `value`."""
        return value

    def allgather(self, value: Any) -> list[Any]:
        """Return `value`, the only one."""
        return [value]

    def Bcast(self, array: Any, root: int) -> None:
        """Leave `array` as it is."""


@dataclass(kw_only=True, eq=False)
class Judged:
    """A training: gradients of the same variables by one compiled step, or by one line of the script.

    `number`: its place among the trainings of the script. `looked`: how many of its gradients have been looked at.
    `switch`: a variable that graphs read, or a placeholder: whether to look. `held`: objects whose ids identify it.
    """

    number: int
    held: tuple[Any, ...]
    looked: int = 0
    switch: Any = None


class NoWitness:
    """A process without a witness, and the interface of those with one.

    `is_witness`: whether this process is the witness; `ranks`: how many ranks it stands for then, else 0. `coarse`:
    whether some of the script's layers compute in types of 16 bits. `nudges`: whether first weights are moved by some
    roundings.
    """

    is_witness = False
    ranks = 0
    coarse = False
    nudges = False

    def install(self, runtime: Any) -> None:
        """Prepare, once TensorFlow is there."""

    def share(self, value: Any) -> Any:
        """Return rank 0's `value` at this place of the script."""
        return value

    @property
    def over(self) -> bool:
        """Whether nothing is looked at now."""
        return True

    @property
    def has_ended(self) -> bool:
        """Whether nothing will be looked at any more."""
        return True

    def gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], rows: Any = None, training: object = None
    ) -> list[Any]:
        """Look at the averaged `gradients` of a step, also while its graph is being built; return them.

        A graph must use what is returned. `rows`: of the batch of all ranks, a float32 scalar. `training`: the compiled
        step, None where the line of the script identifies the training.
        """
        return list(gradients)

    def off(self, graph: Any) -> dict[Any, bool]:
        """Return what to feed to a session's run of `graph` so that nobody looks at its gradients any more."""
        return {}

    def numbers(self, place: str, structure: Any) -> Any:
        """Look at the single numbers in `structure`, which the step at `place` returns; return it."""
        return structure

    def await_own_files(self) -> None:
        """Wait until the witness has files of its own: what rank 0 writes from then on it does not see."""

    def reads(self) -> None:
        """Note that the script reads a file that rank 0 may have written."""

    def end(self, why: Note | None = None) -> None:
        """End the witness; `why`, or what it has shown, is noted."""


class PeerRank(NoWitness):
    """A rank above 0 while rank 0 has a witness: it looks at nothing, but builds the same graphs as rank 0.

    TensorFlow may round differently in another graph, and then the replicas would differ.
    """

    def __init__(self, *, steps: float = STEPS, over: bool = True) -> None:
        self._step = 0
        self._steps = steps
        self._over = over
        self._trainings: dict[tuple[Any, ...], Judged] = {}
        self._first: dict[int, Any] = {}  # variables of trainings, by id
        self._numbers_left = steps  # that are looked at until the next gradient
        self._fed: list[tuple[Any, Judged]] = []  # the switches of sessions' graphs

    @property
    def over(self) -> bool:
        """Whether nothing is looked at now."""
        return self._over or all(judged.looked >= self._steps for judged in self._trainings.values())

    @property
    def has_ended(self) -> bool:
        """Whether nothing will be looked at any more."""
        return self._over

    def _judged(self, variables: Sequence[Any], training: object) -> Judged:
        """Return the training that gradients of `variables` are of."""
        lines = script_lines(sys._getframe(1))
        token = lines[:1] if training is None else id(training)
        key = (token, id(variables[0]), len(variables))
        if key not in self._trainings:
            held = (training, variables[0])
            self._first[id(variables[0])] = variables[0]
            self._trainings[key] = Judged(number=len(self._trainings), held=held)
            if len(self._trainings) > 1:
                self.begins()
        return self._trainings[key]

    def begins(self) -> None:
        """Take note that another training begins."""

    def off(self, graph: Any) -> dict[Any, bool]:
        """Return the switches of a session's `graph` that are to be off."""
        return {
            switch: False
            for switch, judged in self._fed
            if switch.graph is graph and (self._over or judged.looked >= self._steps)
        }

    def gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], rows: Any = None, training: object = None
    ) -> list[Any]:
        """Look at `gradients` now, or in every run of the graph that is being built while anybody looks."""
        import tensorflow as tf

        eager = tf.executing_eagerly()
        if self._over and eager:
            if id(variables[0]) not in self._first:
                self._first[id(variables[0])] = variables[0]
                self.begins()
            return list(gradients)
        judged = self._judged(variables, training)
        if eager and judged.looked >= self._steps:
            return list(gradients)
        names = tuple(getattr(variable, "path", variable.name) for variable in variables)
        parts = [[part.values, part.indices] if isinstance(part, tf.IndexedSlices) else [part] for part in gradients]
        look = partial(self._look, judged, names, [len(part) for part in parts])

        def tensors() -> list[tf.Tensor]:
            counted = tf.zeros([]) if rows is None else rows
            return [tf.convert_to_tensor(part) for part in (counted, *itertools.chain(*parts))]

        if eager:
            look(*(tensor.numpy() for tensor in tensors()))
            return list(gradients)
        if tf.compat.v1.executing_eagerly_outside_functions():
            from harness.transparent.batch_rows import own_variable

            if judged.switch is None:
                judged.switch = own_variable(not self._over and judged.looked < self._steps, "harness_witness")
            going = judged.switch
        else:
            going = tf.compat.v1.placeholder_with_default(True, (), name="harness_witness")
            self._fed.append((going, judged))
        seen = tf.cond(going, lambda: tf.numpy_function(look, tensors(), tf.int64), lambda: tf.constant(0, tf.int64))
        with tf.control_dependencies([seen]):
            return [tf.identity(gradient) for gradient in gradients]

    def _look(self, judged: Judged, names: tuple[str, ...], counts: Sequence[int], rows: Any, *arrays: Any) -> np.int64:
        if self._over or judged.looked >= self._steps:
            return np.int64(0)
        remaining = iter(arrays)
        gradients = [measures(*itertools.islice(remaining, count)) for count in counts]
        self._step += 1
        judged.looked += 1
        self._numbers_left = self._steps
        self.take(Observation("gradient", names, np.array(gradients), float(rows), judged.number))
        if judged.looked >= self._steps:
            self._switch_off([judged])
            if self.over:
                self._numbers_left = 0
                self.rest()
        return np.int64(0)

    def _switch_off(self, trainings: Sequence[Judged]) -> None:
        """Have graphs not look at `trainings` any more."""
        import tensorflow as tf

        with tf.init_scope():
            for judged in trainings:
                if tf.executing_eagerly() and judged.switch is not None:
                    judged.switch.assign(False)

    def rest(self) -> None:
        """Take note that there is nothing to look at until another training begins."""

    def numbers(self, place: str, structure: Any) -> Any:
        """Look at the numbers that a step returns."""
        if self._over or self._numbers_left <= 0:
            return structure
        from tensorflow.python.util.nest import flatten_with_joined_string_paths

        named = structure
        if isinstance(structure, dict):  # a monitored session's has its hooks for keys, which no order sorts
            items = enumerate(structure.items())
            named = {key if isinstance(key, str) else str(number): value for number, (key, value) in items}
        names = []
        numbers = []
        for path, leaf in flatten_with_joined_string_paths(named):
            if _is_number(leaf):
                names.append(f"{place} {path}".strip())
                numbers.append([float(leaf)])
        if names:
            self._numbers_left -= 1
            self.take(Observation("number", tuple(names), np.array(numbers)))
        return structure

    def take(self, observation: Observation) -> None:
        """Compare an observation, or send it."""
        raise NotImplementedError


def _is_number(leaf: Any) -> bool:
    """Tell whether `leaf` is a single number, a tensor or NumPy's."""
    import tensorflow as tf

    if not (tf.is_tensor(leaf) or isinstance(leaf, np.number)) or len(leaf.shape):
        return False
    dtype = tf.as_dtype(leaf.dtype)
    return bool(dtype.is_floating or dtype.is_integer)


# Rank 0 while it has a witness: it compares the observations of both, and ends the launch where they differ.
#
# Each gradient is compared with the witness's next one of the same training and names, as TensorFlow may run two
# trainings of one step in any order. Between two trainings the witness goes on at the lowest priority.

# Differences that are allowed, as shares: of a gradient's length in float32 and in types of 16 bits, and of a number.
_ROUNDING = 3e-3
_COARSE = 5e-2
_NUMBERS = 1e-2
_VANISHED = 1e-3  # of the greatest length that gradients have had: when a loss has gone to 0, rounding is left
_SECOND_PATIENCE = 1.6  # times the patience with the first witness; the other ranks wait longer for rank 0
_MAGNIFIED = 10  # times as far as the script alone is from itself with other kernels: up to this it is rounding
# How long the ranks wait for the witness in trainings after the first: a share of the run, at least some seconds.
_WAIT_SHARE = 0.25
_LEAST_WAIT_S = 10.0
_MOST_UNMATCHED = 512  # observations of the witness without one of rank 0: then it makes other steps
_MPI = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HARNESS_CHILD_TRAINS")


class ObservedRank(PeerRank):
    """Rank 0: it compares its observations with those of the witness, and ends the launch at a difference.

    `patience_s`: how long it waits for the witness at every step.
    """

    def __init__(self, world: World, spawn: Callable[..., Connection], steps: float, patience_s: float) -> None:
        super().__init__(steps=steps, over=False)
        self._spawn = spawn
        self._line = spawn("witness")
        self._world = world
        self._patience_s = patience_s
        self._began = time.monotonic()
        self._waited_s = 0.0  # for the witness, in trainings after the first
        self._runtime: Any = None  # `transparent.runtime.Runtime`, which has this one
        self._heard: dict[Any, deque[Observation]] = {}
        self._news = threading.Condition()
        self._unmatched = 0  # of what has been heard
        self._asked = 0  # times that the witness has asked for what rank 0 shares
        self._hung_up = False
        self._rested = False
        self._has_own_files = False
        self._agreed = 0  # gradients that were the same
        self._compared_keys: list[Any] = []
        self._shared: list[Any] = []
        self._greatest_gap = 0.0
        self._longest: dict[tuple[str, ...], float] = {}  # the greatest length of gradients, by their variables
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                message = self._line.recv()
                with self._news:
                    if isinstance(message, str):
                        self._has_own_files = True
                    elif isinstance(message, int):
                        self._asked = message
                    else:
                        self._heard.setdefault(message.key, deque()).append(message)
                        self._unmatched += 1
                    self._news.notify_all()
        except (EOFError, OSError):
            with self._news:
                self._hung_up = True
                self._news.notify_all()

    def install(self, runtime: Any) -> None:
        """Take the runtime, which prints what the witness has shown."""
        self._runtime = runtime

    def await_own_files(self) -> None:
        """Wait for the witness's word that it has them, or for its end."""
        with self._news:
            self._news.wait_for(lambda: self._has_own_files or self._hung_up, timeout=self._patience_s)

    def begins(self) -> None:
        """Say so where no witness judges a training."""
        if self._over and self._runtime is not None and self._agreed:
            place = script_place(_main_frame())
            self._runtime.note(Note(code=NoteCode.NOT_JUDGED_FROM, values={"place": place}))

    def rest(self) -> None:
        """Wait for the witness for a share of the run's time at most from now on."""
        self._rested = True

    def share(self, value: Any) -> Any:
        """Send `value` to the witness, as long as there is one; return it."""
        if not self._over:
            self._shared.append(value)
            with contextlib.suppress(OSError):
                self._line.send((value,))
        return value

    def end(self, why: Note | None = None) -> None:
        """End the witness; note `why`, or what it has shown."""
        if self._over:
            return
        self._over = True
        self._shared.clear()
        with contextlib.suppress(OSError):
            self._line.send(None)
        if self._runtime is None:
            return
        self._runtime.note(why or self.summary())
        self._switch_off(list(self._trainings.values()))

    def _end_because(self, reason: Note | None) -> None:
        """End the witness; note what it has shown, and the `reason` why it shows no more, if there is one."""
        self.end()
        if reason is not None and self._runtime is not None:
            self._runtime.note(reason)

    def _await(self, observation: Observation) -> Observation | None:
        """Wait for the witness's observation at the same place; None where it sends no more, or makes other steps.

        Raises:
            queue.Empty: it has not come so far in time.
        """
        begun = time.monotonic()
        is_first_training = not self._rested and self._step <= self._steps
        patience_s = self._patience_s
        if not is_first_training and not self._has_doubts():
            allowed_s = max(_LEAST_WAIT_S, _WAIT_SHARE * (begun - self._began)) - self._waited_s
            patience_s = min(patience_s, max(0.0, allowed_s))

        def is_settled() -> bool:
            is_stuck = self._asked > len(self._shared) or self._unmatched > _MOST_UNMATCHED
            return bool(self._heard.get(observation.key)) or self._hung_up or is_stuck

        with self._news:
            in_time = self._news.wait_for(is_settled, timeout=patience_s)
            self._waited_s += 0.0 if is_first_training else time.monotonic() - begun
            if self._heard.get(observation.key):
                self._unmatched -= 1
                return self._heard[observation.key].popleft()
        if not in_time:
            raise queue.Empty
        return None

    def _has_doubts(self) -> bool:
        """Tell whether something of the script was a sum over rows, or not of single rows."""
        return self._runtime is not None and (self._runtime.collectives.trial.sums or self._runtime.mixes)

    def take(self, observation: Observation) -> None:
        """Compare an observation with the witness's; a difference ends all ranks with a sentence."""
        if self._over:
            return
        if self._runtime is not None and self._runtime.own_rows.present:
            self.end(Note(code=NoteCode.ROWS_OF_EACH_RANK))
            return
        try:
            alone = self._await(observation)
        except queue.Empty:
            place = f"step {self._step}" if len(self._trainings) < 2 else script_place(_main_frame())
            self._end_because(Note(code=NoteCode.WITNESS_BEHIND, values={"place": place}))
            return
        if alone is None:
            self._end_because(None if self._hung_up else Note(code=NoteCode.WITNESS_APART))
            if observation.training > 0 and self._agreed:
                self.begins()
        elif observation.measures.shape != alone.measures.shape:
            self._end_because(Note(code=NoteCode.WITNESS_APART))
        else:
            self._compared_keys.append(observation.key)
            self._compare(observation, alone)

    def _compare(self, divided: Observation, alone: Observation) -> None:
        """Compare the observation of the ranks, of a divided batch, with the witness's of the whole batch."""
        lengths = np.nan_to_num(alone.measures[:, 0], posinf=0.0)
        longest = max(self._longest.get(divided.names, 0.0), float(np.linalg.norm(lengths)))
        self._longest[divided.names] = longest
        least = _VANISHED * longest
        gap, name = compared(divided, alone, least)
        if gap > self._allowed_gap(divided):
            rounding = self._own_rounding(alone, least)
            if gap > _MAGNIFIED * rounding:
                what = f"the {divided.kind} '{name}' is {gap:.2g} of its size away from"
                rounds = f"itself rounded to {rounding:.0e}" if rounding else "how far it rounds was not found in time"
                self._end_all(f"{what} what one process makes of the whole batch ({rounds})")
            values: dict[str, str | float] = {"kind": divided.kind, "name": name, "gap": gap, "rounding": rounding}
            self._end_because(Note(code=NoteCode.ROUNDING_MAGNIFIED, values=values))
            return
        if abs(divided.rows - alone.rows) > 0.5:
            self._end_all(f"the ranks together have {divided.rows:.0f} of the batch's {alone.rows:.0f} rows")
        self._greatest_gap = max(self._greatest_gap, gap)
        self._agreed += divided.kind == "gradient"

    def _allowed_gap(self, observation: Observation) -> float:
        """Return up to which share of its size an observation may differ from the witness's."""
        if observation.kind == "number":
            return _NUMBERS
        return _COARSE if self.coarse else _ROUNDING

    def _own_rounding(self, alone: Observation, least: float) -> float:
        """Return how far a second witness, which rounds differently, is from the first one's last observation."""
        deadline = time.monotonic() + _SECOND_PATIENCE * self._patience_s
        onednn = "TF_ENABLE_ONEDNN_OPTS"
        switches = {NUDGES: "1", onednn: str(int(os.environ.get(onednn) == "0"))}
        left = self._compared_keys.count(alone.key)
        again = None
        with self._spawn("witness-again", **switches) as line:
            try:
                for value in self._shared:
                    line.send((value,))
                while left:
                    if not line.poll(max(0.0, deadline - time.monotonic())):
                        return 0.0
                    message = line.recv()
                    if isinstance(message, Observation) and message.key == alone.key:
                        left -= 1
                        again = message
            except (EOFError, OSError):  # it has died
                return 0.0
        if again is None or again.measures.shape != alone.measures.shape:
            return float(np.inf)
        return compared(again, alone, least)[0]

    def _end_all(self, what: str) -> NoReturn:
        abort(
            self._world,
            UserError(
                f"in step {self._step} {what} ({script_place(_main_frame())}): divided over ranks, the script trains "
                "otherwise than alone; run it with -n 1, or with --witness off all the same"
            ),
        )

    def summary(self) -> Note:
        """Return what the witness has shown."""
        if not self._agreed:
            return Note(code=NoteCode.WITNESS_SAW_NOTHING)
        values = {"steps": self._agreed, "trainings": len(self._trainings), "gap": self._greatest_gap}
        return Note(code=NoteCode.WITNESS_AGREED, values=values)


def _main_frame() -> Any:
    """Return where Python's main thread is: gradients are looked at in threads of TensorFlow."""
    return sys._current_frames()[threading.main_thread().ident or 0]


def start_witness(
    world: World,
    launch: tuple[Any, ...],
    script: Path,
    logs: Path,
    cores: set[int],
    *,
    steps: float,
    patience_s: float,
) -> ObservedRank:
    """Start the witness of the ranks of `world`, on rank 0, on `cores`; return rank 0's side of it.

    It is sent `launch`, the settings and the point of the launch, runs `script` and prints into `logs`.
    """
    places = f"{script.absolute()}\n{logs.absolute()}"

    def spawn(name: str, **switches: str) -> Connection:
        ours, theirs = Pipe()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_MPI)}
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{name}.log").open("wb") as output:
            witness = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("start.py"))],
                env={**environment, WITNESS: places, **switches},
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        os.sched_setaffinity(witness.pid, cores)
        theirs.close()
        ours.send((world.size, steps, *launch))
        return ours

    return ObservedRank(world, spawn, steps, patience_s)


# The witness process: it runs the script alone, and sends its observations to rank 0.

_REST_S = 30.0  # that it goes on without anything to compare


class WitnessProcess(PeerRank):
    """The witness: it sends observations of `steps` gradients of each training, until rank 0 closes the connection."""

    is_witness = True

    def __init__(self, line: Connection, ranks: int, steps: float) -> None:
        super().__init__(steps=steps, over=False)
        self._line = line
        self.ranks = ranks
        self.nudges = bool(os.environ.pop(NUDGES, ""))
        self._asked = 0
        self._rests_since: float | None = None
        self._sends = threading.Lock()
        self._shared: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._end_after_rest, daemon=True).start()

    def _end_after_rest(self) -> None:
        """End this process when nothing has been looked at for `_REST_S` seconds."""
        while self._rests_since is None or time.monotonic() - self._rests_since < _REST_S:
            time.sleep(1.0)
        self.end()

    def rest(self) -> None:
        """Leave the cores to the ranks."""
        self._rests_since = time.monotonic()
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(task.name), 19)

    def begins(self) -> None:
        """Go on: another training is looked at."""
        self._rests_since = None

    def _listen(self) -> None:
        try:
            while (message := self._line.recv()) is not None:
                self._shared.put(message[0])
        except (EOFError, OSError):
            pass
        self.end()

    def share(self, value: Any) -> Any:
        """Return rank 0's value at this place of the script; rank 0 is told that this process waits for it."""
        self._asked += 1
        with self._sends:
            self._line.send(self._asked)
        return self._shared.get()

    def take(self, observation: Observation) -> None:
        """Send an observation to rank 0."""
        with self._sends:
            self._line.send(observation)

    def reads(self) -> None:
        """End, if anything has been trained: what rank 0 has in the file may be of another step."""
        if self._step:
            self.end()

    def end(self, why: Note | None = None) -> None:
        """End this process and those that it has started, which would train on for nobody."""
        if os.getpgrp() == os.getpid():  # as `start_witness` starts it
            os.killpg(0, signal.SIGKILL)
        os._exit(0)


def enter() -> tuple[WitnessProcess, tuple[Any, ...]]:
    """Be the witness that `start_witness` has started; return it, and the settings and the point of the launch."""
    line = Connection(os.dup(0))
    with Path(os.environ.get(INPUT, os.devnull)).open() as script_input:
        os.dup2(script_input.fileno(), 0)
    ranks, steps, *words = line.recv()
    return WitnessProcess(line, ranks, steps), tuple(words)
