"""Sentences that tests meet, by the function that has worded them and by the values that are set in.

What a sentence says is held in tests/wording: ``sentences.txt`` there has the texts of every function that tests name.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PLACE = re.compile(r"\{[^{}]*\}")
_WORDS = re.compile(r"[A-Za-z]{4}")


def sentences(function: str) -> list[str]:
    """Return the texts with blanks in a function, in their order, with {} for what is set in.

    Raises:
        LookupError: there is no such function.
    """
    node = node_of(function)
    if node is None:
        raise LookupError(function)
    return [text for text in _texts(node) if " " in text.strip()]


def worded(text: object, function: str, *values: object) -> str:
    """Expect that `text` has a sentence of `function` in it, and names `values` from there on, in this order.

    Returns the part of `text` from that sentence on, with plain blanks.
    """
    plain = " ".join(str(text).replace("\u00a0", " ").split())
    matches = [match for form in _forms(function) if (match := re.search(_pattern(form), plain))]
    assert matches, f"no sentence of {function} in: {plain}"
    begun = [plain[match.start() :] for match in matches]
    assert any(_in_order(part, values) for part in begun), f"{values} are not named, in this order, in: {plain}"
    return next(part for part in begun if _in_order(part, values))


def count_worded(text: object, function: str) -> int:
    """Return how often `text` has a sentence of `function` in it; a part of a sentence does not count beside it."""
    plain = " ".join(str(text).replace("\u00a0", " ").split())
    forms = sorted(_forms(function), key=len, reverse=True)
    return len(re.findall("|".join(map(_pattern, forms)), plain))


def _forms(function: str) -> list[str]:
    """Return the texts of a function that have a word of four letters, and not only marks around places."""
    return [form for form in sentences(function) if _WORDS.search(_PLACE.sub("", form))]


def _pattern(form: str) -> str:
    """Return the regular expression of a text with places."""
    plain = " ".join(form.replace("\u00a0", " ").split())
    return ".*?".join(re.escape(part) for part in _PLACE.split(plain))


def _in_order(text: str, values: tuple[object, ...]) -> bool:
    begin = 0
    for value in values:
        place = text.find(str(value), begin)
        if place < 0:
            return False
        begin = place + len(str(value))
    return True


def node_of(name: str) -> ast.AST | None:
    """Return the function, class or constant of that name below `harness`; None where there is none."""
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
        inner = [child for child in ast.walk(node) if _name_of(child) == name]
        if not inner:
            return None
        node = inner[0]
    return node


def _name_of(node: ast.AST) -> str:
    if isinstance(node, _NAMED):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign) else ""


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
