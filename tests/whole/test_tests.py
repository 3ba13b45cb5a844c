"""Tests are found by the module that they test; rooms that change what scripts do have a test for each module."""

import ast
import contextlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Modules, those of a folder with an entry by that.
MODULES = sorted(
    {
        (room, path.stem if path.parent.name == room else path.parent.name)
        for room in ("transparent", "horovod")
        for path in (ROOT / "harness" / room).rglob("*.py")
        if not path.stem.startswith("__")
    }
)
# Rooms whose tests are named by what they are of, and not yet by the module.
BY_SUBJECT = {"cli", "datasets", "horovod", "readers", "regression", "sweep", "transparent"}


def test_a_test_file_has_the_name_of_a_module_of_its_room():
    """What crosses rooms is in tests/whole."""
    rooms = {path.name for path in (ROOT / "harness").iterdir() if (path / "__init__.py").exists()}
    strangers = []
    for room in sorted(rooms - BY_SUBJECT):
        modules = {path.stem for path in (ROOT / "harness" / room).rglob("*.py")}
        packages = {path.parent.name for path in (ROOT / "harness" / room).rglob("__init__.py")}
        for path in (ROOT / "tests" / room).glob("test_*.py"):
            if path.stem.removeprefix("test_") not in modules | packages:
                strangers.append(path.relative_to(ROOT).as_posix())
    assert strangers == []


# What stays: faults that are planted inside the product, below all that is public.
PRIVATE_NAMES = {
    "tests/mpi/planted_division.py": {"_moments", "_weight"},
    "tests/transparent/test_private_tree.py": {"_open_real_mounts", "_shared_folders"},
}


def private_names_of_harness():
    """Return every private name that a module of the product gives to a function, class, attribute or variable."""
    names = set()
    for path in (ROOT / "harness").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return {name for name in names if re.fullmatch(r"_[A-Za-z]\w*", name)}


SETTERS = ("setattr", "getattr", "delattr")


def foreign_modules(tree):
    """Return the names that a test file gives to modules that are neither the product's nor the tests', and `os`.

    A program in a text may have that from what runs it.
    """
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    foreign = [alias for alias in imports if alias.name.partition(".")[0] not in ("harness", "tests")]
    return {"os", *(alias.asname or alias.name.partition(".")[0] for alias in foreign)}


def private_accesses(tree, private_names):
    """Yield the private names of the product that a test file imports, takes of an object, or sets as a text.

    Programs in texts count too. A class of the tests' own may have such names: what is taken of `self` or `cls` is its
    own.
    """
    foreign = foreign_modules(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "harness":
            yield from (alias.name for alias in node.names if alias.name in private_names)
        elif isinstance(node, ast.Attribute) and node.attr in private_names:
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner not in {"self", "cls", *foreign}:
                yield node.attr
        elif isinstance(node, ast.Constant) and "import " in str(node.value):
            with contextlib.suppress(SyntaxError):
                yield from private_accesses(ast.parse(node.value), private_names)
        elif isinstance(node, ast.Call | ast.Tuple):
            texts = node.args if isinstance(node, ast.Call) else node.elts
            function = getattr(node, "func", None)
            is_set = function is None or getattr(function, "attr", getattr(function, "id", "")) in SETTERS
            words = [text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)]
            is_foreign = bool(texts) and isinstance(texts[0], ast.Name) and texts[0].id in foreign
            if is_set and not is_foreign:
                yield from (word.rpartition(".")[2] for word in words if word.rpartition(".")[2] in private_names)


def test_tests_use_no_private_name_of_the_product():
    """They go through what is public; what deserves a test of its own is public."""
    private_names = private_names_of_harness()
    accesses = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        names = set(private_accesses(ast.parse(path.read_text()), private_names))
        if names and "scripts" not in path.parts:  # programs of users, with names of their own
            accesses[path.relative_to(ROOT).as_posix()] = names
    assert accesses == PRIVATE_NAMES


@pytest.mark.parametrize(
    ("text", "is_access"),
    [
        ("from harness.train.training import _planted\n", True),
        ("training._planted(point)\n", True),
        ("monkeypatch.setattr(training, '_planted', None)\n", True),
        ("monkeypatch.setattr('harness.train.training._planted', None)\n", True),
        ("PLACES = [(training, '_planted')]\n", True),
        ("PROGRAM = 'import harness; training._planted()'\n", True),
        ("import os\nos._planted(1)\n", False),
        ("import os\nmonkeypatch.setattr(os, '_planted', None)\n", False),
        ("self._planted = 1\n", False),
        ("training._other(point)\n", False),
        ("print('_planted')\n", False),
    ],
)
def test_an_access_to_a_private_name_is_seen(text, is_access):
    assert list(private_accesses(ast.parse(text), {"_planted"})) == (["_planted"] if is_access else [])


def marks(nodes):
    """Return the names of pytest's marks in `nodes`."""
    found = {node.attr for root in nodes for node in ast.walk(root) if isinstance(node, ast.Attribute)}
    return found & {"mpi", "e2e", "cluster", "slow", "campaign"}


def has_test_without_ranks(path):
    """Tell whether a file has a test that starts no ranks and takes no ten seconds."""
    body = ast.parse(path.read_text()).body
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    if marks(node for node in assigned if getattr(node.targets[0], "id", "") == "pytestmark"):
        return False
    tests = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return any(not marks(test.decorator_list) for test in tests)


@pytest.mark.parametrize(("room", "module"), MODULES)
def test_a_module_is_imported_by_a_test_file_with_tests_that_start_no_ranks(room, module):
    paths = sorted((ROOT / "tests" / room).glob("test_*.py"))
    of_module = [path for path in paths if re.search(rf"harness\.{room}\b.*\b{module}\b", path.read_text())]
    assert any(map(has_test_without_ranks, of_module))
