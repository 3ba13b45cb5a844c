"""A script's own package `harness` takes precedence over this one.

Where a script has a module `harness` of its own, its ranks import this package from the same files under the name
`PRIVATE`. Imports between the package's modules are renamed when the files are read.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "harness"
PRIVATE = "mpi_tf_harness_of_ranks"
ROOT = Path(__file__).resolve().parents[1]


def has_own(folder: Path, name: str = NAME) -> bool:
    """Tell whether a script in `folder` has a module or package of this `name` that is not the harness's."""
    spec = PathFinder.find_spec(name, [str(folder)])
    if spec is None or spec.loader is None:  # a folder without __init__.py gives way to any package, as in Python
        return False
    return Path(str(spec.origin)).resolve().parent != ROOT


class PrivateFinder(importlib.abc.MetaPathFinder):
    """Finds the harness's modules under `PRIVATE`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the package, None for all others."""
        top, _, rest = fullname.partition(".")
        if top != PRIVATE:
            return None
        place = ROOT.joinpath(*rest.split(".")) if rest else ROOT
        package = place / "__init__.py"
        file = package if package.exists() else place.with_suffix(".py")
        if not file.exists():
            return None
        folders = [str(place)] if file == package else None
        loader = _RenamingLoader(fullname, str(file))
        return importlib.util.spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=folders)


class _RenamingLoader(SourceFileLoader):
    def path_stats(self, path: Any) -> Any:
        """Use no compiled file: the existing ones belong to the other name."""
        raise OSError("no compiled file")

    def source_to_code(  # type: ignore[override]  # typeshed has a static method here
        self, data: Any, path: Any, *, _optimize: int = -1
    ) -> Any:
        """Compile the source with its own imports renamed."""
        tree = ast.parse(data, path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == NAME:
                node.module = PRIVATE + node.module.removeprefix(NAME)
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)
