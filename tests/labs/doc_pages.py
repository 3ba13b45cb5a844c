"""The commands that README and docs mention."""

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


# `-o`: .venv is not set up again from here.
MAKE = ("make", "--no-print-directory", "-C", str(ROOT), "-o", ".venv/.stamp")


STARTS = r"(?:make|harness|\.venv/bin/harness|mpirun -n|python -m)"


_CI_KEY = re.compile(r"^\s*(- )?((run|script): )?")  # what stands before a command in a file of a CI system
FENCE = re.compile(r"^```.*$", re.MULTILINE)


def examples(text: str) -> list[str]:
    """Return the commands of fenced blocks in `text`, Markdown."""
    lines = [line for part in FENCE.split(text)[1::2] for line in part.splitlines()]
    code = [word.strip() for line in lines for word in _CI_KEY.sub("", line).split(" #")[0].split("&&")]
    return list(dict.fromkeys(word for word in code if re.match(STARTS + r" \S", word)))


def mentions(text: str) -> list[str]:
    """Return the code spans in `text`, Markdown, that are commands; they may leave arguments out."""
    spans = re.findall(r"`([^`]+)`", " ".join(FENCE.split(text)[::2]).replace("\n", " "))
    return list(dict.fromkeys(span for span in spans if re.match(STARTS + r" \S", span)))


def words(command: str) -> list[str]:
    """Return the words of `command`: of alternatives the first, optional ones as if given, without an ellipsis."""
    plain = re.sub(r"\\\|[\w|\\]+", "", command).replace("[", " ").replace("]", " ").replace("...", " ")
    return shlex.split(plain.replace("COMMAND", "sweep").replace("TARGET", "sweep"))


def planned(target_and_settings: Sequence[str]) -> list[list[str]]:
    """Return the command lines that make would run, each as words."""
    finished = subprocess.run([*MAKE, "-n", *target_and_settings], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return [shlex.split(line) for line in finished.stdout.splitlines()]


DOCS = ROOT / "docs"
PAGES = {"README.md": (ROOT / "README.md").read_text()}
"""The text of README and, by their paths below docs/, of all pages."""
PAGES |= {str(path.relative_to(DOCS)): path.read_text() for path in sorted(DOCS.rglob("*.md"))}


EVERYTHING = "\n".join(PAGES.values())
