"""Makes a file when this process, a child of rank 0, takes its first optimizer step. It imports nothing of the harness.

A forked child calls `watch`; one that Python starts anew imports this module by its name, before all else.
"""

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

MARK = "HARNESS_CHILD_TRAINS"
"""Environment variable of a rank's children: the file to make, or `NO_MARK`."""

NO_MARK = "-"
_OF_RANKS = ("OMPI_COMM_", "OMPI_MCA_ess", "PMIX_", "PMI_", "PRTE_")  # what launchers tell their ranks

OPTIMIZERS = "keras.src.optimizers.base_optimizer"


def watch(mark: str) -> None:
    """Make the file `mark` at the first step of a Keras optimizer of this process, also if Keras comes later."""
    if OPTIMIZERS in sys.modules:
        _watch_steps(sys.modules[OPTIMIZERS], mark)
    else:
        sys.meta_path.insert(0, _OptimizerFinder(mark))


def _watch_steps(module: Any, mark: str) -> None:
    apply = module.BaseOptimizer.apply

    def first(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        module.BaseOptimizer.apply = apply
        Path(mark).touch()
        return apply(optimizer, *args, **kwargs)

    module.BaseOptimizer.apply = first


class _OptimizerFinder(importlib.abc.MetaPathFinder):
    def __init__(self, mark: str) -> None:
        self._mark = mark

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run, mark = spec.loader.exec_module, self._mark

            def run_and_watch(module: ModuleType) -> None:
                run(module)
                _watch_steps(module, mark)

            vars(spec.loader)["exec_module"] = run_and_watch
        return spec


def _import_next() -> None:
    """Import the module of this name that would have been imported without this one."""
    folder = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != folder]
    spec = PathFinder.find_spec(__name__)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[__name__] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if MARK in os.environ:
        for variable in [variable for variable in os.environ if variable.startswith(_OF_RANKS)]:
            del os.environ[variable]
        if os.environ[MARK] != NO_MARK:
            watch(os.environ[MARK])
    _import_next()
