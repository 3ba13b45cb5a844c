"""Checkpoints where every rank has files of its own: each writes and reads its own, and all go on from one backup."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.base.errors import UserError
from harness.transparent.patch import put, replace, wrapped

if TYPE_CHECKING:
    from harness.transparent.runtime import Runtime


def compare_backups(runtime: "Runtime", callback: Any) -> None:
    """Have all ranks agree from which epoch on they go on.

    Raises:
        UserError: not all ranks have found the same backup.
    """
    epochs = runtime.collectives.gather(getattr(callback.model, "_initial_epoch", None), "epoch of the backup")
    if len(set(epochs)) > 1:
        raise UserError(
            f"not all ranks find the backup in '{callback.backup_dir}' (epochs {epochs}): put it where all "
            "hosts read the same files"
        )


class Checkpoints:
    """What is left to do where ranks have files of their own."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime

    def install(self) -> None:
        """Put the replacements in place."""
        from keras.callbacks import BackupAndRestore

        replace(BackupAndRestore, "on_train_begin", ("self", "logs"), self._restore_backup)
        replace(BackupAndRestore, "_save_model", ("self",), self._save_backup)
        if self._runtime.witness.is_witness:
            self._watch_reads()

    def _watch_reads(self) -> None:
        """Have the witness know when the script reads what it has trained."""
        import keras
        import tensorflow as tf
        from keras.src.models.model import Model
        from tensorflow.python.checkpoint.checkpoint import Checkpoint
        from tensorflow.python.training.saver import Saver

        importlib.import_module("tensorflow.saved_model")  # as Keras's export does: it then is what `tf` has
        replace(Model, "load_weights", ("self", "filepath"), self._read)
        replace(Saver, "restore", ("self", "sess", "save_path"), self._read)
        replace(Checkpoint, "read", ("self", "save_path"), self._read)
        replace(Checkpoint, "restore", ("self", "save_path"), self._read)
        for holder, function in (
            (tf.keras.models, "load_model"),
            (keras.models, "load_model"),
            (keras.saving, "load_model"),
            (tf.saved_model, "load"),
            (tf.train, "load_checkpoint"),
        ):
            put(holder, function, wrapped(getattr(holder, function), self._read))

    def _read(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._runtime.witness.reads()
        return original(*args, **kwargs)

    def _restore_backup(self, original: Callable[..., Any], callback: Any, logs: Any = None) -> None:
        original(callback, logs)
        compare_backups(self._runtime, callback)

    def _save_backup(self, original: Callable[..., Any], callback: Any) -> None:
        if callback.save_freq == "epoch":  # weights that are averaged then are so before they are saved
            self._runtime.variables.average(callback.model.weights)
        original(callback)
