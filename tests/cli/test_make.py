"""The Makefile: what its command line says reaches the command as it is, and nothing else does."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.__main__ import main as entry
from harness.base.errors import UserError
from harness.cli import COMMANDS, main
from harness.cli.command_make import command_line, read_overrides, settings_of
from tests.labs.sentences import refuses, says

ROOT = Path(__file__).parents[2]
NASTY = "a 'b'  \"c\" $HOME $(X) `false` ; # \\ \\n %\nsecond line\t\n "


def outside(**more: str) -> dict[str, str]:
    """Return the environment without what `make test` tells the makes below it."""
    kept = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return kept | {"PYTHONPATH": str(ROOT)} | more


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with the Makefile and a .venv that is up to date, whose harness prints its words as JSON."""
    folder = tmp_path / "it's a clone"
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / "harness/cli").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copy(ROOT / "harness/cli/commands.tsv", folder / "harness/cli")
    for name in ("requirements.lock", "pyproject.toml", ".venv/.stamp"):
        (folder / name).touch()
    program = folder / ".venv/bin/harness"
    program.write_text("#!/bin/sh\nexec python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \"$@\"\n")
    program.chmod(0o755)
    return folder


def make(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=outside(**environment), check=False, timeout=60
    )


def said(folder: Path, target: str, *words: str, **environment: str) -> list[str]:
    """Return the words of the command line that `make target words` becomes."""
    ended = make(folder, target, *words, **environment)
    assert ended.returncode == 0, ended.stderr
    program, passed_target, overrides = json.loads(ended.stdout)
    assert (program, passed_target) == ("make", target)
    return command_line(target, read_overrides(overrides))


def test_every_value_arrives_as_it_is(checkout: Path) -> None:
    called = said(checkout, "sweep", "DATASET=mnist", f"DATA_DIR={NASTY}", "NODES=1..2", "DRY_RUN=1", "REPEATS:=6")
    assert called[0] == "sweep"
    assert sorted(called[1:]) == sorted(
        ["--dataset=mnist", f"--data-dir={NASTY}", "--nodes=1..2", "--dry-run", "--repeats=6"]
    )


@pytest.mark.slow  # many calls of make
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1).filter(lambda v: v[0] > " "))
def test_any_text_arrives_as_it_is(checkout: Path, value: str) -> None:
    assert said(checkout, "status", f"SWEEP={value}") == ["status", "--", value]


def test_the_environment_does_not_count(checkout: Path) -> None:
    leaking = {"MAIL": "/var/mail/jane", "SEED": "7", "CLASSES": "3", "PROJECT": "x", "NODE": "1..2", "NODES": "1..9"}
    assert said(checkout, "sweep", "DATASET=mnist", **leaking) == ["sweep", "--dataset=mnist"]
    tested = make(checkout, "-n", "test", TESTS="tests/nothing.py", PYTHON="python0", MPI="x")
    assert "nothing" not in tested.stdout
    assert "python0" not in make(checkout, "-n", "-B", "doctor", PYTHON="python0").stdout


@pytest.mark.parametrize(
    ("target", "setting", "near"),
    [("sweep", "NODE=1..2", "NODES"), ("sweep", "EPOCH=3", "EPOCHS"), ("test", "TEST=x", "TESTS")],
)
def test_a_setting_that_is_none_is_refused_with_the_nearest_one(target: str, setting: str, near: str) -> None:
    call = [sys.executable, "-m", "harness", "make", target, setting]
    ended = subprocess.run(call, capture_output=True, text=True, env=outside(), check=False)
    assert ended.returncode == 2
    assert near in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_make_itself_refuses_it(tmp_path: Path) -> None:
    ended = make(ROOT, "-o", ".venv/.stamp", "sweep", "DATASET=mnist", "NODE=1..2", f"RESULTS={tmp_path / 'results'}")
    assert ended.returncode == 2
    assert "NODES" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_switches_are_on_or_off(checkout: Path) -> None:
    called = said(checkout, "sweep", "OVERSUBSCRIBE=0", "DRY_RUN=", "SHARE_NODES=1", "REQUEUE=0", "NODES=")
    assert sorted(called[1:]) == ["--no-requeue", "--share-nodes"]
    assert said(checkout, "sweep", "SHARE_NODES=0")[1:] == ["--exclusive"]
    with pytest.raises(UserError, match="DRY_RUN=yes"):
        command_line("sweep", {"DRY_RUN": "yes"})


def test_settings_name_actions_and_arguments() -> None:
    assert command_line("data", {}) == ["data", "list"]
    assert command_line("data", {"ACTION": "fetch", "DATASET": "mnist"}) == ["data", "fetch", "--", "mnist"]
    assert command_line("baseline", {"SWEEP": "s", "NAME": "n"}) == ["baseline", "save", "--", "n", "s"]
    assert command_line("compare", {"SWEEP": "main 'a b'"}) == ["compare", "--", "main", "a b"]
    assert command_line("run", {"SCRIPT": "t.py", "ARGUMENTS": "--width 2", "RANKS": "2"}) == [
        "run",
        "--ranks=2",
        "--",
        "t.py",
        "--width",
        "2",
    ]
    for target, given_settings, missing in (
        ("baseline", {"SWEEP": "s"}, "NAME="),
        ("data", {"ACTION": "fech"}, "ACTION=fech"),
        ("compare", {"SWEEP": "'"}, "--sweep"),
    ):
        with pytest.raises(UserError, match=missing):
            command_line(target, given_settings)


def test_sweeps_are_named_in_one_way_with_blanks_or_commas() -> None:
    for target in ("explain", "trace", "report", "compare", "status", "history", "check", "bundle"):
        words = command_line(target, {"SWEEP": "one", **({"OUTPUT": "o"} if target == "bundle" else {})})
        assert words[-2:] == ["--", "one"], target
    assert command_line("compare", {"SWEEP": "one,two three"}) == ["compare", "--", "one", "two", "three"]
    assert command_line("run", {"SCRIPT": "t.py", "ARGUMENTS": "a,b"})[-1] == "a,b"


def test_a_target_that_there_is_not_is_one_sentence(checkout: Path) -> None:
    (checkout / ".venv/bin/harness").write_text('#!/bin/sh\necho "harness: $*" >&2; exit 2\n')
    ended = make(checkout, "swep")
    assert ended.returncode == 2 and "swep" in ended.stderr
    with refuses("are known, such", "sweep"):
        command_line("swep", {})
    (checkout / ".venv/.stamp").unlink()
    assert "'swep'" in make(checkout, "swep").stderr


def test_the_variables_of_make_itself_are_no_settings(checkout: Path) -> None:
    words = ("PYTHON=python3", "SHELL=/bin/sh", "NODES=1")
    assert said(checkout, "sweep", *words) == ["sweep", "--nodes=1"]
    tested = make(checkout, "-n", "test", "TESTS=tests/cli/test_cli.py -k help")
    assert "tests/cli/test_cli.py -k help" in tested.stdout


@pytest.mark.parametrize(("code", "lines"), [(0, 0), (1, 1), (2, 0), (3, 1)])
def test_a_last_line_tells_the_exit_code_that_make_hides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int, lines: int
) -> None:
    monkeypatch.setattr(sys, "argv", ["harness", "make", "check"])
    monkeypatch.setattr("harness.__main__.run_command_line", lambda words: code)
    with pytest.raises(SystemExit) as ended:
        entry()
    told = capsys.readouterr().err.splitlines()
    assert ended.value.code == code and len(told) == lines
    assert all(line.startswith(f"harness: exit code {code}: ") for line in told)


def leaves(group: click.Group, name: str) -> list[click.Command]:
    """Return the command called `name`, or its subcommands."""
    found = group.get_command(click.Context(group), name)
    if isinstance(found, click.Group):
        return [leaf for part in found.list_commands(click.Context(found)) for leaf in leaves(found, part)]
    assert found is not None
    return [found]


@pytest.mark.slow  # several calls of make
def test_every_command_is_a_target_and_every_option_a_setting_in_help(checkout: Path) -> None:
    program = [sys.executable, "-m", "harness", "make", "help"]
    shown = subprocess.run(program, capture_output=True, text=True, env=outside(), check=True).stdout
    parts = [" ".join(part.split()) for part in re.split("^make ", shown, flags=re.MULTILINE)[1:]]
    told = {name: " ".join(part for part in parts if re.split("[ ,:]", part)[0] == name) for name in COMMANDS}
    swept = told["sweep"]
    called = make(checkout, *COMMANDS, "X=1").stdout.splitlines()
    assert [json.loads(line) for line in called] == [["make", name, "X=1"] for name in COMMANDS]
    for name in COMMANDS:
        for leaf in leaves(main, name):
            settings = [
                (setting, each) for setting, each in settings_of(leaf).items() if not getattr(each, "hidden", False)
            ]
            first = {id(parameter): setting for setting, parameter in reversed(settings)}
            assert not [setting for setting in first.values() if f" {setting}=" not in swept + told[name]]


def test_help_names_every_target_before_anything_is_set_up(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    shown = make(checkout).stdout
    for target in (*COMMANDS, "test", "lint", "docs", "lock", "clean"):
        assert any(line.startswith(f"make {target} ") and len(line) > 30 for line in shown.splitlines()), target
    assert not (checkout / ".venv").exists()


def test_make_says_which_python_it_needs(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    ended = make(checkout, "doctor", "PYTHON=false")
    assert ended.returncode == 2
    assert "3.11" in ended.stderr
    assert not (checkout / ".venv").exists()


def hard_coded(source: str, names: Collection[str]) -> list[int]:
    """Return the lines of `source` with a text that writes a setting of `names` as make does."""
    tree = ast.parse(source)
    documentation = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    pattern = re.compile(rf"(?<![A-Z_])(?:{'|'.join(names)})=")
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            lines += [node.lineno] if pattern.search(node.value) else []
    return lines


def refusing_an_option(source: str, names: Collection[str]) -> list[int]:
    """Return the lines of `source` with a refusal that writes a setting of `names` as `harness` does."""
    options = "|".join(name.lower().replace("_", "-") for name in names)
    pattern = re.compile(rf"`harness [^`]*`|(?<![\w-])--({options})(?![\w-])")
    lines = []
    for call in ast.walk(ast.parse(source)):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "UserError"):
            continue
        for node in ast.walk(call):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and any(pattern.findall(node.value)):
                lines.append(node.lineno)
    return lines


def test_sentences_name_settings_in_the_language_of_the_command() -> None:
    names: set[str] = set()
    for name in COMMANDS:
        for leaf in leaves(main, name):
            names |= settings_of(leaf).keys()
    names -= {"NAME"}  # NAME=VALUE is a form
    assert hard_coded('x = f"use NODES={count}"\n', names) == [1]
    assert refusing_an_option('raise UserError("use --nodes 2")\n', names) == [1]
    wrong = []
    for path in (ROOT / "harness").rglob("*.py"):
        if path.name == "command_make.py":
            continue
        source = path.read_text()
        wrong += [f"{path}:{line}" for line in hard_coded(source, names)]
        # A script's ranks are started by `harness run` alone: its options are in no other language.
        if "transparent" not in path.parts and path.name != "command_run.py":
            wrong += [f"{path}:{line}" for line in refusing_an_option(source, names)]
    assert wrong == []


def test_a_message_after_make_is_in_the_language_of_make() -> None:
    wrong = {"make": "SCALING=weak needs SAMPLES=", "harness": "--scaling weak needs --samples"}
    for program, sentence in wrong.items():
        words = ["make", "sweep", "DATASET=mnist SCALING=weak NODES=1"]
        if program == "harness":
            words = ["sweep", "--dataset", "mnist", "--scaling", "weak", "--nodes", "1"]
        call = [sys.executable, "-m", "harness", *words]
        ended = subprocess.run(call, capture_output=True, text=True, env=outside(), check=False)
        assert ended.returncode == 2
        says(ended.stderr, sentence)
