"""The recipes of jobs/recipes, with a `harness` in the place of the real one that only answers."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.cli import main

RECIPES = Path(__file__).parents[2] / "jobs/recipes"


def answering(folder: Path, code: int) -> None:
    """Write a `harness` that keeps its arguments, writes the files that it is asked for, and ends with `code`."""
    (folder / ".venv/bin").mkdir(parents=True)
    program = folder / ".venv/bin/harness"
    program.write_text(
        '#!/bin/bash\necho "$@" > words\nwhile [ $# -gt 0 ]; do\n'
        '  if [ "$1" = --output ]; then echo answer > "$2"; fi\n  shift\ndone\n'
        f"exit {code}\n"
    )
    program.chmod(0o755)
    (folder / "mail").write_text('#!/bin/bash\necho "$@" > mailed\ncat >> mailed\n')
    (folder / "mail").chmod(0o755)


def run_script(script: str, folder: Path, **variables: str) -> int:
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **variables}
    return subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=environment, check=False).returncode


def commands_of(recipe: str) -> list[str]:
    """Return every command line of `harness` in a recipe."""
    text = (RECIPES / recipe).read_text().replace("\\\n", " ")
    lines = re.findall(r'^(?!#).*?(?:\.venv/bin/harness|"\$HARNESS") (check .*)$', text, re.MULTILINE)
    return [line.replace(" || code=$?", "").replace('"$BASELINE"', "main") for line in lines]


@pytest.mark.parametrize("recipe", sorted(path.name for path in RECIPES.iterdir()))
def test_every_command_of_a_recipe_is_one_of_the_harness(recipe: str, tmp_path: Path) -> None:
    (command,) = commands_of(recipe)
    words = [*command.split(), "--baselines", str(tmp_path / "none"), "--results", str(tmp_path / "results")]
    result = CliRunner().invoke(main, words, standalone_mode=False)
    assert isinstance(result.exception, UserError) and "main" in str(result.exception), result.output


@pytest.mark.parametrize(("code", "mailed"), [(0, False), (1, True), (2, True), (3, True)])
def test_the_nightly_job_ends_with_the_exit_code_and_mails_what_is_no_pass(
    tmp_path: Path, code: int, mailed: bool
) -> None:
    answering(tmp_path, code)
    script = (RECIPES / "slurm-nightly.sh").read_text().replace("set -u", "set +e -u")
    assert run_script(script, tmp_path, MAIL_TO="ops@example.org") == code
    assert (tmp_path / "mailed").exists() == mailed
    assert (tmp_path / "scaling-check.xml").exists()


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_the_workflow_fails_on_a_regression_and_not_where_it_cannot_tell(
    tmp_path: Path, code: int, expected: int
) -> None:
    answering(tmp_path, code)
    text = (RECIPES / "github-actions.yml").read_text()
    (block,) = re.findall(r"run: \|\n((?: {10}.*\n)+)", text)
    assert run_script(block, tmp_path, GITHUB_STEP_SUMMARY=str(tmp_path / "summary")) == expected
    assert (tmp_path / "summary").read_text() == "answer\n"
