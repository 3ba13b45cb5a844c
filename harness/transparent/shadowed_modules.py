"""A script's modules and the harness's under the same names: each side imports its own.

A script `psutil.py` in the script's folder is what the script imports, as Python does alone. The harness and the
packages that it has brought go on to import the installed package of that name.
"""

import builtins
import contextlib
import importlib
import pkgutil
import sys
import threading
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import FrozenImporter, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.base.processes import run_program
from harness.transparent.module_precedence import NAME, PRIVATE

_OURS = __name__.partition(".")[0]
_STARTED = "import sys; print(*sys.modules)"


def give_way(folder: Path) -> None:
    """Have a script in `folder` import its own modules, also where others of their names have been imported."""
    shadowing = _shadowing_modules(folder)
    if shadowing:
        ShadowedModules(folder, shadowing).install()


def _shadowing_modules(folder: Path) -> dict[str, str]:
    """Return those modules of `folder`, by name, that Python would take instead of installed ones; and their files."""
    places = _places_without(folder)
    files = {}
    for module in pkgutil.iter_modules([str(folder)]):
        always_first = module.name in sys.builtin_module_names or FrozenImporter.find_spec(module.name) is not None
        if always_first or module.name in (NAME, PRIVATE, "__main__"):
            continue
        spec = PathFinder.find_spec(module.name, [str(folder)])
        if spec is not None and spec.origin and PathFinder.find_spec(module.name, places) is not None:
            files[module.name] = spec.origin
    loaded = {name for name in files if getattr(sys.modules.get(name), "__file__", files[name]) != files[name]}
    if loaded:  # of those that every Python has imported before it knows of the script, the script's is never seen
        bare = run_program([sys.executable, "-c", _STARTED], folder=Path(sys.prefix)).out.split()
        files = {name: file for name, file in files.items() if name not in loaded or name not in bare}
    return files


class ShadowedModules:
    """Modules with the names of some in the script's `folder`, which the harness sees in their place.

    `files` are the script's, by the name of the module.
    """

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self._folder = folder
        self._files = files
        self._modules: dict[str, ModuleType] = {}
        imported = {name.partition(".")[0] for name in sys.modules}
        self._importers = (imported | {_OURS}) - sys.stdlib_module_names - {"__main__"}
        self._lock = threading.RLock()
        self._is_exchanged = False
        self._import: Any = builtins.__import__
        self._import_module = importlib.import_module

    def install(self) -> None:
        """Put the modules aside that have been imported, and have the harness find them there."""
        self._keep()
        builtins.__import__ = self._imported
        module: Any = importlib
        module.import_module = self._module_imported

    def _keep(self) -> None:
        """Put the modules aside that are imported now; they find each other in `sys.modules`, as they do elsewhere."""
        self._modules = _taken(self._files)
        for module in self._modules.values():
            if vars(module).get("sys") is sys:
                vars(module)["sys"] = _SysOfShadowed(self._modules)

    def _imported(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as Python does, for the harness its own module."""
        importer = globals or {}
        top = (str(importer.get("__package__") or "") if level else name).partition(".")[0]
        if top in self._files and self._is_ours(importer):
            with self._exchanged():
                return self._import(name, globals, locals, fromlist, level)  # type: ignore[no-any-return]
        return self._import(name, globals, locals, fromlist, level)  # type: ignore[no-any-return]

    def _module_imported(self, name: str, package: str | None = None) -> ModuleType:
        """Import as `importlib.import_module` does, for the harness its own module."""
        top = (package or "" if name.startswith(".") else name).partition(".")[0]
        if top in self._files and self._is_ours(sys._getframe(1).f_globals):
            with self._exchanged():
                return self._import_module(name, package)
        return self._import_module(name, package)

    def _is_ours(self, importer: Mapping[str, Any]) -> bool:
        """Tell whether a module with the globals `importer` is the harness's, or of a package that it has brought."""
        top = str(importer.get("__name__") or "").partition(".")[0]
        if top not in self._files:
            return top in self._importers
        script_file = Path(self._files[top])
        file = Path(str(importer.get("__file__") or ""))
        if script_file.stem == "__init__" and file.is_relative_to(script_file.parent):
            return False
        return file != script_file

    @contextlib.contextmanager
    def _exchanged(self) -> Iterator[None]:
        """Show the harness's modules instead of the script's, also to what they import in their turn."""
        with self._lock:
            if self._is_exchanged:
                yield
                return
            self._is_exchanged = True
            script_modules = _taken(self._files)
            sys.modules.update(self._modules)
            path = list(sys.path)
            sys.path[:] = _places_without(self._folder)
            try:
                yield
            finally:
                self._keep()
                sys.modules.update(script_modules)
                sys.path[:] = path
                self._is_exchanged = False


class _SysOfShadowed(ModuleType):
    """Python's `sys` as some modules see it: with themselves among the imported ones."""

    def __init__(self, shadowed: dict[str, ModuleType]) -> None:
        vars(self)["modules"] = ChainMap(shadowed, sys.modules)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(sys, name, value)


def _places_without(folder: Path) -> list[str]:
    """Return where Python looks for modules, without `folder`."""
    return [place for place in sys.path if Path(place).resolve() != folder.resolve()]


def _taken(tops: Mapping[str, str]) -> dict[str, ModuleType]:
    """Take the modules `tops` and their submodules out of those that are imported; return them by name."""
    names = [name for name in list(sys.modules) if name.partition(".")[0] in tops]
    return {name: sys.modules.pop(name) for name in names}
