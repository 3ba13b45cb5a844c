"""The import of TensorFlow before a script runs, where that is the first thing that the script itself does."""

import ast
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.transparent.own_modules import has_own

_NETWORK_LIBRARIES = ("tensorflow", "keras")  # the ranks need both, whichever the script imports
# They change nothing that TensorFlow reads when it is imported; the ranks have NumPy already.
_HARMLESS = {*sys.stdlib_module_names, "numpy"}


def import_early(script: Path) -> bool:
    """Import TensorFlow and Keras as `script` would begin with it; return False where it begins otherwise.

    Return False also where that fails: the script's own import of it says so.
    """
    first = first_library(script)
    if first is None:
        return False
    try:
        for name in (first, *_NETWORK_LIBRARIES):
            importlib.import_module(name)
    except Exception:  # noqa: BLE001 - whatever it is, it is the script's to raise
        return False
    return True


def first_library(script: Path) -> str | None:
    """Return which of TensorFlow and Keras `script` imports first, None where other code may run before that.

    Other code may change what TensorFlow reads when it is imported: variables of the environment, Python's path,
    Keras's settings. It also may look at whether TensorFlow is there already.
    """
    try:
        statements = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # Python says so, or runs what is no text
        return None
    for name in _leading_imports(statements):
        if has_own(script.parent, name):
            return None
        if name in _NETWORK_LIBRARIES:
            return name
        if name not in _HARMLESS:
            return None
    return None


def _leading_imports(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names of the packages that are imported before the first statement that is no import."""
    for statement in statements:
        match statement:
            case ast.Import(names=aliases):
                yield from (alias.name.partition(".")[0] for alias in aliases)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.Expr(value=ast.Constant()):  # the docstring
                continue
            case _:
                return
