"""README and docs: every command resolves to a target, a subcommand and options that there are, every link leads on."""

import importlib.util
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from harness import datasets
from harness.analysis.confidence_intervals import FEWEST_BLOCKS
from harness.bench.bench_runner import MINUTES
from harness.cli import main
from harness.cli.command_bench import bench_command
from harness.cli.command_make import TARGETS, command_line, read_overrides, settings_of
from harness.cli.command_sweep import MOST_BLOCKS, sweep_command
from harness.regression.session_check import Verdict
from harness.schema.presets import PRESETS
from harness.schema.sweep import USUAL_MINUTES, USUAL_WIDTH
from harness.schema.sync_policies import POLICIES
from harness.sweep.referee import TURN_S
from tests.labs.additions import TABLE
from tests.labs.doc_pages import EVERYTHING, FENCE, MAKE, PAGES, ROOT, examples, mentions, planned, words
from tests.labs.sentences import says


def resolve(arguments: Sequence[str]) -> None:
    """Parse the arguments of `harness` down to the subcommand's options, and call nothing.

    Raises:
        click.ClickException: there is no such subcommand, option or choice.
    """
    command, context, left = main, None, list(arguments)
    name = "harness"
    while True:
        try:
            context = command.make_context(name, left, parent=context)
        except click.exceptions.Exit:  # --help
            return
        if not isinstance(command, click.Group):
            return
        left = [*context._protected_args, *context.args]
        name, command, left = command.resolve_command(context, left)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that is current: it has the files that the pages' commands name."""
    for name in ("train.py", "results/probes/NAME/probe.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    study = (ROOT / "docs/study.md").read_text().partition("```toml\n")[2]
    (tmp_path / "study.toml").write_text(study.partition("```")[0])  # the commands of the page read what it shows
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_are_found_where_pages_have_them() -> None:
    text = "| `make a B=1` | `make` |\n```sh\nmake b && harness c --d  # e\n- make f\n# make g\n```\n`harness\nh`"
    assert examples(text) == ["make b", "harness c --d", "make f"]
    assert mentions(text) == ["make a B=1", "harness h"]
    assert len(examples(EVERYTHING)) > 30 and len(mentions(EVERYTHING)) > 30


def hold(command: str) -> None:
    """Resolve `command`, whichever program it names."""
    program, *arguments = words(command)
    if program == "mpirun":
        program, *arguments = arguments[2:]
    if program == "make":
        lines = planned(arguments)
        assert lines
        for line in lines:
            if line[:2] == [".venv/bin/harness", "make"] and line[2] not in TARGETS:
                resolve(command_line(line[2], read_overrides(line[3])))
    elif program == "python":
        assert importlib.util.find_spec(arguments[1]) is not None
    else:
        resolve(arguments)


@pytest.mark.parametrize("command", examples(EVERYTHING))
def test_every_example_resolves(command: str, place: Path) -> None:
    hold(command)


@pytest.mark.parametrize("command", mentions(EVERYTHING))
def test_every_command_that_is_mentioned_is_there(command: str, place: Path) -> None:
    with suppress(click.MissingParameter, click.BadOptionUsage):  # which may be left out
        hold(command)


@pytest.mark.parametrize("wrong", ["sweep --nodez 2", "swep", "baseline sav x", "sweep --dataset"])
def test_a_command_that_is_wrong_does_not_resolve(wrong: str) -> None:
    with pytest.raises(click.ClickException):
        resolve(shlex.split(wrong))


@pytest.mark.parametrize("target", ["help", pytest.param("claims", marks=pytest.mark.slow), "data"])
def test_cheap_targets_run(target: str, tmp_path: Path) -> None:
    folders = [f"{name}={tmp_path / name.lower()}" for name in ("RESULTS", "REPORTS")]
    settings = {"claims": folders, "data": [f"DATA_DIR={tmp_path}"]}.get(target, [])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    finished = subprocess.run([*MAKE, target, *settings], capture_output=True, text=True, env=environment, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout


def test_the_lists_of_settings_are_the_registries() -> None:
    page = PAGES["settings.md"]
    shown = CliRunner().invoke(main, ["sweep", "--help-all"], terminal_width=400).output
    settings = settings_of(main.get_command(click.Context(main), "sweep"))
    for name in (*datasets.dataset_names(), *PRESETS, *(policy.form.split(" ")[0] for policy in POLICIES)):
        assert f"`{name}`" in page and name in shown, name
    for name in re.findall(r"^\| `([A-Z_]{2,})=", page, re.MULTILINE):
        assert name in settings, name


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as forges and Sphinx make them."""
    headings = re.findall(r"^#+ (.*)$", "".join(FENCE.split(page)[::2]), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    here = ROOT / ("README.md" if name == "README.md" else f"docs/{name}")
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", PAGES[name]):
        path, _, anchor = target.partition("#")
        there = here.parent / path if path else here
        assert there.is_file(), target
        assert not anchor or anchor in anchors(there.read_text()), target


def test_every_file_of_the_project_that_is_named_is_there() -> None:
    spans = re.findall(r"`((?:harness|tests|jobs|docs|reports|results)/[\w./-]*\w/?)`", EVERYTHING)
    made = ("results/", "reports/")  # by commands, but for what is committed
    for path in {span for span in spans if not span.startswith(made) or (ROOT / span).parent.name == "templates"}:
        assert (ROOT / path).exists(), path


def test_what_can_be_added_is_what_tests_add() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| .* \| `tests/(\w+/\w+)\.py` \|$", PAGES["extending.md"], re.MULTILINE)
    assert rows == [(addition.what, addition.test.partition(":")[0]) for addition in TABLE]


def test_every_page_is_in_the_index() -> None:
    listed = re.findall(r"^([\w/-]+)$", "".join(FENCE.split(PAGES["index.md"])[1::2]), re.MULTILINE)
    assert sorted(listed) == sorted(name.removesuffix(".md") for name in PAGES.keys() - {"README.md", "index.md"})


def test_every_message_of_troubleshooting_is_one_of_the_harness() -> None:
    """Each is a part of a sentence in code, where what varies is left out."""
    code = "".join(path.read_text() for path in (ROOT / "harness").rglob("*.py"))
    code = re.sub(r"\{[^{}]*\}", "...", re.sub(r"\"\s+f?\"", "", code))
    found = re.findall(r"^\| `([^`]+)` \|", PAGES["troubleshooting.md"], re.MULTILINE)
    assert len(found) > 10
    for message in found:
        assert message in code, message


def test_every_variable_of_the_environment_is_listed() -> None:
    sources = (ROOT / "harness").rglob("*.py")
    in_code = {name for path in sources for name in re.findall(r"\bHARNESS_[A-Z_]+\b", path.read_text())}
    assert set(re.findall(r"`(HARNESS_[A-Z_]+)`", PAGES["environment.md"])) == in_code


def test_numbers_of_pages_and_helps_are_those_of_the_code() -> None:
    helps = {}
    for command in (sweep_command, bench_command):
        texts = [command.help, *(option.help for option in command.params if isinstance(option, click.Option))]
        helps[command.name] = " ".join(filter(None, texts))
    fewest = f"{FEWEST_BLOCKS} blocks and more"
    most = f"{MOST_BLOCKS} blocks"
    narrow = f"{100 * USUAL_WIDTH:g} %"
    longest = f"{USUAL_MINUTES:g} minutes"
    slice_time = f"{1000 * TURN_S:g} ms"
    bench = f"{MINUTES:g} minutes"
    says(helps["sweep"], fewest, most, f"[default: {100 * USUAL_WIDTH:g}%]", f"[default: {USUAL_MINUTES:g}]")
    says(helps["bench"], bench, slice_time)
    for name, facts in {
        "README.md": (slice_time, bench),
        "settings.md": (fewest, most),
        "tutorial.md": (narrow, longest, slice_time),
        "method.md": (most, narrow, longest, slice_time),
        "cluster.md": (f"{FEWEST_BLOCKS} to {most}",),
        "alternatives.md": (bench, slice_time),
        "glossary.md": (slice_time, *(verdict.value for verdict in Verdict)),
    }.items():
        says(PAGES[name], *facts)
    assert set(re.findall(r"slices of (?:about )?(\d+ ms)", EVERYTHING)) == {slice_time}
