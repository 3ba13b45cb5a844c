"""What is replaced in Keras and TensorFlow is listed with its reason, and is there as the replacements need it."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tensorflow as tf

from tests.labs.replacements import describe

TESTS = Path(__file__).parents[1]
ROOM = TESTS.parent / "harness" / "transparent"
LISTED = tomllib.loads((ROOM / "patches.toml").read_text())
PATCHES = {entry["of"]: entry for entry in LISTED["patch"]}
PRIVATE = {entry["of"]: entry for entry in LISTED["private"]}
FILES = ("checkpoints",)  # what reads and writes files is listed there
ROOTS = ("keras.src", "tensorflow.python")


def modules():
    """Return the syntax trees of the room, by module."""
    trees = {path.stem: ast.parse(path.read_text()) for path in ROOM.rglob("*.py") if path.stem != "__init__"}
    return {name: tree for name, tree in trees.items() if name not in FILES}


def resolved(name):
    """Return what an entry is of: the object that holds it, and itself."""
    module, _, path = name.partition(":")
    holder, found = None, importlib.import_module(module)
    for part in path.split("."):
        holder, found = found, getattr(found, part)
    return holder, found


def replaced_in(tree):
    """Yield the last name of the owner and the name of everything that `tree` replaces by a constant name."""
    for node in ast.walk(tree):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "replace"
        if called and len(node.args) >= 4 and isinstance(node.args[1], ast.Constant):
            yield ast.unparse(node.args[0]).split(".")[-1], node.args[1].value


def named_in_files():
    """Yield owner and name of what the module about files replaces: in calls, and in tables of owners and names."""
    for node in ast.walk(ast.parse("\n".join((ROOM / f"{name}.py").read_text() for name in FILES))):
        parts = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
        if len(parts) >= 2 and isinstance(parts[1], ast.Constant):
            yield ast.unparse(parts[0]).split(".")[-1], parts[1].value


@pytest.mark.parametrize("name", PATCHES)
def test_what_is_replaced_is_there_and_takes_what_the_replacement_counts_on(name):
    """In another release of Keras or TensorFlow this is the first to fail, with the name."""
    entry = PATCHES[name]
    _, function = resolved(name)
    function = getattr(function, "fget", function)  # of a property
    found = tuple(inspect.signature(function).parameters)[: len(entry["parameters"])]
    assert found == tuple(entry["parameters"]), f"{name} of this release takes other parameters"
    assert all(entry[field] for field in ("what", "why", "since"))
    assert all((TESTS / "transparent" / f"{test}.py").is_file() for test in entry["tests"])


@pytest.mark.parametrize("name", PRIVATE)
def test_what_is_private_is_there_with_all_that_is_read_of_it(name):
    entry = PRIVATE[name]
    _, thing = resolved(name)
    assert entry["why"]
    assert entry["since"]
    missing = [use for use in entry["uses"] if not hasattr(thing, use)]
    assert not missing, f"{name} of this release has no {', '.join(missing)}"


def test_every_replacement_is_listed():
    listed = {tuple(name.replace(":", ".").split(".")[-2:]) for name in PATCHES}
    found = {
        (owner, name): module
        for module, tree in modules().items()
        for owner, name in replaced_in(tree)
        if owner not in ("DataSet", "metric", "parallel")
    }
    unlisted = {pair: module for pair, module in found.items() if pair not in listed}
    assert not unlisted, "list it in harness/transparent/patches.toml"


@pytest.mark.slow  # Python and TensorFlow start anew
def test_everything_that_a_rank_replaces_is_listed():
    """A rank makes all of its replacements in a process of its own, whatever code makes them."""
    command = [sys.executable, "-m", "tests.labs.replacements"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, cwd=TESTS.parent)
    listed = {(describe(resolved(name)[0]), name.split(".")[-1].split(":")[-1]) for name in PATCHES}
    drawing = {describe(resolved(name)[1]) for name in PRIVATE if ":gen_" in name}
    files = set(named_in_files())
    metrics = {"result", "update_state"}  # of all classes of metrics, as of `Metric`
    unlisted = [
        (owner, name)
        for owner, name in json.loads(finished.stdout)
        if (owner, name) not in listed
        and name != "__init_subclass__"  # Python's own: where a subclass of `Loss` or `Metric` is noticed
        and owner not in drawing
        and (re.split("[.:]", owner)[-1], name) not in files
        and not (owner.startswith(("keras.src.metrics.", "keras.src.trainers.compile_utils")) and name in metrics)
        and not owner.startswith("harness.")
    ]
    assert unlisted == [], "list it in harness/transparent/patches.toml"


def test_every_private_import_is_listed():
    listed = {name.split(".")[0] if ":" not in name else name for name in (*PATCHES, *PRIVATE)}
    holders = {name.rpartition(".")[0] for name in PATCHES} | {name.partition(":")[0] for name in PATCHES}
    unlisted = {}
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOTS):
                names = {f"{node.module}:{alias.name}": f"{node.module}.{alias.name}" for alias in node.names}
                for name, dotted in names.items():
                    if name not in listed and name not in holders and dotted not in holders:
                        unlisted[name] = module
    unlisted.pop("tensorflow.python.training.optimizer:Optimizer", None)  # tf.compat.v1.train.Optimizer
    assert not unlisted, "list it in harness/transparent/patches.toml"


def test_every_entry_names_modules_that_are_there():
    for entry in (*PATCHES.values(), *PRIVATE.values()):
        assert all(list(ROOM.rglob(f"{module}.py")) for module in entry["by"]), entry["of"]
    assert tf.compat.v1.train.Optimizer is resolved("tensorflow.python.training.optimizer:Optimizer")[1]
