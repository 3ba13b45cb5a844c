"""One name for one thing in the whole package and one format, for `make lint`; and what the tree measures.

python -m tests.house            check, exit code 1 and a line for each fault
python -m tests.house --measure  what docs and reviews quote of the tree: sizes, helpers, parameters only passed on
"""

import ast
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> dict[Path, str]:
    """Return every module of the product with its text."""
    return {path: path.read_text() for path in sorted((ROOT / "harness").rglob("*.py"))}


def faults() -> Iterator[str]:
    """Yield a sentence for every name that stands for two things, and every place that is kept from the formatter."""
    house = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["house"]
    places: dict[str, list[str]] = defaultdict(list)
    for path, text in modules().items():
        name = path.relative_to(ROOT).as_posix()
        if "# fmt: " in text:
            yield f"{name} is kept from the formatter: write it so that plain ruff format reads well"
        if path.stem.startswith("__"):
            continue
        places[f"module {path.stem}"].append(name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name not in house["shared"]:
                places[f"class {node.name}"].append(name)
    yield from (f"{thing} stands twice: {', '.join(files)}" for thing, files in places.items() if len(files) > 1)


def measures() -> Iterator[str]:
    """Yield what the tree measures."""
    sources = modules()
    trees = {path: ast.parse(text) for path, text in sources.items()}
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
    lines = [text.count("\n") for text in sources.values()]
    code = sum(
        bool(line.strip()) and not line.strip().startswith("#")
        for text in sources.values()
        for line in text.split("\n")
    )
    yield f"{len(sources)} modules, {sum(lines)} lines, {code} of code, median module {median(lines):g}"
    short = sum(length <= 5 for length in lengths)
    yield f"{len(functions)} functions, median {median(lengths):g} lines, {short} of five lines or fewer"
    private = [
        (path, node.name)
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, FUNCTIONS) and node.name.startswith("_")
    ]
    used = {path: Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)) for path, tree in trees.items()}
    once = sum(used[path][name] == 1 for path, name in private)
    yield f"{once} of {len(private)} private top-level functions used once"
    given = passed = 0
    for node in functions:
        names = [
            one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) if one.arg != "self"
        ]
        uses = Counter(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
        calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
        handed = Counter(
            argument.id
            for call in calls
            for argument in (*call.args, *(keyword.value for keyword in call.keywords))
            if isinstance(argument, ast.Name)
        )
        given += len(names)
        passed += sum(0 < uses[name] == handed[name] for name in names)
    yield f"{passed} of {given} parameters only passed on ({100 * passed / given:.0f} %)"
    nested = sum(isinstance(one, (ast.Import, ast.ImportFrom)) for node in functions for one in ast.walk(node))
    yield f"{nested} imports inside functions"
    importers: dict[str, set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        for one in ast.walk(tree):
            if isinstance(one, ast.ImportFrom) and one.module:
                for name in (one.module, *(f"{one.module}.{alias.name}" for alias in one.names)):
                    importers[name].add(path)
    dotted = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sources if path.stem != "__init__"]
    yield f"{sum(len(importers[name]) == 1 for name in dotted)} modules with one importer"


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print("\n".join(measures()))
    else:
        found = list(faults())
        print("\n".join(found) or "Every name stands for one thing.")
        sys.exit(bool(found))
