"""Modules of Horovod's names, made of ours when a script imports them."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from harness.base.errors import unknown
from harness.horovod.not_offered import INSTEAD, not_offered

_OWN = __name__.rpartition(".")[0]
_VERSION = "0.28.1"  # whose interface this is

_PARTS = ("ranks", "operations", "averaging", "callbacks")
_BUILT = {"mpi": True, "gloo": False, "nccl": False, "ddl": False, "ccl": False, "cuda": False, "rocm": False}
_TENSORFLOW = ("", ".util", ".mpi_ops", ".functions", ".compression")
_KERAS = (".keras", ".keras.callbacks")
_MODULES = {
    *(f"horovod{name}" for name in ("", ".common", ".common.util", *_KERAS)),
    *(f"horovod.tensorflow{name}" for name in (*_TENSORFLOW, *_KERAS)),
}


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
        """Return what makes the module, None for one that is not of Horovod's, or is to be the real one.

        Raises:
            NotOfferedError: a script asks for a name that is not offered as if it were a module.
        """
        room, _, word = fullname.rpartition(".")
        is_absent = room in _MODULES and word in INSTEAD
        if not (fullname in _MODULES or is_absent) or self._is_real():
            return None
        if is_absent:
            raise not_offered(word)
        return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=True)

    def _is_real(self) -> bool:
        if self._theirs is None:
            others = [each for each in sys.meta_path if each is not self]
            real = any(each.find_spec("horovod", None) for each in others if hasattr(each, "find_spec"))
            self._theirs = real and self._choice == "theirs"
            if real:
                from harness.horovod.ranks import host, say_on_rank_0

                which = "the one that is installed" if self._theirs else "the harness's"
                switch = "HOROVOD=ours takes the harness's" if self._theirs else "HOROVOD=theirs takes the other"
                say_on_rank_0(f"the script's Horovod is {which}; {switch}")
                if self._theirs:
                    host.begin()
        return self._theirs


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module: ours are small, so that each has all names but those in which two of Horovod's differ."""
        name = module.__name__
        words: dict[str, Any] = {"__version__": _VERSION, "__getattr__": _others(name)}
        if name == "horovod":
            if import_module(f"{_OWN}.ranks").host.answers:
                import_module(f"{_OWN}.keras2_names").offer_keras2()
        elif "common" in name:
            words["is_version_greater_equal_than"] = lambda version, least: _numbers(version) >= _numbers(least)
        else:
            for part in _PARTS:
                words |= _words(part)
            words |= {f"{kind}_built": lambda built=built: built for kind, built in _BUILT.items()}
            words |= {"mpi_enabled": lambda: True, "gloo_enabled": lambda: False, "mpi_threads_supported": lambda: True}
            words["_executing_eagerly"] = import_module("tensorflow").executing_eagerly
            words["_basics"] = import_module(f"{_OWN}.ranks")
        if ".keras" in name and "allreduce" in words:
            scales = ("prescale_factor", "postscale_factor")
            words["allreduce"] = _placed(words["allreduce"], "name", "average", *scales, "op", "compression")
        vars(module).update(words)


def _words(part: str) -> dict[str, Any]:
    """Return what a module of ours has for scripts."""

    def is_public(word: str, value: Any) -> bool:
        is_ours = str(getattr(value, "__module__", "")).startswith(_OWN)
        return not word.startswith("_") and (isinstance(value, int) or is_ours)

    return {word: value for word, value in vars(import_module(f"{_OWN}.{part}")).items() if is_public(word, value)}


def _others(name: str) -> Callable[[str], Any]:
    """Return what finds the modules inside of `name`, which Horovod has there without an import of their own."""

    def get(word: str) -> Any:
        if f"{name}.{word}" in _MODULES:
            return import_module(f"{name}.{word}")
        if word in INSTEAD:
            raise not_offered(word)
        raise AttributeError(f"module '{name}' of the harness's Horovod has no '{word}'")

    return get


def _placed(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Return `function` with `names` in the places after its tensor, as Horovod's Keras modules have it."""
    return lambda value, *args, **named: function(value, **dict(zip(names, args, strict=False)), **named)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:3] if part.isdigit()]
