"""What of Horovod's interface is not here: the sentence that a script gets which asks for it.

None of these names is in one of a hundred public scripts, but for Adasum, an option that is off in the few that have
it, and `elastic`, which Horovod's own examples alone have. docs/horovod.md has the count.
"""

from collections.abc import Mapping

from harness.base.errors import UserError

_ALL_RANKS = "all ranks exchange together; some of them can by a communicator of mpi4py"
_LOCAL = "step variables that each rank keeps for itself by an optimizer of their own, which is not wrapped"
_OWN_ROWS = "take this rank's rows of what hvd.allreduce returns"
_PLAIN_NUMBER = "call it without _op, outside of the function that is compiled"
_SCALE = "multiply the tensor, or the result, by it"
_TIMELINE = "leave it out: harness run --record FOLDER notes when each step's sums begin and end"

INSTEAD = {
    "Adasum": "use op=hvd.Average or op=hvd.Sum",
    "BestModelCheckpoint": "use keras.callbacks.ModelCheckpoint(save_best_only=True)",
    "PartialDistributedGradientTape": _LOCAL,
    "PartialDistributedOptimizer": _LOCAL,
    "ProcessSet": _ALL_RANKS,
    "SyncBatchNormalization": "use keras.layers.BatchNormalization, whose moments are those of each rank's own rows",
    "add_process_set": _ALL_RANKS,
    "allgather_object": "gather a tensor by hvd.allgather, or an object by mpi4py's MPI.COMM_WORLD.allgather",
    "alltoall": "take the rows for this rank of what hvd.allgather returns",
    "broadcast_object_fn": "call hvd.broadcast_object",
    "cross_rank": "use hvd.rank() // hvd.local_size()",
    "cross_size": "use hvd.size() // hvd.local_size()",
    "elastic": "call the training function itself, and write checkpoints from which the next start goes on",
    "global_process_set": _ALL_RANKS,
    "grouped_reducescatter": _OWN_ROWS,
    "is_homogeneous": "gather hvd.local_size() of all ranks by hvd.allgather",
    "local_rank_op": _PLAIN_NUMBER,
    "local_size_op": _PLAIN_NUMBER,
    "process_set_included_op": _ALL_RANKS,
    "rank_op": _PLAIN_NUMBER,
    "reducescatter": _OWN_ROWS,
    "remove_process_set": _ALL_RANKS,
    "run": "start the ranks by harness run -n RANKS SCRIPT",
    "size_op": _PLAIN_NUMBER,
    "start_timeline": _TIMELINE,
    "stop_timeline": _TIMELINE,
    "sync_batch_norm": "use keras.layers.BatchNormalization, whose moments are those of each rank's own rows",
    # Arguments, and methods of wrapped optimizers and tapes.
    "get_local_and_global_gradients": _LOCAL,
    "local_layers": _LOCAL,
    "local_variables": _LOCAL,
    "postscale_factor": _SCALE,
    "prescale_factor": _SCALE,
    "process_set": _ALL_RANKS,
    "process_sets": _ALL_RANKS,
    "register_local_source": _LOCAL,
    "register_local_var": _LOCAL,
    "scale_local_gradients": _LOCAL,
}


class NotOfferedError(UserError, AttributeError):
    """A script asks for what is not here; for `hasattr` it is not there."""


def not_offered(name: str) -> NotOfferedError:
    """Return the error that names what is not here, and what to do."""
    return NotOfferedError(f"'{name}' of Horovod is not offered here: {INSTEAD[name]}")


def refuse_arguments(function: str, arguments: Mapping[str, object]) -> None:
    """Refuse `arguments` that `function` does not take.

    Raises:
        NotOfferedError: Horovod has such an argument.
        TypeError: Horovod has none.
    """
    for name in arguments:
        if name in INSTEAD:
            raise not_offered(name)
        raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
