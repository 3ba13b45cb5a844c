"""Checkpoints, exports and event files of Keras and TensorFlow: rank 0 writes them, every rank may read them."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from harness.base.errors import UserError
from harness.transparent.files import private_folder
from harness.transparent.patch import replace
from harness.transparent.runtime import Runtime


def install(runtime: Runtime) -> None:
    """Let ranks above 0 skip what writes through TensorFlow's own file system, and all wait before they read.

    Python's `open` is dealt with in `files`. Reading waits for rank 0, whose write comes earlier in the script.
    """
    import keras
    from keras.src.models.model import Model
    from tensorflow.python.checkpoint.checkpoint import Checkpoint
    from tensorflow.python.checkpoint.checkpoint_management import CheckpointManager
    from tensorflow.python.training.saver import Saver

    for owner, name, parameters in (
        (Model, "load_weights", ("self", "filepath")),
        (Saver, "restore", ("self", "sess", "save_path")),
        (Checkpoint, "read", ("self", "save_path")),
        (Checkpoint, "restore", ("self", "save_path")),
    ):
        replace(owner, name, parameters, _waiting(runtime))
    for holder, function in (
        (tf.keras.models, "load_model"),
        (keras.models, "load_model"),
        (keras.saving, "load_model"),
        (tf.saved_model, "load"),
        (tf.train, "latest_checkpoint"),
        (tf.train, "load_checkpoint"),
    ):
        setattr(holder, function, _waiting(runtime)(getattr(holder, function)))
    replace(CheckpointManager, "save", ("self", "checkpoint_number"), _managed(runtime))
    _share_backups(runtime)
    if runtime.world.rank == 0:
        return
    for owner, name, parameters in (
        (Model, "save", ("self", "filepath")),
        (Model, "save_weights", ("self", "filepath")),
        (Model, "export", ("self", "filepath")),
    ):
        replace(owner, name, parameters, _nothing)
    replace(Saver, "save", ("self", "sess", "save_path"), _path(2))
    replace(Checkpoint, "write", ("self", "file_prefix"), _path(1))
    replace(Checkpoint, "save", ("self", "file_prefix"), _path(1))
    tf.saved_model.save = _nothing(tf.saved_model.save)
    _redirect_events()


def _share_backups(runtime: Runtime) -> None:
    """Let rank 0 write and delete the backups of `BackupAndRestore`, and all ranks go on from the same one."""
    from keras.callbacks import BackupAndRestore

    first = runtime.world.rank == 0

    def restoring(original: Callable[..., Any]) -> Callable[..., Any]:
        def restore(callback: Any, logs: Any = None) -> None:
            if first:
                original(callback, logs)  # which puts the one before into the place of a damaged backup
            runtime.collectives.gather(None, "wait for the backup")
            if not first:
                original(callback, logs)
            found = runtime.collectives.gather(getattr(callback.model, "_initial_epoch", None), "epoch of the backup")
            if len(set(found)) > 1:
                raise UserError(
                    f"not all ranks find the backup in '{callback.backup_dir}' (epochs {found}): put it where all "
                    "hosts read the same files"
                )

        return restore

    def saving(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(callback: Any) -> None:
            if callback.save_freq == "epoch":  # weights that are averaged then are so before they are saved
                runtime.average(callback.model.weights)
            if first:
                original(callback)

        return save

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        return original if first else _nothing(original)

    replace(BackupAndRestore, "on_train_begin", ("self", "logs"), restoring)
    replace(BackupAndRestore, "_save_model", ("self",), saving)
    replace(BackupAndRestore, "on_train_end", ("self", "logs"), ending)


def _redirect_events() -> None:
    """Have event files written into the rank's own folder: Keras and TensorBoard keep what makes them."""
    from tensorflow.python.ops import gen_summary_ops
    from tensorflow.python.summary.writer.writer import FileWriter

    folder = str(private_folder() / ".events")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(owner: Any, logdir: Any, *args: Any, **kwargs: Any) -> Any:
            return original(owner, folder, *args, **kwargs)

        return write

    replace(gen_summary_ops, "create_summary_file_writer", ("writer", "logdir"), make)
    replace(FileWriter, "__init__", ("self", "logdir"), make)


def _waiting(runtime: Runtime) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(*args: Any, **kwargs: Any) -> Any:
            if not runtime.in_trainer:
                runtime.collectives.gather(None, "wait before reading a checkpoint")
            return original(*args, **kwargs)

        return read

    return make


def _managed(runtime: Runtime) -> Callable[..., Any]:
    """Let the managers of ranks above 0 know of a checkpoint what rank 0's has written."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(manager: Any, *args: Any, **kwargs: Any) -> Any:
            state = None
            if runtime.world.rank == 0:
                path = original(manager, *args, **kwargs)
                state = path, manager._latest_checkpoint, list(manager._maybe_delete.items())
            if runtime.in_trainer:
                return state[0] if state else None
            path, latest, kept = runtime.collectives.gather(state, "a checkpoint")[0]
            if runtime.world.rank:
                manager._latest_checkpoint = latest
                manager._maybe_delete.clear()
                manager._maybe_delete.update(kept)
            return path

        return save

    return make


def _nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    def skip(*args: Any, **kwargs: Any) -> None:
        return None

    return skip


def _path(position: int) -> Callable[..., Any]:
    """Return what stands for a writer that returns the path it was given as its argument at `position`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def skip(*args: Any, **kwargs: Any) -> Any:
            return args[position] if len(args) > position else next(iter(kwargs.values()))

        return skip

    return make
