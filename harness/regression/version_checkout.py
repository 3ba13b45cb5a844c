"""A version of the harness: what it trains, and the folder of its code, checked out and built where it is a commit."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.base.processes import interruptible, run_program
from harness.base.provenance import git, has_commit
from harness.regression import version_entry
from harness.regression.measurement import Software
from harness.schema.sweep import Sweep

HERE = Path(__file__).parent.parent.parent
"""The folder of the harness that runs."""
_ENTRY = "harness/regression/version_entry.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One side: `name` as a reader knows it, what it trains, and the folder of the harness that trains it.

    `commit` is what must be checked out there, empty where any will do.
    """

    name: str
    sweep: Sweep
    tree: Path = HERE
    commit: str = ""

    def environment(self) -> dict[str, str | None]:
        """Return what makes Python take the harness from `tree`, wherever it is started."""
        search_path = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        return {"PYTHONPATH": os.pathsep.join([str(self.tree), str(Path.cwd()), *search_path]), "PYTHONSAFEPATH": "1"}

    def entry(self) -> list[str]:
        """Return the command, without its arguments, by which it writes the point files of a sweep in its own code.

        Raises:
            UserError: it is of a commit from before that command.
        """
        if not (self.tree / _ENTRY).exists():
            raise UserError(
                f"cannot compare: {self.name} is of commit {self.commit[:12]}, which no other version can ask yet: "
                "save a baseline of a newer commit with `harness baseline save`"
            )
        return [sys.executable, "-m", version_entry.__name__]


def why_no_checkout(software: Software) -> str:
    """Return why the commit of `software` cannot be checked out here, an empty text where it can."""
    if not (HERE / ".git").exists():
        return "the harness here is not a git checkout"
    if not software.commit:
        return "no commit names its code"
    if software.dirty:
        return "it was measured with uncommitted changes, which no commit names"
    if not has_commit(HERE, software.commit):
        return f"commit {software.commit[:12]} is not in this checkout: fetch it (git fetch --unshallow)"
    return ""


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Yield a temporary folder with the harness of `commit`, its native library built.

    Raises:
        UserError: git or the build refuses.
    """
    with interruptible(), tempfile.TemporaryDirectory(prefix="harness-check-") as name:
        tree = Path(name) / commit[:12]
        added = git(HERE, "worktree", "add", "--detach", "--force", str(tree), commit)
        if added.code != 0:
            raise UserError(f"cannot compare: commit {commit[:12]} cannot be checked out: {added.last_error}")
        try:
            build = [sys.executable, "-m", "harness.comm.native.build"]
            changes = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
            built = run_program(build, limit_s=600, changes=changes)
            if built.code != 0:
                raise UserError(f"cannot compare: commit {commit[:12]} does not build: {built.last_error}")
            yield tree
        finally:
            git(HERE, "worktree", "remove", "--force", str(tree))
