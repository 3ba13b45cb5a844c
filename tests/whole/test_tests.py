"""Tests are found by the module that they test; rooms that change what scripts do have a test for each module."""

import ast
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
