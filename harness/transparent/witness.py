"""The witness: one more process, which runs the script alone and undivided beside the ranks, for its first steps.

Rank 0 starts it and compares, in order, every averaged gradient and every number that a compiled step returns with the
witness's. It knows nothing of what a script does: what trains otherwise on parts than on whole batches is seen to.
"""

import contextlib
import itertools
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.comm.world import World, abort
from harness.transparent.patch import script_lines
from harness.transparent.run_settings import INPUT

STEPS = 20  # averaged gradients that are compared by default
WITNESS = "HARNESS_WITNESS"
"""Environment variable of the witness: it is one, and its standard input is the way to rank 0."""

_NUDGES = "HARNESS_NUDGES"  # set for a second witness
_FOLD, _DIRECTIONS = 65521, 4
_ROUNDING, _COARSE = 3e-3, 5e-2  # of a gradient's length, in float32 and in types of 16 bits
_SMALL = 5e-2  # of the length of all gradients of a step: below it a single one's may be nothing but rounding
_GONE = 1e-3  # of the greatest length they have had: a loss that has gone to 0 leaves rounding
_NUMBERS = 1e-2  # of a number that a step returns, or of `_LEAST` where it is smaller
_LEAST = 0.05
_LONGER = 1.6  # patience with a second one: less than the others' with rank 0
_LIKE = 10  # times as far as the script alone is from itself with other kernels: no mistake, but rounding magnified
DRAWN = (
    "no witness has judged the training: the script draws random numbers in it that do not follow from a row's place, "
    "so that alone it trains otherwise"
)
_MPI = ("OMPI_", "PMIX_", "PMI_", "PRTE_")


class Alone:
    """What a process without others has in the place of a communicator."""

    def bcast(self, value: Any, root: int) -> Any:
        """Return `value`."""
        return value

    def allgather(self, value: Any) -> list[Any]:
        """Return `value`, the only one."""
        return [value]

    def Bcast(self, array: Any, root: int) -> None:
        """Leave `array` as it is."""


class Seen(NamedTuple):
    """A gradient (`kind`) of several variables, or numbers: their `names`, and a row of float64 `measures` for each.

    `rows`: of the batch, of all ranks, 0 where they are not counted.
    """

    kind: str
    names: tuple[str, ...]
    measures: npt.NDArray[np.float64]
    rows: float = 0.0


class NoWitness:
    """Neither is a witness beside this process, nor is it one. `beside`: whether it is; `ranks`: those it is beside.

    `coarse`: whether some of the script's layers compute in types of 16 bits; `nudges`: whether first weights are moved
    by some roundings.
    """

    beside, ranks = False, 0
    coarse = nudges = False

    @property
    def over(self) -> bool:
        """Whether nobody looks at steps any more."""
        return True

    def install(self, runtime: Any) -> None:
        """Prepare, once TensorFlow is there."""

    def share(self, value: Any) -> Any:
        """Return rank 0's `value` at this place of the script."""
        return value

    def gradients(self, gradients: Sequence[Any], variables: Sequence[Any], rows: Any = None) -> list[Any]:
        """Take note of the averaged `gradients` of a step of so many `rows`, also where its graph is being built.

        Return them, of which a graph has to use what is returned.
        """
        return list(gradients)

    def off(self, graph: Any) -> dict[Any, bool]:
        """Return what is to be fed to a session's run of `graph` when nobody looks any more."""
        return {}

    def numbers(self, place: str, structure: Any) -> Any:
        """Take note of the single numbers in `structure`, which the step at `place` returns; return it."""
        return structure

    def reads(self) -> None:
        """Take note that the script reads a file that rank 0 may have written."""

    def end(self, why: str = "") -> None:
        """Have the witness go; `why`, or what it has shown, is told."""


class Elsewhere(NoWitness):
    """What another rank has while rank 0 has a witness: it looks at nothing, but builds the same graphs as rank 0.

    TensorFlow may round otherwise in another graph, and then the replicas would differ.
    """

    def __init__(self, *, over: bool = True) -> None:
        self._step = 0
        self._over = over
        self._going: Any = None  # the switch of what is built into graphs, made with the first: scripts set up devices
        self._fed: list[Any] = []  # the switches of sessions' graphs

    @property
    def over(self) -> bool:
        """Whether nobody looks at steps any more."""
        return self._over

    def off(self, graph: Any) -> dict[Any, bool]:
        """Return the switches of a session's `graph` that are to be off."""
        return {switch: False for switch in self._fed if self._over and switch.graph is graph}

    def gradients(self, gradients: Sequence[Any], variables: Sequence[Any], rows: Any = None) -> list[Any]:
        """Look at `gradients` now, or in every run of the graph that is being built while anybody looks."""
        import tensorflow as tf

        if self._over and tf.executing_eagerly():
            return list(gradients)
        if not tf.executing_eagerly():
            self.compiled(tf.compat.v1.get_default_graph())
        names = tuple(getattr(variable, "path", variable.name) for variable in variables)
        parts = [[part.values, part.indices] if isinstance(part, tf.IndexedSlices) else [part] for part in gradients]
        look = partial(self._look, names, [len(part) for part in parts])

        def now() -> list[tf.Tensor]:
            counted = tf.zeros([]) if rows is None else rows
            return [tf.convert_to_tensor(each) for each in (counted, *itertools.chain(*parts))]

        if tf.executing_eagerly():
            look(*(each.numpy() for each in now()))
            return list(gradients)
        if tf.compat.v1.executing_eagerly_outside_functions():
            from harness.transparent.rows import own_variable

            if self._going is None:
                self._going = own_variable(not self._over, "harness_witness")
            going = self._going
        else:
            going = tf.compat.v1.placeholder_with_default(True, (), name="harness_witness")
            self._fed.append(going)
        seen = tf.cond(going, lambda: tf.numpy_function(look, now(), tf.int64), lambda: tf.constant(0, tf.int64))
        with tf.control_dependencies([seen]):
            return [tf.identity(gradient) for gradient in gradients]

    def _look(self, names: tuple[str, ...], counts: Sequence[int], rows: Any, *arrays: Any) -> np.int64:
        rest = iter(arrays)
        gradients = [measures(*(next(rest) for _ in range(count))) for count in counts]
        self._step += 1
        self.take(Seen("gradient", names, np.array(gradients), float(rows)))
        return np.int64(0)

    def numbers(self, place: str, structure: Any) -> Any:
        """Look at the numbers that a step returns."""
        if self._over:
            return structure
        import tensorflow as tf
        from tensorflow.python.util.nest import flatten_with_joined_string_paths

        known = structure
        if isinstance(known, dict):  # a monitored session's has its hooks for keys, which no order sorts
            named = enumerate(known.items())
            known = {key if isinstance(key, str) else str(place): value for place, (key, value) in named}
        found = [
            (f"{place} {path}".strip(), float(leaf))
            for path, leaf in flatten_with_joined_string_paths(known)
            if (tf.is_tensor(leaf) or isinstance(leaf, np.number))
            and not len(leaf.shape)
            and (tf.as_dtype(leaf.dtype).is_floating or tf.as_dtype(leaf.dtype).is_integer)
        ]
        if found:
            self.take(Seen("number", tuple(name for name, _ in found), np.array([[value] for _, value in found])))
        return structure

    def compiled(self, graph: Any) -> None:
        """Take note of a step's `graph`, which has been built up to its gradients."""

    def take(self, seen: Seen) -> None:
        """Take what has been seen."""
        raise NotImplementedError


class Testimony(Elsewhere):
    """The witness's end: it sends what it sees, until `steps` gradients have been sent or rank 0 hangs up."""

    beside = True

    def __init__(self, line: Connection, ranks: int, steps: float) -> None:
        super().__init__(over=False)
        self._line = line
        self.ranks, self._steps, self.nudges = ranks, steps, bool(os.environ.pop(_NUDGES, ""))
        self._told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while (told := self._line.recv()) is not None:
                self._told.put(told[0])
        except (EOFError, OSError):
            pass
        self.end()

    def share(self, value: Any) -> Any:
        """Wait for rank 0's."""
        return self._told.get()

    def take(self, seen: Seen) -> None:
        """Tell rank 0; end this process when enough has been told."""
        self._line.send(seen)
        if self._step >= self._steps:
            self.end()

    def reads(self) -> None:
        """End, if anything has been trained: what rank 0 has in the file may be of another step."""
        if self._step:
            self.end()

    def end(self, why: str = "") -> None:
        """End this process."""
        os._exit(0)


class Watched(Elsewhere):
    """Rank 0's end: it compares what it sees with what the witness has seen, and ends the launch at a difference.

    `patience_s`: how long it waits for the witness at every step.
    """

    def __init__(self, world: World, spawn: Callable[..., Connection], steps: float, patience_s: float) -> None:
        super().__init__(over=False)
        self._spawn, self._line = spawn, spawn("witness")
        self._world, self._steps, self._patience_s = world, steps, patience_s
        self._runtime: Any = None  # `transparent.runtime.Runtime`, which has this one
        self._heard: queue.SimpleQueue[Seen | None] = queue.SimpleQueue()
        self._taken = self._agreed = 0
        self._shared: list[Any] = []
        self._most = 0.0
        self._longest: dict[tuple[str, ...], float] = {}  # gradients of all these variables so far
        self._kinds: set[str] = set()  # of the operations of steps
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                self._heard.put(self._line.recv())
        except (EOFError, OSError):
            self._heard.put(None)

    def install(self, runtime: Any) -> None:
        """Take note of where to tell what has been found."""
        self._runtime = runtime

    def compiled(self, graph: Any) -> None:
        """Say so where a step computes what those did not that were compared."""
        kinds = {op.type for op in graph.get_operations() if any(each.dtype.is_floating for each in op.outputs)}
        if self._over and self._agreed and not kinds <= self._kinds:
            self._runtime.note(
                f"no witness has judged what the script trains from {_place(sys._getframe())} on: it computes "
                "otherwise than in the steps that were compared, and --witness all compares all of them"
            )
        self._kinds |= kinds

    def share(self, value: Any) -> Any:
        """Tell the witness, as long as there is one."""
        if not self._over:
            self._shared.append(value)
            with contextlib.suppress(OSError):
                self._line.send((value,))
        return value

    def end(self, why: str = "") -> None:
        """Watch no longer."""
        if self._over:
            return
        self._over = True
        self._shared.clear()
        with contextlib.suppress(OSError):
            self._line.send(None)
        if self._runtime is None:
            return
        import tensorflow as tf

        self._runtime.note(why or self.told())
        with tf.init_scope():
            if tf.executing_eagerly() and self._going is not None:
                self._going.assign(False)

    def take(self, seen: Seen) -> None:
        """Compare; a difference ends all ranks by a sentence."""
        if self._over:
            return
        if self._runtime is not None and self._runtime.own.present:
            self.end("no witness has judged the training: every rank reads rows of its own")
            return
        try:
            other = self._heard.get(timeout=self._patience_s)
        except queue.Empty:
            self.end(f"the witness was left behind: it has not come to step {self._step} in {self._patience_s:.0f} s")
            return
        self._taken += 1
        if other is None:
            self.end()
        elif not _comparable(other, seen):
            self.end(f"{self.told()}; then its steps were others than the ranks'")
        else:
            lengths = np.nan_to_num(other.measures[:, 0], posinf=0.0)
            self._longest[seen.names] = max(self._longest.get(seen.names, 0.0), float(np.linalg.norm(lengths)))
            least = _GONE * self._longest[seen.names]
            apart, name = compared(seen, other, least)
            if apart > (_NUMBERS if seen.kind == "number" else _COARSE if self.coarse else _ROUNDING):
                what = f"the {seen.kind} '{name}' is {apart:.2g} of its size away from"
                alone = self._from_itself(other, least)
                if apart > _LIKE * alone:
                    rounds = f"itself rounded to {alone:.0e}" if alone else "how far it rounds was not found in time"
                    self._end_all(f"{what} what one process makes of the whole batch ({rounds})")
                self.end(
                    f"{self.told()}; then {what} the witness's, as the script alone is ({alone:.2g}) from itself with "
                    "other kernels: what magnifies rounding so cannot be judged"
                )
                return
            if abs(seen.rows - other.rows) > 0.5:
                self._end_all(f"the ranks together have {seen.rows:.0f} of the batch's {other.rows:.0f} rows")
            self._most = max(self._most, apart)
            self._agreed += seen.kind == "gradient"
            if self._agreed >= self._steps:
                self.end()

    def _from_itself(self, seen: Seen, least: float) -> float:
        """Return how far a second witness, which rounds otherwise, is from what the first one has `seen` last."""
        deadline = time.monotonic() + _LONGER * self._patience_s
        onednn = "TF_ENABLE_ONEDNN_OPTS"
        switches = {_NUDGES: "1", onednn: str(int(os.environ.get(onednn) == "0"))}
        again = None
        with self._spawn("witness-again", **switches) as line:
            try:
                for value in self._shared:
                    line.send((value,))
                for _ in range(self._taken):
                    if not line.poll(max(0.0, deadline - time.monotonic())):
                        return 0.0
                    again = line.recv()
            except (EOFError, OSError):  # it has died
                return 0.0
        return compared(again, seen, least)[0] if again is not None and _comparable(again, seen) else np.inf

    def _end_all(self, what: str) -> NoReturn:
        place = _place(sys._current_frames()[threading.main_thread().ident or 0])
        abort(
            self._world,
            UserError(
                f"in step {self._step} {what} ({place}): divided over ranks, the script trains otherwise than alone; "
                "run it with -n 1, or with --witness off all the same"
            ),
        )

    def told(self) -> str:
        """Return what the witness has shown."""
        if not self._agreed:
            return "no witness has judged the training: it has seen no gradients of the script"
        return (
            f"a witness, the script alone and undivided, had the same gradients and numbers in its first {self._agreed}"
            f" steps (apart by {self._most:.1e} at most)"
        )


def _place(frame: Any) -> str:
    lines = script_lines(frame)
    return f"{Path(lines[0][0]).name}, line {lines[0][1]}" if lines else "behind its last line"


def _comparable(seen: Seen, other: Seen) -> bool:
    return (seen.kind, seen.measures.shape) == (other.kind, other.measures.shape)


def start(
    world: World, words: tuple[Any, ...], logs: Path, cores: set[int], steps: float, patience_s: float
) -> Watched:
    """Start the witness of the ranks of `world`, on rank 0, on `cores`; it is given `words`, and prints into `logs`."""

    def spawn(name: str, **switches: str) -> Connection:
        ours, theirs = Pipe()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_MPI)}
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{name}.log").open("wb") as output:
            witness = subprocess.Popen(
                [sys.executable, "-m", "harness.transparent"],
                env={**environment, WITNESS: "1", **switches},
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        os.sched_setaffinity(witness.pid, cores)
        theirs.close()
        ours.send((world.size, steps, *words))
        return ours

    return Watched(world, spawn, steps, patience_s)


def enter() -> tuple[Testimony, tuple[Any, ...]]:
    """Be the witness that `start` has started; return it and its words."""
    line = Connection(os.dup(0))
    with Path(os.environ.get(INPUT, os.devnull)).open() as given:
        os.dup2(given.fileno(), 0)
    ranks, steps, *words = line.recv()
    return Testimony(line, ranks, steps), tuple(words)


def measures(values: Any, indices: Any = None) -> npt.NDArray[np.float64]:
    """Return length and some projections of a gradient's `values`; of a sparse one's, in any order of `indices`."""
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


def compared(seen: Seen, other: Seen, least: float = 0.0) -> tuple[float, str]:
    """Return the greatest difference as a share of the size of what differs, and its name.

    A gradient has `least` for its size at least.
    """
    both = np.stack([seen.measures, other.measures])
    with np.errstate(invalid="ignore"):
        gap = np.abs(both[0] - both[1]).max(1)
    gap[~np.isfinite(both).all(2).any(0)] = 0.0  # both overflow, as half precision may
    size = np.nan_to_num(np.abs(both[:, :, 0]).max(0), posinf=0.0)
    size = np.maximum(size, _LEAST) if seen.kind == "number" else size + max(_SMALL * np.linalg.norm(size), least)
    shares = np.nan_to_num(gap / np.maximum(size, np.finfo(np.float32).tiny), nan=np.inf)
    worst = int(np.argmax(shares))
    return float(shares[worst]), seen.names[worst]
