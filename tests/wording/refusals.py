"""The sentences of the functions that tests see refuse: as the code has them, and as ``refusals.txt`` here has them."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("refusals.txt")
_FUNCTION = re.compile(r'"([a-z]\w*(?:\.\w+)+)"')


def functions() -> list[str]:
    """Return the functions that tests name, as `tests.labs.refusals.refused` takes them."""
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if "tests.labs.refusals" in text:
            names |= {name for name in _FUNCTION.findall(text) if _node(name) is not None}
    return sorted(names)


def sentences(function: str) -> list[str]:
    """Return the texts with blanks in a function, in their order, with {} for what is set in.

    Raises:
        LookupError: there is no such function.
    """
    node = _node(function)
    if node is None:
        raise LookupError(function)
    return [text for text in _texts(node) if " " in text.strip()]


def _node(name: str) -> ast.AST | None:
    """Return the function of that name below `harness`; None where there is none."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        folder = ROOT.joinpath("harness", *parts[:length])
        files = [file for file in (folder.with_suffix(".py"), folder / "__init__.py") if file.is_file()]
        if files:
            return _inside(_tree(files[0]), parts[length:])
    return None


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _inside(node: ast.AST, names: list[str]) -> ast.AST | None:
    for name in names:
        inner = [child for child in ast.walk(node) if isinstance(child, _NAMED) and child.name == name]
        if not inner:
            return None
        node = inner[0]
    return node


_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts below `node`, without docstrings."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in child.values)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        else:
            yield from _texts(child)


def page() -> str:
    """Return the table as the code would have it: each function in brackets, and its sentences below it."""
    parts = [[f"[{name}]", *(repr(text)[1:-1] for text in sentences(name))] for name in functions()]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"
