"""Training that outlives ranks: a state that is committed, and a function that begins again from it.

What notices a failure and who is left is `harness.comm.elastic_world`'s, as under ON_FAILURE=shrink; compiled functions
stay as they are, for what they exchange by is opened again under them.
"""

import atexit
import copy
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from harness.base.errors import RunError, UserError
from harness.comm.elastic_world import Member, Team, check_library
from harness.comm.lost_ranks import find_loss
from harness.horovod.averaging import accumulations
from harness.horovod.objects import broadcast_object
from harness.horovod.process_sets import global_process_set, go_on, host, say_on_rank_0, size
from harness.horovod.variables import broadcast_variables


class HorovodInternalError(RuntimeError):
    """An exchange has failed: what runs begins again from the last commit."""


class HostsUpdatedInterrupt(HorovodInternalError):
    """The ranks have changed, for which a script may ask."""


class ObjectState:
    """Named values, attributes of the state, that are the same on all ranks after `sync`."""

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **values: Any) -> None:
        self._resets: list[Callable[[], None]] = []
        self._saved = values
        self._set()

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Have `callbacks` called, in order, after ranks have failed and before the values are made equal."""
        self._resets += callbacks

    def on_reset(self) -> None:
        """Tell the state, and who has asked for it, that the ranks have changed."""
        self.reset()
        for callback in self._resets:
            callback()

    def reset(self) -> None:
        """Do nothing: what a subclass does when the ranks have changed."""

    def commit(self) -> None:
        """Keep the values of now, on all ranks or on none; what is done after the last commit, a failure costs."""
        self.check_host_updates()
        self.save()

    def check_host_updates(self) -> None:
        """Find out, on all ranks together, whether one has failed.

        Raises:
            MPI.Exception: one has.
        """
        if _team is not None and _team.world is not None:
            with host.watch.inside("commit", 0):
                _team.confirm()

    def save(self) -> None:
        """Keep this rank's values."""
        self._saved = copy.deepcopy({name: getattr(self, name) for name in self._saved})

    def restore(self) -> None:
        """Go back to what was kept last."""
        self._set()

    def sync(self) -> None:
        """Give all ranks what rank 0 has kept last."""
        if self._saved:
            self._saved = broadcast_object(self._saved, name="state")
            self._set()

    def _set(self) -> None:
        vars(self).update(copy.deepcopy(self._saved))


State = ObjectState


class TensorFlowState(ObjectState):
    """`variables`, by default all of a TensorFlow-1 graph, and named values."""

    def __init__(self, variables: Any = None, session: Any = None, **values: Any) -> None:
        if not tf.executing_eagerly():
            raise UserError("hvd.elastic is for eager TensorFlow: leave out disable_eager_execution()")
        self.variables = variables
        self._kept = self._values()
        super().__init__(**values)

    def tracked(self) -> list[Any]:
        """Return the variables of now."""
        return list(self.variables)

    def save(self) -> None:
        """Keep this rank's variables and values."""
        self._kept = self._values()
        super().save()

    def restore(self) -> None:
        """Go back to what was kept last."""
        for variable, value in self._kept:
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Give all ranks rank 0's variables, and the values that it has kept last."""
        broadcast_variables(self.tracked(), root_rank=0)
        self._kept = self._values()
        super().sync()

    def _values(self) -> list[tuple[Any, Any]]:
        return [(variable, np.array(variable.numpy())) for variable in self.tracked()]


class TensorFlowKerasState(TensorFlowState):
    """A Keras model that is built, its optimizer or another, and named values.

    Raises:
        ValueError: the model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer or model.optimizer
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__(**values)

    def tracked(self) -> list[Any]:
        """Return the variables of model and optimizer."""
        variables = [*self.model.variables, *self.optimizer.variables]
        return [variable for variable in variables if variable.dtype != "string"]


KerasState = TensorFlowKerasState


class CommitStateCallback(keras.callbacks.Callback):
    """Commits `state` every `batches_per_commit` batches and after every epoch."""

    def __init__(self, state: ObjectState, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps the number of the last batch in `state.batch`, 0 after an epoch."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps the number of epochs that are done in `state.epoch`, those before a failure included."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self.initial_epoch + epoch + 1


_team: Team | None = None


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have `function`, whose first argument is a state, begin again from the last commit when a rank fails.

    The ranks that are left go on. That needs Open MPI started with ``--with-ft ulfm``, as `harness run` does it;
    otherwise a failed rank ends the run, and a line says so.
    """

    @functools.wraps(function)
    def elastic(state: Any, *args: Any, **named: Any) -> Any:
        team = _form_team()
        again = False
        while True:
            formed = None if team is None else team.form(None)
            if team is None or formed is not None:
                error, result = None, None
                try:
                    _begin(state, team, formed[0].failed if formed else (), again)
                    result = function(state, *args, **named)
                except Exception as failure:
                    if not _is_failure(failure, team):
                        raise
                    error = failure
                with host.watch.inside("end of hvd.elastic.run", 0):
                    ended = error is None if team is None else team.ended(error)
                if ended:
                    return result
                state.restore()
                again = True
            if team is not None:
                team.shrink()

    return elastic


def _begin(state: Any, team: Team | None, failed: Sequence[Member], again: bool) -> None:
    """Have all ranks that are left begin with the same state."""
    if team is not None and team.world is not None:
        team.clean_up(failed)
        go_on(team.world)
        if failed and team.world.rank == 0:
            names = ", ".join(f"rank {member.slot} (process {member.pid} on {member.host})" for member in failed)
            print(f"harness: {names} failed: {team.world.size} go on from the last commit", file=sys.stderr, flush=True)
    if again:
        for accumulation in accumulations:
            accumulation.reset()
        state.on_reset()
    state.sync()
    state.check_host_updates()  # what was taken from a rank that died meanwhile may be anything


def _is_failure(error: Exception, team: Team | None) -> bool:
    """Tell whether a rank's failure, or what the script takes for one, is the cause of `error`."""
    if isinstance(error, HorovodInternalError):
        return True
    if team is None:
        return False
    return find_loss(error) is not None or (not isinstance(error, RunError) and team.failed())


def _form_team() -> Team | None:
    """Return the ranks as those that outlive each other, None where they cannot."""
    global _team
    if _team is None and size() > 1:
        try:
            check_library("shrink")
        except UserError:
            say_on_rank_0(
                "a failed rank ends this run: hvd.elastic needs Open MPI 5 started by 'mpirun --with-ft ulfm'"
            )
            return None
        atexit.register(_leave)
        _team = Team(global_process_set.exchange.comm, host.patience_s, host.folder)
    return _team


def _leave() -> None:
    """End this process at once where others have failed: MPI_Finalize may wait for those that are gone."""
    if _team is None or _team.complete:
        return
    _team.leave()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if hasattr(sys, "last_value") else host.code)
