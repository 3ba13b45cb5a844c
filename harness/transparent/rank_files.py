"""Where a rank cannot have a tree of its own (`file_mechanism`): rank 0 writes files, every rank may read them.

What other ranks write goes into a private folder each, from the start, but for temporary files, caches and devices.
What writes through TensorFlow's own file system (checkpoints, exports, event files) they skip, once it is imported.
"""

import atexit
import builtins
import importlib
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.current_user import home_folder
from harness.base.files import cache_folder
from harness.base.scratch import RANK_PREFIX, HeldFolder
from harness.transparent.checkpoints import compare_backups
from harness.transparent.patch import HorovodScript, replace, wrapped

if TYPE_CHECKING:
    from harness.transparent.runtime import Runtime


_PATIENCE_S = 10.0


@cache
def private_folder() -> Path:
    """Return this process's own folder, which is removed at its end; if it is killed, when a later rank starts here."""
    folder = HeldFolder(Path(tempfile.gettempdir()), RANK_PREFIX)
    atexit.register(folder.close)
    return folder.path


class PrivateFiles:
    """The writes of one rank that is not rank 0. What it has written it reads back; the rest it reads as it is."""

    def __init__(self, logs: Path) -> None:
        """Start with nothing written; in the folder `logs` every rank has files of its own already."""
        self._logs = _full(logs)
        self._root = Path.cwd().resolve()
        self._private = private_folder()
        self._written: dict[Path, Path] = {}
        self._home = home_folder()  # once: `os.stat`, by which it is looked for, is replaced
        self._never: set[Path] = set()  # that rank 0 has not written in time
        no_results = ("/dev", "/proc", "/sys", tempfile.gettempdir(), sys.prefix, sys.base_prefix, cache_folder())
        self._left = tuple(Path(place).resolve() for place in no_results)

    def install(self) -> None:
        """Replace `open`, HDF5's too, and the functions that make, rename and delete files."""
        import h5py

        h5py.File.__init__ = wrapped(h5py.File.__init__, self._open_h5)  # in child processes too
        builtins.open = io.open = partial(self._open, builtins.open)
        os.mkdir = partial(self._mkdir, os.mkdir)
        for name in ("remove", "unlink", "rmdir"):
            setattr(os, name, partial(self._delete, getattr(os, name)))
        for name in ("listdir", "scandir"):
            setattr(os, name, partial(self._list, getattr(os, name)))
        os.stat = partial(self._stat, os.stat)
        for name in ("rename", "replace"):
            setattr(os, name, partial(self._rename, getattr(os, name)))
        shutil.rmtree = partial(self._delete, shutil.rmtree)  # type: ignore[assignment]

    def private(self, path: Any) -> Path | None:
        """Return where this rank keeps a file that the script may write; None for a file that is what it is."""
        if not isinstance(path, (str, bytes, os.PathLike)) or HorovodScript.active:
            return None  # a file descriptor, or a script that sees to its ranks' files itself
        full = _full(path)
        if full.is_relative_to(self._private) or full.is_relative_to(self._logs):
            return None
        if full.is_relative_to(self._root):
            return self._written.get(full) or self._private / full.relative_to(self._root)
        if any(map(full.is_relative_to, self._left)) or self._is_hidden_at_home(full):
            return None
        return self._written.get(full) or self._private / ".elsewhere" / full.relative_to("/")

    def _is_hidden_at_home(self, full: Path) -> bool:
        """Tell whether `full` lies in a file or folder of the user's home whose name begins with a dot."""
        if self._home is None or not full.is_relative_to(self._home):
            return False
        below_home = full.relative_to(self._home).parts
        return bool(below_home) and below_home[0].startswith(".")

    def _open(self, original: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return original(self._kept(file, mode), mode, *args, **kwargs)

    def _open_h5(
        self, original: Callable[..., Any], opened: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any
    ) -> None:
        original(opened, self._kept(name, mode), mode, *args, **kwargs)

    def _kept(self, file: Any, mode: str) -> Any:
        """Return what to open in the place of `file`."""
        private = self.private(file)
        if private is None:
            return file
        full = _full(file)
        if set(mode) & set("wax+"):
            private.parent.mkdir(parents=True, exist_ok=True)
            if full not in self._written and set(mode) & set("a+") and full.exists():
                shutil.copyfile(full, private)
            self._written[full] = private
        elif full not in self._written:
            return file
        return private

    def _list(self, original: Callable[..., Any], path: Any = ".") -> Any:
        """List a folder once rank 0 has written there what this rank has."""
        full = _full(path) if isinstance(path, (str, bytes, os.PathLike)) else None
        self._await([file for file in self._written if file.parent == full])
        return original(path)

    def _stat(self, original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        """Look at a file that this rank has written once rank 0 has, or at its own if rank 0 does not."""
        full = _full(path) if self._written and isinstance(path, (str, bytes, os.PathLike)) else None
        if full is not None and full in self._written:
            self._await([full])
            path = self._written[full] if full in self._never else path
        return original(path, *args, **kwargs)

    def _await(self, files: list[Path]) -> None:
        missing = [file for file in files if file not in self._never]
        deadline = time.monotonic() + _PATIENCE_S
        while (missing := [file for file in missing if not os.path.lexists(file)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._never.update(missing)

    def _mkdir(self, original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(path, *args, **kwargs)
        except FileExistsError:
            if self.private(path) is None or not os.path.isdir(path):  # noqa: PTH112
                raise  # otherwise rank 0 was faster

    def _delete(self, original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> None:
        full = path
        if kwargs.get("dir_fd") is not None:  # as `shutil.rmtree` removes what is in a folder
            full = Path(os.readlink(f"/proc/self/fd/{kwargs['dir_fd']}")) / os.fsdecode(path)  # noqa: PTH115
        if self.private(full) is None:
            original(path, *args, **kwargs)
        else:
            removed = _full(full)
            self._written = {
                written: private for written, private in self._written.items() if not written.is_relative_to(removed)
            }

    def _rename(self, original: Callable[..., Any], source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if self.private(source) is None:
            original(source, target, *args, **kwargs)
            return
        full, new = (_full(path) for path in (source, target))
        if full in self._written:
            self._written[new] = self._written.pop(full)


def _full(path: Any) -> Path:
    """Return the absolute path, links unresolved: a link and what it points to are deleted separately."""
    return Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 - resolve() would follow the link


class Savers:
    """Lets ranks above 0 skip what writes through TensorFlow's own file system, and all wait before they read.

    Reading waits for rank 0, whose write comes earlier in the script.
    """

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._first = runtime.world.rank == 0 and not runtime.witness.is_witness

    def install(self) -> None:
        """Put the replacements in place."""
        import keras
        import tensorflow as tf
        from keras.callbacks import BackupAndRestore
        from keras.src.models.model import Model
        from tensorflow.python.checkpoint.checkpoint import Checkpoint
        from tensorflow.python.checkpoint.checkpoint_management import CheckpointManager
        from tensorflow.python.ops import gen_summary_ops
        from tensorflow.python.summary.writer.writer import FileWriter
        from tensorflow.python.training.saver import Saver

        importlib.import_module("tensorflow.saved_model")  # as Keras's export does: it then is what `tf` has
        for owner, name, parameters in (
            (Model, "load_weights", ("self", "filepath")),
            (Saver, "restore", ("self", "sess", "save_path")),
            (Checkpoint, "read", ("self", "save_path")),
            (Checkpoint, "restore", ("self", "save_path")),
        ):
            replace(owner, name, parameters, self._read)
        for holder, function in (
            (tf.keras.models, "load_model"),
            (keras.models, "load_model"),
            (keras.saving, "load_model"),
            (tf.saved_model, "load"),
            (tf.train, "latest_checkpoint"),
            (tf.train, "load_checkpoint"),
        ):
            setattr(holder, function, wrapped(getattr(holder, function), self._read))
        replace(CheckpointManager, "save", ("self", "checkpoint_number"), self._save_managed)
        replace(BackupAndRestore, "on_train_begin", ("self", "logs"), self._restore_backup)
        replace(BackupAndRestore, "_save_model", ("self",), self._save_backup)
        if self._first:
            return
        tempfile.mkdtemp = wrapped(tempfile.mkdtemp, _make)
        replace(tf.data.Dataset, "cache", ("self", "filename"), _cache)
        replace(BackupAndRestore, "on_train_end", ("self", "logs"), _skip)
        for name in ("save", "save_weights", "export"):
            replace(Model, name, ("self", "filepath"), _skip)
        replace(Saver, "save", ("self", "sess", "save_path"), _skip)
        replace(Checkpoint, "write", ("self", "file_prefix"), _skip)
        replace(Checkpoint, "save", ("self", "file_prefix"), _skip)
        tf.saved_model.save = wrapped(tf.saved_model.save, _skip)
        # Keras and TensorBoard keep what makes event files: they go into the rank's own folder.
        replace(gen_summary_ops, "create_summary_file_writer", ("writer", "logdir"), _write_events)
        replace(FileWriter, "__init__", ("self", "logdir"), _write_events)

    def _read(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._runtime.witness.reads()
        if not self._runtime.in_trainer:
            self._runtime.collectives.gather(None, "wait before reading a checkpoint")
        return original(*args, **kwargs)

    def _save_managed(self, original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
        """Let the managers of ranks above 0 know of a checkpoint what rank 0's has written."""
        state = None
        self._runtime.witness.reads()
        if self._first:
            path = original(manager, *args, **kwargs)
            state = path, manager._latest_checkpoint, list(manager._maybe_delete.items())
        if self._runtime.in_trainer:
            return state[0] if state else None
        path, latest, old_checkpoints = self._runtime.collectives.gather(state, "a checkpoint")[0]
        if not self._first:
            manager._latest_checkpoint = latest
            manager._maybe_delete.clear()
            manager._maybe_delete.update(old_checkpoints)
        return path

    def _restore_backup(self, original: Callable[..., Any], callback: Any, logs: Any = None) -> None:
        """Have all ranks go on from the same backup, which rank 0 writes and deletes."""
        gather = self._runtime.collectives.gather
        if self._first:
            original(callback, logs)  # which puts the one before into the place of a damaged backup
        gather(None, "wait for the backup")
        if not self._first:
            original(callback, logs)
        compare_backups(self._runtime, callback)

    def _save_backup(self, original: Callable[..., Any], callback: Any) -> None:
        if callback.save_freq == "epoch":  # weights that are averaged then are so before they are saved
            self._runtime.variables.average(callback.model.weights)
        if self._first:
            original(callback)


_made: list[str] = []
"""The temporary folders that this rank has made under names of its own."""


def _make(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _made.append(original(*args, **kwargs))
    return _made[-1]


def _skip(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Write nothing, but where no other rank does; return the path, as what writes checkpoints does."""
    paths = [os.fspath(value) for value in (*args, *kwargs.values()) if isinstance(value, (str, os.PathLike))]
    is_temporary = any(path.startswith(tuple(_made)) for path in paths)
    return original(*args, **kwargs) if is_temporary else next(iter(paths), None)


def _cache(original: Callable[..., Any], dataset: Any, filename: Any = "", *args: Any, **kwargs: Any) -> Any:
    if not isinstance(filename, str) or not filename:
        return original(dataset, filename, *args, **kwargs)
    private_name = f"{private_folder()}/.cache-{filename.replace('/', '-')}"
    return original(dataset, private_name, *args, **kwargs)


def _write_events(original: Callable[..., Any], owner: Any, logdir: Any, *args: Any, **kwargs: Any) -> Any:
    return original(owner, str(private_folder() / ".events"), *args, **kwargs)
