"""Whatever is written on the command line: one sentence and exit code 2, or the answer; never a traceback."""

import contextlib
import io
import subprocess
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from harness.__main__ import run_command_line
from harness.base.errors import UserError
from harness.cli import COMMANDS, main
from tests.labs.factories import make_run, write_run, write_study

# What trains in this process, measures this machine for minutes, or downloads.
LEFT_OUT = {"train", "bench", "doctor", "data fetch"}
TEXT = st.characters(codec="utf-8", exclude_characters="\0")
NASTY = (
    "",
    " ",
    "'x",
    '"',
    "-",
    "--",
    "-1",
    "0",
    "1",
    "2",
    "1..2",
    "1..1000000",
    "1,,2",
    "..",
    "1..8*1",
    "2:1",
    "nan",
    "inf",
    "-inf",
    "1e308",
    "1e-400",
    "99999999999999999999",
    "x",
    "é",
    "\n",
    "\x1b[31m",
    "%s",
    "{x}",
    "*",
    "~",
    "/",
    "/dev/null",
    "/proc/self/mem",
    "nosuch/x",
    "file",
    "file/x",
    "damaged",
    "folder",
    "study",
    "results/study",
    "study@aaaa",
    "@",
    "study@",
    "mnist",
    "adult",
    "higgs",
    "cnn",
    "nosuch:fn",
    "os:getcwd",
    "a.b:c",
    "gradients",
    "weights:0",
    "weights:999",
    "slurm",
    "pbs",
    "local",
    "file.csv",
    "file.toml",
    "1:00:00",
    "0:00:00",
    "16G",
    "1,2",
    "1e-6,1e-9",
    "😀" * 50,
    "a" * 300,
)


def leaves(group: click.Command, names: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    """Return every command by the words that call it."""
    if not isinstance(group, click.Group):
        return {names: group}
    context = click.Context(group)
    known = COMMANDS if group is main else group.list_commands(context)
    found = [(group.get_command(context, name), (*names, name)) for name in known]
    return {words: leaf for one, path in found if one for words, leaf in leaves(one, path).items()}


CALLED = {words: leaf for words, leaf in leaves(main).items() if " ".join(words) not in LEFT_OUT}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draw a command, some of its options and arguments, and values that may or may not be of their kind."""
    words = draw(st.sampled_from(sorted(CALLED)))
    value = st.sampled_from(NASTY) | st.text(TEXT, max_size=8)
    line = list(words)
    parameters = (
        draw(st.lists(st.sampled_from(CALLED[words].params), max_size=5, unique_by=id)) if CALLED[words].params else []
    )
    arguments = []
    for parameter in parameters:
        if isinstance(parameter, click.Argument):
            arguments.append(draw(value))
            continue
        flag = draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts]))
        choices = (parameter.metavar or "").split("|") if "|" in (parameter.metavar or "") else []
        good = st.sampled_from(choices) if choices else value
        if flag != "--launches":
            line += [flag] if getattr(parameter, "is_flag", False) else [flag, draw(good | value)]
    if words == ("sweep",):
        line += ["--dry-run", *draw(st.sampled_from([["--dataset", "adult", "--data-kind", "synthetic"], []]))]
    return [*line, "--", *arguments]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder: sweeps, files that are no sweeps, and nothing that can be launched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    write_study(tmp_path / "results/study")
    write_run(tmp_path / "results/study", make_run())
    (tmp_path / "results/folder/sweep.json").mkdir(parents=True)
    (tmp_path / "results/damaged").mkdir()
    (tmp_path / "results/damaged/sweep.json").write_bytes(b"\xff{")
    (tmp_path / "file").write_bytes(b"\x80\x00")
    (tmp_path / "file.csv").write_text("a,b\n1,x\n2\n")
    (tmp_path / "file.toml").write_text("partition = 3\n")

    def refuse(*_: object, **__: object) -> None:
        raise UserError("nothing is launched in this test")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(subprocess.Popen, "__del__", lambda _: None)
    return tmp_path


def ends_well(line: list[str]) -> None:
    """Call the command line in this process; anything but an answer or one sentence fails the test."""
    said = io.StringIO()
    note(f"harness {' '.join(map(repr, line))}")
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run_command_line(line)
    note(said.getvalue()[-500:])
    assert code in ((0, 1, 2, 3) if "check" in line else (0, 2)), line
    assert "Traceback" not in said.getvalue()


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=command_lines())
def test_any_command_line_is_an_answer_or_one_sentence(place: Path, line: list[str]) -> None:
    ends_well(line)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    target=st.sampled_from(sorted(COMMANDS)),
    text=st.text(TEXT, max_size=30) | st.sampled_from([f"{name}=x" for name in ("SWEEP", "ACTION")]),
)
def test_any_text_of_make_is_too(place: Path, target: str, text: str) -> None:
    if target not in LEFT_OUT:
        ends_well(["make", target, f"DRY_RUN=1 {text}" if target == "sweep" else text])
