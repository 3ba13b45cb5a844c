"""The house's own rules, for `make lint`.

python -m tests.house             check: exit code 1 and a line for each fault
python -m tests.house FOLDER ...  the faults of these folders
"""

import ast
import functools
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FUNCTION_LINES = 60
MODULE_LINES = 800
SHORT_MODULE_LINES = 60
SHORT_FUNCTION_LINES = 3
# Words that do not say what a variable holds.
_EMPTY = "one found own other each known said told its it there kept given made shown"
EMPTY_NAMES = frozenset(_EMPTY.split(" "))
# Rooms whose work it is to word sentences: they may compare texts.
WORDING = ("report", "cli")

# Calls that remove whatever object has them, and those of modules.
_REMOVING = frozenset(("rmtree", "unlink", "rmdir", "removedirs"))
_REMOVING_OF_MODULES = frozenset(
    (("os", "remove"), ("os", "rename"), ("os", "renames"), ("os", "replace"), ("shutil", "move"))
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@functools.cache
def settings() -> dict[str, Any]:
    """Return `[tool.house]` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["house"]
    return table


def sources(folder: Path) -> dict[Path, str]:
    """Return every module below `folder` with its text."""
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    return {path: path.read_text() for path in paths}


def room(path: Path) -> str:
    """Return the room of a module: `report` of harness/report/answer.py."""
    parts = path.relative_to(ROOT / "harness").parts
    return parts[0] if len(parts) > 1 else path.stem


def twice() -> Iterator[str]:
    """Yield a sentence for every module or class name that stands for two things."""
    shared = settings()["shared"]
    places: dict[str, list[str]] = defaultdict(list)
    for path, text in sources(ROOT / "harness").items():
        name = path.relative_to(ROOT).as_posix()
        if path.stem.startswith("__"):
            continue
        places[f"module {path.stem}"].append(name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name not in shared:
                places[f"class {node.name}"].append(name)
    for thing, files in places.items():
        if len(files) > 1:
            yield f"{thing} stands twice: {', '.join(files)}"


def formatted() -> Iterator[str]:
    """Yield a sentence for every module that is kept from the formatter."""
    for path, text in sources(ROOT / "harness").items():
        if "# fmt: " in text:
            name = path.relative_to(ROOT).as_posix()
            yield f"{name} is kept from the formatter: write it so that plain ruff format reads well"


def short_modules() -> Iterator[str]:
    """Yield a sentence for every short module without a reason, and for every reason without a module."""
    texts = {name_of(path): text for path, text in sources(ROOT / "harness").items()}
    reasons: dict[str, str] = settings()["short_modules"]
    for name, text in texts.items():
        lines = text.count("\n")
        is_named = any(fnmatch(name, pattern) for pattern in reasons)
        if lines < SHORT_MODULE_LINES and not name.endswith("/__init__.py") and not is_named:
            yield f"{name} has {lines} lines: join it to the module of its question, or say why in pyproject.toml"
    for pattern in reasons:
        if not any(fnmatch(name, pattern) for name in texts):
            yield f"[tool.house.short_modules] names {pattern}, which is no module: take it out"


def short_functions() -> Iterator[str]:
    """Yield a sentence for every short function that is called once without a reason, and every reason without one."""
    reasons: dict[str, str] = settings()["short_functions"]
    short = set()
    for path, text in sources(ROOT / "harness").items():
        for function in called_once(ast.parse(text)):
            name = f"{name_of(path)}:{function.name}"
            short.add(name)
            if name not in reasons:
                yield f"{name} is short and called once: write it where it is called, or say why in pyproject.toml"
    for name in reasons:
        if name not in short:
            yield f"[tool.house.short_functions] names {name}, which is no short function that is called once"


def called_once(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield the private functions of a module of at most `SHORT_FUNCTION_LINES` lines that one statement calls.

    Those with a decorator, that are handed on as values, or that are called for each element of a comprehension or
    inside of a lambda, where no statement can stand, are not among them.
    """
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, (*_COMPREHENSIONS, ast.Lambda)):
            calls -= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("_") or node.decorator_list:
            continue
        statements = node.body[1:] if ast.get_docstring(node) else node.body
        lines = sum(map(length, statements))
        if lines <= SHORT_FUNCTION_LINES and uses[node.name] == 1 and node.name in calls:
            yield node


def name_of(path: Path) -> str:
    """Return the name of a module below the top of the tree."""
    return path.relative_to(ROOT).as_posix()


def length(node: ast.stmt) -> int:
    """Return how many lines a statement has."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def habits(path: Path, text: str) -> Iterator[tuple[str, int, str]]:
    """Yield kind, line and sentence of every place of one module that the rules refuse."""
    lines = text.count("\n")
    if lines > MODULE_LINES:
        yield "long module", 1, f"the module has {lines} lines: at most {MODULE_LINES}, one question each"
    tree = ast.parse(text)
    removers = settings()["removers"]
    in_short_comprehension = _nodes_of_short_comprehensions(tree)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, _FUNCTIONS) and length(node) > FUNCTION_LINES:
            yield "long function", line, f"{node.name} has {length(node)} lines: at most {FUNCTION_LINES}"
        if isinstance(node, ast.Assign) and _is_wall(node):
            yield "parallel assignment", line, "assign at most two simple values in one statement"
        if isinstance(node, ast.IfExp) and _is_chained(node):
            yield "chained conditional", line, "write a chained conditional expression as statements"
        if isinstance(node, _COMPREHENSIONS) and _is_nested(node):
            yield "nested comprehension", line, "take the inner comprehension out and name it"
        if id(node) not in in_short_comprehension:
            for name in _bound_names(node):
                if name in EMPTY_NAMES:
                    yield "empty name", line, f"`{name}` does not say what it holds"
        if isinstance(node, ast.Call) and name_of(path) not in removers and _removes(node):
            yield "removal", line, "harness/base/removal.py alone removes, renames and replaces: ask it"
        if isinstance(node, ast.Compare) and room(path) not in WORDING and _reads_sentence(node):
            yield "parsed sentence", line, "decide by a typed fact, not by a text written for people"


def faults(folders: list[Path]) -> Iterator[str]:
    """Yield a line for each place in the modules of `folders` that the rules refuse."""
    for folder in folders:
        for path, text in sources(folder).items():
            name = path.relative_to(ROOT).as_posix()
            for _, line, sentence in habits(path, text):
                yield f"{name}:{line} {sentence}"


def rooms() -> list[Path]:
    """Return all rooms, which keep the rules."""
    return [entry for entry in sorted((ROOT / "harness").iterdir()) if _has_source(entry)]


def _has_source(entry: Path) -> bool:
    return entry.suffix == ".py" or any(entry.glob("*.py"))


def _nodes_of_short_comprehensions(tree: ast.Module) -> set[int]:
    """Return the identities of all nodes inside comprehensions that stand on one line."""
    nodes: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _COMPREHENSIONS) and node.lineno == node.end_lineno:
            nodes.update(id(inner) for inner in ast.walk(node))
    return nodes


def _is_wall(node: ast.Assign) -> bool:
    """Say whether a statement assigns a tuple of more than two values, or of values that are not simple."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    simple = all(isinstance(value, (ast.Name, ast.Constant, ast.Attribute)) for value in node.value.elts)
    return len(target.elts) > 2 or not simple


def _removes(node: ast.Call) -> bool:
    """Say whether a call removes, renames or replaces a file or a folder.

    `replace` of a path has one argument, that of a text two and that of a time or a dataclass names; `rename` of a
    table has names too, or a text.
    """
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in _REMOVING:
        return True
    module = getattr(function.value, "id", "") if isinstance(function, ast.Attribute) else ""
    if (module, name) in _REMOVING_OF_MODULES:
        return True
    if name not in ("replace", "rename") or not isinstance(function, ast.Attribute) or node.keywords:
        return False
    return len(node.args) == 1 and not isinstance(node.args[0], ast.Constant)


def _is_chained(node: ast.IfExp) -> bool:
    return isinstance(node.body, ast.IfExp) or isinstance(node.orelse, ast.IfExp)


def _is_nested(node: ast.AST) -> bool:
    inner = (child for child in ast.walk(node) if child is not node)
    return any(isinstance(child, _COMPREHENSIONS) for child in inner)


def _bound_names(node: ast.AST) -> list[str]:
    """Return the names that a node gives to variables, parameters and fields."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.attr]
    if isinstance(node, _FUNCTIONS):
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        return [argument.arg for argument in arguments]
    return []


def _reads_sentence(node: ast.Compare) -> bool:
    """Say whether a comparison looks for words in a text for people."""
    operands = (node.left, *node.comparators)
    texts = [operand.value for operand in operands if isinstance(operand, ast.Constant)]
    has_blank = any(isinstance(text, str) and " " in text.strip() for text in texts)
    searches = isinstance(node.ops[0], (ast.In, ast.NotIn))
    return has_blank or (searches and any(_is_text_of_error(operand) for operand in node.comparators))


def _is_text_of_error(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "str":
        return False
    return bool(node.args) and isinstance(node.args[0], ast.Name) and node.args[0].id in ("error", "fault", "exception")


if __name__ == "__main__":
    named = [ROOT / folder for folder in sys.argv[1:]]
    sentences = list(faults(named))
    if not named:
        sentences = [*twice(), *formatted(), *short_modules(), *short_functions(), *faults(rooms())]
    print("\n".join(sentences) or "The rules of the house hold.")
    sys.exit(bool(sentences))
