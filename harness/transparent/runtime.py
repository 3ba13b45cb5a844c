"""What one rank knows while it runs a user's script."""

import contextlib
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from harness.base.errors import RunError, SharedError, UserError
from harness.comm.hang import HangWatch
from harness.comm.world import World
from harness.schema.sync import SyncPolicy, find_policy
from harness.transparent.collectives import Collectives
from harness.transparent.patch import OwnRows, script_place
from harness.transparent.rows import Rows
from harness.transparent.run_settings import RunSettings
from harness.transparent.surroundings import AgreedSignals
from harness.transparent.witness import NoWitness

_PATIENCE = 16  # gradients and steps after which a loop must have been seen to take batches that can be divided
_NUDGE = 64  # roundings: one of them moves too few units across a bound, as dividing a batch does
_KEPT = 256  # the last variables of layers that no optimizer changes
_REMEMBERED = 4  # the sets of variables whose equality is shown at the end: a script may train many models


@contextlib.contextmanager
def switched_on(switch: ContextVar[bool]) -> Iterator[None]:
    """Have `switch` on within the block."""
    token = switch.set(True)
    try:
        yield
    finally:
        switch.reset(token)


@dataclass(kw_only=True)
class Feeding:
    """A Python loop over a data set: whether it trains, and `lines`, where in the script it is.

    What is known of it belongs to what it trains: `steps`, those of compiled functions, and `owners`, by id: the
    variables whose gradients it takes itself, and steps that the trial of these is to judge (`eager`). It is known as
    of `generation`, the count of what a script has made that can be trained; before, or after more has been made, it
    takes a batch whole and looks again (`looks`).

    `whole`: the batch at hand, `divided`: whether it is; `part`: this rank's of it, or of the last one that was.
    `began`: the steps that had been made when its first divided batch was taken. `tried`: whether some of its batches
    were of the trial, `behind`: whether it has ended. `doubt`: where it has taken the gradient of something unknown of
    a divided batch.
    """

    dataset: Any
    lines: "tuple[Any, ...]"
    trains: bool = False
    looks: bool = True
    eager: bool = False
    generation: int = 0
    steps: "set[Any]" = field(default_factory=set)
    owners: set[int] = field(default_factory=set)
    doubt: str = ""
    began: int | None = None
    whole: Any = None
    divided: bool = False
    part: Any = None
    tried: bool = False
    behind: bool = False

    @property
    def place(self) -> "tuple[Any, ...]":
        """What the trial of its gradients is known by: its lines, and what they train."""
        return (*self.lines, *sorted(self.owners))

    def look_again(self) -> None:
        """Take the next batch whole, and see what is trained with it."""
        self.trains = self.eager = False
        self.looks = True
        self.steps, self.owners = set(), set()
        self.began = self.part = None


@dataclass(kw_only=True)
class Runtime:
    """The world, the switches, and what has been seen of the script so far.

    `steps` counts gradients and optimizer steps of hand-written loops, `divided` the batches divided for them, `traced`
    those that were built into graphs; `generation` what the script has made that can be trained, or trains: variables,
    optimizers, compiled functions. `calls`: the compiled functions that are being called, one inside another. `feeding`
    is the loop whose batch was taken last, `takes_inside` whether one has been taken inside a compiled function;
    `undivided`: every rank takes Keras's batches whole; `uneven`: they have had arrays with batches without equal
    parts, and a step that was traced for these is to take later ones without a trace.
    `fusion` is what makes many steps in one execution, if anything does.
    """

    world: World
    settings: RunSettings
    own: OwnRows
    rows: Rows
    collectives: Collectives
    steps: int = 0
    divided: int = 0
    traced: int = 0
    generation: int = 0
    calls: int = 0
    synchronised: bool = False
    feeding: "Feeding | None" = None
    takes_inside: bool = False
    mixes: bool = False  # some of the script's rows are not independent
    uneven: bool = False
    private_files: bool = False  # every rank above 0 has a tree of its own
    at_end: Callable[[], None] = lambda: None
    fusion: Any = None  # `transparent.fused_fit.Fusion`, which reads this
    witness: NoWitness = field(default_factory=NoWitness)
    signals: AgreedSignals = field(default_factory=AgreedSignals)
    undivided: ContextVar[bool] = field(default_factory=lambda: ContextVar("undivided", default=False))
    notes: list[str] = field(default_factory=list)
    _started: "weakref.WeakSet[Any]" = field(default_factory=weakref.WeakSet)
    _trained: "deque[list[Any]]" = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _kept: "deque[Any]" = field(default_factory=lambda: deque(maxlen=_KEPT))
    seeds: "deque[Any]" = field(default_factory=lambda: deque(maxlen=_KEPT))  # the states of Keras's seed generators
    _raw: "dict[int, weakref.ref[Any]]" = field(default_factory=dict)  # the script's own variables, by id
    _of_rows: set[int] = field(default_factory=set)
    _quiet: ContextVar[bool] = field(default_factory=lambda: ContextVar("quiet", default=False))
    _trainer: ContextVar[bool] = field(default_factory=lambda: ContextVar("trainer", default=False))
    _fused: ContextVar[bool] = field(default_factory=lambda: ContextVar("fused", default=False))
    _lean: ContextVar[bool] = field(default_factory=lambda: ContextVar("lean", default=False))

    @classmethod
    def build(
        cls, world: World, settings: RunSettings, watch: HangWatch, own: OwnRows, witness: NoWitness
    ) -> "Runtime":
        """Return the state of a script that is about to start."""
        rows = Rows(world.rank, world.size, own)
        collectives = Collectives(world, rows, watch)
        return cls(world=world, settings=settings, own=own, rows=rows, collectives=collectives, witness=witness)

    @property
    def ranks(self) -> int:
        """How many ranks' batches a step takes, also where a witness takes them alone."""
        return self.witness.ranks or self.world.size

    @property
    def sync(self) -> SyncPolicy:
        """What is averaged, and when."""
        return find_policy(self.settings.sync)

    def note(self, sentence: str) -> None:
        """Print a sentence once, on rank 0's standard error, and keep it for the record."""
        if sentence in self.notes:
            return
        self.notes.append(sentence)
        if self.world.rank == 0:
            print(f"harness: {sentence}", file=sys.stderr, flush=True)

    @property
    def quiet(self) -> bool:
        """Whether what is going on is not to be synchronised: an optimizer inside another, Keras within Keras."""
        return self._quiet.get()

    def quietly(self) -> AbstractContextManager[None]:
        """Leave what happens in the block alone."""
        return switched_on(self._quiet)

    @property
    def in_trainer(self) -> bool:
        """Whether Keras's own training, evaluation or prediction is running."""
        return self._trainer.get()

    def trainer(self) -> AbstractContextManager[None]:
        """Keras's own training, evaluation or prediction runs in the block."""
        return switched_on(self._trainer)

    @property
    def fused(self) -> bool:
        """Whether a step is being traced for a loop of many, which no witness looks at."""
        return self._fused.get()

    @property
    def lean(self) -> bool:
        """Whether nothing but the variables is asked of the step that is being traced: what it reports is dropped."""
        return self._lean.get()

    @contextlib.contextmanager
    def fused_step(self, lean: bool) -> Iterator[None]:
        """Trace a step in the block for a loop of many."""
        counting, self.collectives.counting = self.collectives.counting, False
        lean_token, token = self._lean.set(lean), self._fused.set(True)
        try:
            yield
        finally:
            self._fused.reset(token)
            self._lean.reset(lean_token)
            self.collectives.counting = counting

    def whole(self, why: str) -> None:
        """Say that batches cannot be divided, and `why`: what every rank computes alike counts once."""
        self.mixes = True
        self.note(f"{why}: every rank computes whole batches, which is right but no faster")

    def stepped(self, variable: Any = None) -> None:
        """Count a gradient or an optimizer's step of a hand-written loop, or one that is being built into a graph.

        `variable`: the first of those that it is of; None for a compiled step as a whole.

        Raises:
            UserError: the loop's epochs are out of sight, and matter.
        """
        self.synchronised = True
        if self.sync.period is None and not self.in_trainer:
            raise UserError("SYNC=weights:epoch is for Keras's fit, where epochs can be seen: use weights:K for a loop")
        if not tf.executing_eagerly():
            self.traced += 1
            if not self.in_trainer and (self.takes_inside or in_dataset(tf.compat.v1.get_default_graph())):
                self.whole("the script trains in a loop inside a tf.function")
        elif not self.in_trainer:
            self.steps += 1
            if self.feeding is not None:
                self.feeding.trains = True
            eager = not self.calls or (tf.config.functions_run_eagerly() and not self.collectives.trial.goes_on)
            if self.feeding is not None and variable is not None and eager:
                self._take_note(self.feeding, variable)
            if self.steps >= _PATIENCE and not self.divided and not self.own.present:
                self.whole("the loop takes its batches neither from a tf.data.Dataset nor as a step's arguments")

    def _take_note(self, loop: Feeding, variable: Any) -> None:
        """Note that a `loop` takes the gradient of a `variable` itself."""
        loop.eager = True
        if id(variable) not in loop.owners:
            self.collectives.trial.owner(variable)  # which holds it: another may not get its id
            loop.owners.add(id(variable))
            if loop.divided:
                loop.doubt = script_place()

    def starts(self, owner: object) -> bool:
        """Return True the first time that `owner` (an optimizer, a model) is seen."""
        if owner in self._started:
            return False
        self._started.add(owner)
        return True

    def start_equal(self, variables: Sequence[Any], label: str) -> None:
        """Give `variables` rank 0's values on all ranks, and in the witness."""
        with tf.init_scope():
            values = [np.array(variable.numpy(), order="C") for variable in variables]
            for value in values:
                self.collectives.broadcast(value, label)
            for variable, value in zip(variables, self.witness.share(values), strict=True):
                if self.witness.nudges and value.dtype == np.float32:
                    value *= 1 + _NUDGE * np.finfo(np.float32).eps * np.resize((1, -1, -1, 1, 1), value.shape)
                if self.world.rank or self.witness.beside:
                    variable.assign(value)

    def equalise(self, label: str) -> None:
        """Give all variables that a step may have assigned rank 0's values on all ranks, metrics left out."""
        own = [variable for reference in self._raw.values() if (variable := reference()) is not None]
        known = {id(v): v for v in (*(v for kept in self._trained for v in kept), *self.kept, *own)}
        for variable in known.values():
            if not isinstance(variable, (tf.Variable, keras.Variable)) or variable.dtype == "string":
                continue  # a session's
            value = np.array(variable.numpy(), order="C")
            self.collectives.broadcast(value, label)
            if self.world.rank:
                variable.assign(value)

    def note_variable(self, variable: Any, *, of_rows: bool) -> None:
        """Take note of a variable that the script has made itself, and whether it is one of a batch's rows."""
        self._raw[id(variable)] = weakref.ref(variable)
        (self._of_rows.add if of_rows else self._of_rows.discard)(id(variable))

    def is_of_rows(self, variable: Any) -> bool:
        """Tell whether a variable that the script has made is of a batch's rows."""
        reference = self._raw.get(id(variable))
        return reference is not None and reference() is variable and id(variable) in self._of_rows

    def remember(self, variables: Sequence[Any]) -> None:
        """Keep `variables` for the proof that the replicas are identical."""
        known = {id(variable) for kept in self._trained for variable in kept}
        fresh = [variable for variable in variables if id(variable) not in known]
        if fresh:
            self._trained.append(fresh)

    @property
    def remembered(self) -> list[Any]:
        """The variables that are kept for the proof."""
        return [variable for variables in self._trained for variable in variables]

    def forget(self) -> None:
        """Keep nothing for the proof any more."""
        self._trained.clear()
        self._kept.clear()

    def keep(self, variable: Any) -> None:
        """Keep a variable of a layer that no optimizer changes, statistics of rows say, for the proof too."""
        self._kept.append(variable)

    @property
    def kept(self) -> list[Any]:
        """The variables of layers that no optimizer changes, as far as they have values: numbers of any precision."""
        return [variable for variable in self._kept if variable.dtype != "string" and initialised([variable])]

    def average(self, variables: Sequence[Any]) -> None:
        """Average floating-point `variables` where the sync policy lets the ranks differ between two averages."""
        if self.sync.shares_gradients:
            return
        floats = [variable for variable in variables if tf.as_dtype(variable.dtype).is_floating]
        with self.rows.given(None):
            means = self.collectives.mean([tf.convert_to_tensor(variable) for variable in floats], "weights")
        for variable, mean in zip(floats, means, strict=True):
            variable.assign(mean)

    def verify(self) -> str | None:
        """Return the hash that the remembered variables have on all ranks; None when there are none.

        Raises:
            SharedError: a RunError on every rank, naming the first variable that differs.
        """
        from harness.comm.replicas import hash_weights, verify_replicas

        self.at_end()
        variables = [variable for kept in self._trained for variable in kept]
        known = {id(variable) for variable in variables}
        if variables:
            variables += [variable for variable in self._kept if id(variable) not in known and initialised([variable])]
        self.average(variables)
        hashes = self.collectives.gather((len(variables), hash_weights(variables)), "comparison of weights")
        if len({count for count, _ in hashes}) > 1:
            counts = ", ".join(f"rank {rank} {count}" for rank, (count, _) in enumerate(hashes))
            raise SharedError(RunError(f"the ranks trained different numbers of variables: {counts}"))
        if not variables:
            return None
        if len(set(hashes)) == 1:
            return str(hashes[0][1])
        return verify_replicas(self.world, variables)


def in_dataset(graph: Any) -> bool:
    """Tell whether a function of a data set is being built: what a loop over one becomes inside a `tf.function`."""
    while graph is not None:
        if "Dataset" in str(getattr(graph, "name", "")):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def initialised(variables: Sequence[Any]) -> bool:
    """Tell whether all `variables` (Keras's or TensorFlow's) have values; False inside a TensorFlow-1 graph."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            return False
        handles = [
            variable.handle if isinstance(variable, tf.Variable) else variable.value.handle for variable in variables
        ]
        return all(bool(tf.raw_ops.VarIsInitializedOp(resource=handle)) for handle in handles)
