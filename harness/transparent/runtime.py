"""The state of one rank while it runs a user's script."""

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn

import tensorflow as tf

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.comm.hang import HangWatch
from harness.comm.world import World
from harness.schema.own_code import find_policy
from harness.schema.record_notes import Note, NoteCode
from harness.schema.sync_policies import SyncPolicy
from harness.transparent.batch_rows import Rows
from harness.transparent.clocks import AgreedSignals
from harness.transparent.collectives import Collectives
from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.patch import OwnRows, script_place
from harness.transparent.replica_variables import ReplicaVariables
from harness.transparent.run_settings import RunSettings
from harness.transparent.witness import NoWitness, PeerRank

_PATIENCE = 16  # gradients and steps after which a loop must have been seen to take batches that can be divided


@contextlib.contextmanager
def switched_on(switch: ContextVar[bool]) -> Iterator[None]:
    """Have `switch` on within the block."""
    token = switch.set(True)
    try:
        yield
    finally:
        switch.reset(token)


@dataclass(kw_only=True)
class Runtime:
    """The MPI world, the switches, and what has been seen of the script so far.

    What is counted:

    - `steps`: gradients and optimizer steps of hand-written loops.
    - `divided`: batches that were divided for these loops.
    - `traced`: gradients and optimizer steps that were built into graphs.
    - `generation`: things that the script has made and that can be trained, or that train: variables, optimizers,
      compiled functions.
    - `calls`: compiled functions that are being called, one inside another.

    What has been seen:

    - `loop`: the loop whose batch was taken last.
    - `takes_inside`: whether a batch has been taken inside a compiled function.
    - `mixes`: whether some of the script's rows are not independent.
    - `uneven`: whether Keras has been given arrays whose batches have no equal parts. A step that was traced for such a
      batch takes later batches without another trace.
    - `synchronised`: whether anything has been averaged over the ranks.
    - `sees_ranks`: whether the script was left to see to its ranks itself, as one for Horovod.

    `undivided`: within it every rank takes all rows of Keras's batches. `fusion` makes several steps in one execution,
    where something does. `at_end` ends a trial that is under way.
    """

    world: World
    settings: RunSettings
    own_rows: OwnRows
    rows: Rows
    collectives: Collectives
    variables: ReplicaVariables
    steps: int = 0
    divided: int = 0
    traced: int = 0
    generation: int = 0
    calls: int = 0
    synchronised: bool = False
    sees_ranks: bool = False
    loop: DatasetLoop | None = None
    takes_inside: bool = False
    mixes: bool = False
    uneven: bool = False
    at_end: Callable[[], None] = lambda: None
    fusion: Any = None  # `transparent.fused_fit.Fusion`, which reads this
    witness: NoWitness = field(default_factory=NoWitness)
    signals: AgreedSignals = field(default_factory=AgreedSignals)
    undivided: ContextVar[bool] = field(default_factory=lambda: ContextVar("undivided", default=False))
    notes: list[Note] = field(default_factory=list)
    _seen: "weakref.WeakSet[Any]" = field(default_factory=weakref.WeakSet)
    _quiet: ContextVar[bool] = field(default_factory=lambda: ContextVar("quiet", default=False))
    _trainer: ContextVar[bool] = field(default_factory=lambda: ContextVar("trainer", default=False))
    _fused: ContextVar[bool] = field(default_factory=lambda: ContextVar("fused", default=False))
    _lean: ContextVar[bool] = field(default_factory=lambda: ContextVar("lean", default=False))

    @classmethod
    def build(
        cls, world: World, settings: RunSettings, watch: HangWatch, own_rows: OwnRows, witness: NoWitness
    ) -> "Runtime":
        """Return the state of a script that is about to start."""
        rows = Rows(world.rank, world.size, own_rows)
        collectives = Collectives(world, rows, watch)
        variables = ReplicaVariables(world, rows, collectives, witness, find_policy(settings.sync))
        return cls(
            world=world,
            settings=settings,
            own_rows=own_rows,
            rows=rows,
            collectives=collectives,
            variables=variables,
            witness=witness,
        )

    @property
    def ranks(self) -> int:
        """How many ranks' batches a step takes, also in the witness, which takes all of them alone."""
        return self.witness.ranks or self.world.size

    @property
    def sync(self) -> SyncPolicy:
        """What is averaged, and when."""
        return find_policy(self.settings.sync)

    def note(self, note: Note) -> None:
        """Print a note once, on rank 0's standard error, and keep it for the record."""
        if note in self.notes:
            return
        self.notes.append(note)
        if self.world.rank == 0:
            print(f"harness: {note}", file=sys.stderr, flush=True)

    @property
    def compares_with_one_process(self) -> bool:
        """Whether what is divided must be what one process would make of it: unless the user asks for less."""
        is_asked = not (self.settings.unjudged or self.witness.is_witness or self.own_rows.present)
        return is_asked and self.world.size > 1 and self.sync.shares_gradients

    def refuse_mixed(self, step: int) -> NoReturn:
        """Refuse a training whose batches have been divided up to a `step` that mixes their rows.

        Raises:
            UserError: always; on all ranks, which have found so together.
        """
        raise UserError(
            f"step {step} of a training mixes the rows of its batch ({script_place()}), and batches have been divided "
            "until then: divided over ranks, the script may train otherwise than alone; run it with -n 1, or with "
            "--unjudged all the same"
        )

    @property
    def quiet(self) -> bool:
        """Whether nothing is to be synchronised now: an optimizer inside another, Keras within Keras."""
        return self._quiet.get()

    def quietly(self) -> AbstractContextManager[None]:
        """Synchronise nothing within the block."""
        return switched_on(self._quiet)

    @property
    def in_trainer(self) -> bool:
        """Whether Keras's own training, evaluation or prediction is running."""
        return self._trainer.get()

    def trainer(self) -> AbstractContextManager[None]:
        """Keras's own training, evaluation or prediction runs within the block."""
        return switched_on(self._trainer)

    @property
    def fused(self) -> bool:
        """Whether a step is being traced for a loop of many steps, which no witness looks at."""
        return self._fused.get()

    @property
    def lean(self) -> bool:
        """Whether only the variables are asked of the step that is being traced: what it reports is dropped."""
        return self._lean.get()

    @contextlib.contextmanager
    def fused_step(self, lean: bool) -> Iterator[None]:
        """Trace a step within the block for a loop of many steps."""
        was_counting = self.collectives.counting
        self.collectives.counting = False
        lean_token = self._lean.set(lean)
        fused_token = self._fused.set(True)
        try:
            yield
        finally:
            self._fused.reset(fused_token)
            self._lean.reset(lean_token)
            self.collectives.counting = was_counting

    def compute_whole(self, why: str) -> None:
        """Note that batches cannot be divided, and `why`: every rank computes all rows, which count once."""
        self.mixes = True
        self.note(Note(code=NoteCode.COMPUTED_WHOLE, values={"reason": why}))

    def begin_judged(self) -> bool:
        """Tell whether a witness compares the training whose batches are divided from now on; all ranks together.

        Where it does not, the caller has every rank compute whole batches. Without a witness nothing is compared.
        """
        if not isinstance(self.witness, PeerRank):
            return True
        is_judged = self.collectives.gather(self.witness.judges_next(), "whether a witness is there")[0]
        if not is_judged:
            self.note(Note(code=NoteCode.NOT_DIVIDED_FROM, values={"place": script_place()}))
            self.mixes = True
        return bool(is_judged)

    def begin_training(self) -> None:
        """Note that gradients are averaged over the ranks.

        Raises:
            UserError: the script was to see to its ranks itself, so all ranks have written the same files.
        """
        if self.sees_ranks:
            raise UserError(
                f"the script trains without Horovod's init ({script_place()}), though it imports Horovod or has the "
                "word in an argument, and so sees to its ranks and files itself: call hvd.init() first, put the import "
                "under the condition that asks for it, or run it with -n 1"
            )
        self.synchronised = True

    def count_step(self, variable: Any = None) -> None:
        """Count a gradient or an optimizer's step of a hand-written loop, also while its graph is being built.

        `variable`: the first of those that are trained; None for a compiled step as a whole.

        Raises:
            UserError: the sync policy asks for epochs, which a hand-written loop does not show; see `begin_training`.
        """
        self.begin_training()
        if self.sync.period is None and not self.in_trainer:
            raise UserError(
                f"{setting('sync', 'weights:epoch')} is for Keras's fit, where epochs can be seen: use weights:K for a "
                "loop"
            )
        if not tf.executing_eagerly():
            self._count_traced()
        elif not self.in_trainer:
            self._count_eager(variable)

    def _count_traced(self) -> None:
        self.traced += 1
        if not self.in_trainer and (self.takes_inside or in_dataset(tf.compat.v1.get_default_graph())):
            self.compute_whole("the script trains in a loop inside a tf.function")

    def _count_eager(self, variable: Any) -> None:
        self.steps += 1
        if self.loop is not None:
            self.loop.trains = True
        goes_on = self.collectives.trial.goes_on
        is_eager = not self.calls or (tf.config.functions_run_eagerly() and not goes_on)
        if self.loop is not None and variable is not None and is_eager:
            self._note_gradient(self.loop, variable)
        if self.steps >= _PATIENCE and not (self.divided or self.mixes or self.own_rows.present):
            self.compute_whole("the loop takes its batches neither from a tf.data.Dataset nor as a step's arguments")

    def _note_gradient(self, loop: DatasetLoop, variable: Any) -> None:
        """Note that `loop` takes the gradient of `variable` itself."""
        loop.takes_gradients = True
        if id(variable) in loop.owners:
            return
        self.collectives.trial.owner(variable)  # keeps it alive: no other variable may get its id
        loop.owners.add(id(variable))
        if loop.is_divided:
            loop.unprobed_place = script_place()

    def is_new(self, owner: object) -> bool:
        """Return True the first time that `owner` (an optimizer, a model) is seen."""
        if owner in self._seen:
            return False
        self._seen.add(owner)
        return True

    def verify(self) -> str | None:
        """Return the hash that the trained variables have on all ranks, see `ReplicaVariables.verify`."""
        self.at_end()
        return self.variables.verify()


def in_dataset(graph: Any) -> bool:
    """Tell whether a function of a data set is being built: what a loop over one becomes inside a `tf.function`."""
    while graph is not None:
        if "Dataset" in str(getattr(graph, "name", "")):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
