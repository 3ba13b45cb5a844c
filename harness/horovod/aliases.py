"""Modules of Horovod's names, made of ours when a script imports them."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from harness.base.errors import UserError, unknown

_OWN = "harness.horovod"
_VERSION = "0.28.1"  # whose interface this is

_PARTS = ("process_sets", "operations", "averaging", "callbacks")
_BUILT = {"mpi": True, "gloo": False, "nccl": False, "ddl": False, "ccl": False, "cuda": False, "rocm": False}
_MODULES = {
    "horovod": (),
    "horovod.common": (),
    "horovod.common.util": (),
    "horovod.common.elastic": (),
    "horovod.common.exceptions": (),
    "horovod.tensorflow": ("elastic", "util", "mpi_ops", "functions", "compression", "sync_batch_norm"),
    "horovod.tensorflow.mpi_ops": (),
    "horovod.tensorflow.functions": (),
    "horovod.tensorflow.compression": (),
    "horovod.tensorflow.util": (),
    "horovod.tensorflow.sync_batch_norm": (),
    "horovod.tensorflow.elastic": (),
    "horovod.tensorflow.keras": ("callbacks", "elastic"),
    "horovod.tensorflow.keras.elastic": (),
    "horovod.tensorflow.keras.callbacks": (),
    "horovod.keras": ("callbacks", "elastic"),
    "horovod.keras.elastic": (),
    "horovod.keras.callbacks": (),
}  # each with what is there without an import of its own


def offer() -> None:
    """Have ``import horovod`` find ours where there is no real one; where there is, HOROVOD=ours or theirs chooses.

    Raises:
        UserError: HOROVOD is something else.
    """
    choice = os.environ.get("HOROVOD") or ""
    if choice not in ("", "ours", "theirs"):
        raise unknown("HOROVOD", choice, ("ours", "theirs"))
    if any(isinstance(each, _Finder) for each in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder(choice))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, choice: str) -> None:
        self._choice = choice
        self._theirs: bool | None = None

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return what makes the module, None for one that is not of Horovod's, or is to be the real one."""
        if fullname not in _MODULES or self._is_real():
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=True)

    def _is_real(self) -> bool:
        if self._theirs is None:
            others = [each for each in sys.meta_path if each is not self]
            real = any(each.find_spec("horovod", None) for each in others if hasattr(each, "find_spec"))
            self._theirs = real and self._choice == "theirs"
            if real:
                from harness.horovod.process_sets import host, note

                which = "the one that is installed" if self._theirs else "the harness's"
                other = "HOROVOD=ours takes the harness's" if self._theirs else "HOROVOD=theirs takes the other"
                note(f"the script's Horovod is {which}; {other}")
                if self._theirs:
                    host.begin()
        return self._theirs


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module: ours are small, so that each has all names but those in which two of Horovod's differ."""
        name = module.__name__
        found: dict[str, Any] = {"__version__": _VERSION, "__getattr__": _missing(name), "run": _refuse_run}
        if name == "horovod":
            if import_module(f"{_OWN}.process_sets").host.answers:
                import_module(f"{_OWN}.keras2").answer()
        elif name.endswith((".elastic", ".exceptions")):
            words = vars(import_module(f"{_OWN}.recovery"))
            found |= {word: value for word, value in words.items() if _is_public(word, value)}
        elif "common" in name:
            found["is_version_greater_equal_than"] = _is_at_least
        else:
            for part in _PARTS:
                words = vars(import_module(f"{_OWN}.{part}"))
                found |= {word: value for word, value in words.items() if _is_public(word, value)}
            found |= {f"{kind}_built": lambda found=found: found for kind, found in _BUILT.items()}
            found |= {"mpi_enabled": lambda: True, "gloo_enabled": lambda: False, "mpi_threads_supported": lambda: True}
            found |= {"_executing_eagerly": _executing_eagerly, "_basics": import_module(f"{_OWN}.process_sets")}
            found |= _values() if ".keras" in name else {}
        vars(module).update(found)
        for word in _MODULES[name]:
            setattr(module, word, import_module(f"{name}.{word}"))


def _is_public(word: str, value: Any) -> bool:
    return not word.startswith("_") and (
        isinstance(value, int) or str(getattr(value, "__module__", "")).startswith(_OWN)
    )


def _missing(name: str) -> Any:
    def get(word: str) -> Any:
        raise AttributeError(f"module '{name}' of the harness's Horovod has no '{word}'")

    return get


def _refuse_run(*_: Any, **__: Any) -> None:
    raise UserError("horovod.run starts no ranks here: use harness run -n RANKS SCRIPT")


def _is_at_least(version: str, least: str) -> bool:
    def parts(text: str) -> list[int]:
        return [int(part) for part in text.split(".")[:3] if part.isdigit()]

    return parts(version) >= parts(least)


def _executing_eagerly() -> bool:
    import tensorflow as tf

    return bool(tf.executing_eagerly())


def _values() -> dict[str, Any]:
    """Return the collectives of Horovod's Keras modules: they take values, not tensors only."""
    import tensorflow as tf

    from harness.horovod import operations

    def of(function: Any) -> Any:
        return lambda value, *args, **named: function(tf.convert_to_tensor(value), *args, **named)

    def allreduce(
        value: Any, name: str | None = None, average: bool | None = None, *scales: float, **named: Any
    ) -> Any:
        words = dict(zip(("prescale_factor", "postscale_factor", "op", "compression"), scales, strict=False)) | named
        return operations.allreduce(tf.convert_to_tensor(value), average=average, name=name, **words)

    def reducescatter(value: Any, name: str | None = None, op: int = operations.Average) -> Any:
        return operations.reducescatter(tf.convert_to_tensor(value), name=name, op=op)

    def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
        return operations.broadcast(tf.convert_to_tensor(value), root_rank, name)

    words = {"allreduce": allreduce, "reducescatter": reducescatter, "broadcast": broadcast}
    return {**words, "allgather": of(operations.allgather), "PartialDistributedOptimizer": _partial}


def _partial(optimizer: Any, *args: Any, local_layers: Any = None, **named: Any) -> Any:
    """Return a `DistributedOptimizer` that leaves the gradients of `local_layers` to every rank."""
    from harness.horovod.averaging import DistributedOptimizer, local_variables

    made = DistributedOptimizer(optimizer, *args, **named)
    for variable in local_variables(local_layers):
        made.register_local_var(variable)
    return made
