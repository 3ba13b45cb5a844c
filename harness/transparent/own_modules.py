"""A script's modules and those of the ranks under the same names: the script imports its own, everything else theirs.

A rank starts without the script's folder on its path, so what it has imported is never the script's, and stays in
`sys.modules`. Where the script's folder has a module of the same name, imports by the script's code alone see that one.
So do modules called `harness`.
"""

import builtins
import contextlib
import pkgutil
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.machinery import FrozenImporter, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.transparent.patch import is_own_code

# What else the ranks' own code imports, when the script runs already. TensorFlow and Keras are the script's choice.
LATER = frozenset(
    {
        *("concurrent", "contextvars", "mmap", "queue", "secrets", "timeit"),
        *("cpuinfo", "matplotlib", "mpi4py", "numpy", "PIL", "pyarrow", "pynvml"),
    }
)


def separate_own_modules(folder: Path) -> None:
    """Have a script in `folder` import its own modules, also where the ranks have imported others of their names."""
    names = {module.name for module in pkgutil.iter_modules([str(folder)]) if _is_taken(module.name, folder)}
    if names:
        OwnModules(folder, names).install()


def has_own(folder: Path, name: str) -> bool:
    """Tell whether a script in `folder` has a module or package of this `name`, and not a mere folder."""
    spec = PathFinder.find_spec(name, [str(folder)])
    return spec is not None and spec.loader is not None


def _is_taken(name: str, folder: Path) -> bool:
    """Tell whether the ranks use another module than that of `folder` under this `name`."""
    is_always_first = name in sys.builtin_module_names or FrozenImporter.find_spec(name) is not None
    if is_always_first or name == "__main__":
        return False
    if name not in sys.modules:
        return name in LATER
    spec = PathFinder.find_spec(name, [str(folder)])
    return spec is not None and getattr(sys.modules[name], "__file__", None) != spec.origin


class OwnModules:
    """The modules `names` of the script's `folder`, which its code sees in the place of installed ones."""

    def __init__(self, folder: Path, names: Collection[str]) -> None:
        self._folder = folder
        self._names = names
        self._hidden: dict[str, ModuleType] = {}  # of the view that is not shown: first the script's
        self._shows_own = False
        self._lock = threading.RLock()
        self._import: Any = builtins.__import__

    def install(self) -> None:
        """Put the replacement of Python's import in place."""
        builtins.__import__ = self._imported

    def _imported(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as Python does, for the script's code its own module."""
        importer = globals or {}
        absolute = str(importer.get("__package__") or "") if level else name
        arguments = (name, globals, locals, fromlist, level)
        if absolute.partition(".")[0] not in self._names:
            return self._import(*arguments)  # type: ignore[no-any-return]
        file = importer.get("__file__")  # none of what Python or a package has made of a text
        is_of_script = file is not None and is_own_code(str(file))
        with self._lock, self._shown(script=is_of_script):
            return self._import(*arguments)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def _shown(self, *, script: bool) -> Iterator[None]:
        """Show the script's modules, or the installed ones, to what is imported in the meantime."""
        is_exchanged = script != self._shows_own
        if is_exchanged:
            self._exchange()
        path = list(sys.path)
        if not script:
            sys.path[:] = [place for place in path if Path(place).resolve() != self._folder.resolve()]
        try:
            yield
        finally:
            if not script:
                sys.path[:] = path
            if is_exchanged:
                self._exchange()

    def _exchange(self) -> None:
        """Put the modules that are not shown in the place of those that are."""
        names = [name for name in list(sys.modules) if name.partition(".")[0] in self._names]
        displaced = {name: sys.modules.pop(name) for name in names}
        sys.modules.update(self._hidden)
        self._hidden = displaced
        self._shows_own = not self._shows_own
