"""Duets: two versions launched in turn, in one session, so that what the machine does falls on both equally.

A block has each layout once from both versions, one right after the other; chance decides which comes first. Only
differences within such pairs are judged (`checks.check_duet`), which needs no knowledge of the machine's noise.
The versions are two commits of the harness, each in a tree of its own, or two scripts or models of a user's.
"""

import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.analysis.read_results import Loaded, load_sweep
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.processes import ask, interruptible
from harness.base.provenance import git, has_commit
from harness.regression.checks import Check, check_duet
from harness.regression.measurements import measurements
from harness.regression.significance import DEFAULT_LIMITS, INCONCLUSIVE, Thresholds
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement, Software
from harness.schema.record import encode
from harness.schema.sweep import Sweep, sweep_folders

PAIRS = 12  # launches of each layout and version before the first look, and as many more before the second
LOOKS = 2
_FIRST = 3  # blocks after which a duet without a valid pair is given up
_HERE = Path(__file__).parent.parent.parent
_LONGEST_S = 7 * 86400.0  # of a launch: its own time limit is the user's business

# Launches one point of one side: SWEEP_FILE RESULTS DATA_DIR (empty: none is given). It runs apart from this module so
# that `harness` is the version on PYTHONPATH; all that it needs of that version is `run_sweep`, `Sweep` and `decode`.
_LAUNCH = """
import sys
from pathlib import Path
from harness.base.errors import RunError, UserError
from harness.schema.record import decode
from harness.schema.sweep import Sweep
from harness.sweep.execute import run_sweep

sweep_file, results, data_dir = sys.argv[1:]
try:
    sweep = decode(Path(sweep_file).read_bytes(), Sweep, Path(sweep_file))
    run_sweep(sweep, data_dir=Path(data_dir) if data_dir else None, results=Path(results), invalid_too=False)
except (UserError, RunError) as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One side: `name` as a reader knows it, what it trains, and the folder of the harness that trains it.

    `commit` is what must be checked out there, empty where any will do.
    """

    name: str
    sweep: Sweep
    tree: Path = _HERE
    commit: str = ""

    def environment(self) -> dict[str, str | None]:
        """Return what makes Python take the harness from `tree`, wherever it is started."""
        given = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        return {"PYTHONPATH": os.pathsep.join([str(self.tree), str(Path.cwd()), *given]), "PYTHONSAFEPATH": "1"}


class Duet:
    """Pairs of launches of two versions, added until the budget is spent; their records are kept in `folder`."""

    def __init__(self, old: Version, new: Version, *, folder: Path, data_dir: Path | None, budget_s: float) -> None:
        self._versions = {"old": old, "new": new}
        self._folder = folder.resolve()
        self._data_dir = str(data_dir.resolve()) if data_dir else ""
        self._deadline = time.monotonic() + budget_s
        self._longest = 0.0
        self._blocks = 0
        self._random = random.Random(folder.name)

    def add_block(self) -> bool:
        """Launch every layout once from both versions; return False, having done nothing, when the time is over.

        Raises:
            UserError: a launch failed, or a version cannot be launched in this way.
        """
        begin = time.monotonic()
        if begin + self._longest > self._deadline:
            return False
        layouts = list(self._versions["old"].sweep.layouts)
        self._random.shuffle(layouts)
        for layout in layouts:
            for side in self._random.sample(list(self._versions), 2):
                self._launch(side, layout)
        self._blocks += 1
        self._longest = max(self._longest, time.monotonic() - begin)
        return True

    def measured(self) -> tuple[Measurement, Measurement]:
        """Return the valid launches of the old and of the new version so far.

        Raises:
            UserError: one of them has none, or another state of the code ran than was meant.
        """
        if not self._blocks:
            raise UserError("no pair of launches was measured: give a larger BUDGET")
        return self._measured("old"), self._measured("new")

    def pairs(self) -> int:
        """Return the number of pairs with two valid launches, of the layout that has the fewest."""
        if not self._blocks:
            return 0
        valid = [{(run.point.layout, run.point.repeat) for run in self._loaded(side).valid} for side in self._versions]
        layouts = self._versions["old"].sweep.layouts
        return min(sum(place == layout for place, _ in valid[0] & valid[1]) for layout in layouts)

    def _launch(self, side: str, layout: Layout) -> None:
        version = self._versions[side]
        file = self._folder / f"{side}.json"
        write_atomic(file, encode(replace(version.sweep, layouts=(layout,), repeats=self._blocks + 1)))
        command = [sys.executable, "-c", _LAUNCH, str(file), str(self._folder / side), self._data_dir]
        reply = ask(command, limit_s=_LONGEST_S, changes=version.environment())
        if reply.code != 0:
            raise UserError(f"cannot compare: {version.name} does not run: {reply.last_error}")

    def _loaded(self, side: str) -> Loaded:
        (folder,) = sweep_folders(self._folder / side)  # an older version may have called it something else
        return load_sweep(folder, every_code=True)

    def _measured(self, side: str) -> Measurement:
        version, loaded = self._versions[side], self._loaded(side)
        found = measurements(loaded, version.name)
        if not found:
            why = [*loaded.damaged, *(run.invalid[0] for run in loaded.runs if run.invalid), "there is none"]
            raise UserError(f"cannot compare: no launch of {version.name} counts: {why[0]}")
        if len(found) > 1 or version.commit not in ("", found[0].software.commit):
            ran = ", ".join(one.state for one in found)
            raise UserError(f"cannot compare: {version.name} ran as {ran}: do not change the code while a duet runs")
        return found[0]


def duet_folder(results: Path) -> Path:
    """Return a new folder in `results` for the records of a duet, named by the time."""
    return results / "duets" / datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")


def decide_duet(duet: Duet, *, limits: Thresholds = DEFAULT_LIMITS, say: Callable[[str], None]) -> Check:
    """Return the check of the new version against the old one, with more pairs if the first are inconclusive.

    Raises:
        UserError: a launch failed, the budget was too small for a single pair, or the rows of an epoch differ.
    """
    result: Check | None = None
    with interruptible():
        for look in range(1, LOOKS + 1):
            say(f"duet: {PAIRS * look - duet.pairs()} pairs of launches of each layout")
            in_time, tries = True, 0
            # Half of the launches may be invalid; where all of the first are, more would be too.
            while in_time and duet.pairs() < PAIRS * look and tries < (2 * PAIRS if duet.pairs() else _FIRST):
                in_time, tries = duet.add_block(), tries + 1
            old, new = duet.measured()
            for layout in old.layouts:
                one, other = old.of(layout), new.of(layout)
                if one and other and one[0].rows != other[0].rows:
                    raise UserError(
                        f"cannot compare: an epoch of {old.label} has {one[0].rows:,} rows, of {new.label} "
                        f"{other[0].rows:,}: let both train on the same"
                    )
            result = check_duet(old, new, limits=limits, looks=LOOKS)
            if not in_time:
                say(f"the budget of time is spent: {duet.pairs()} pairs")
            if result.verdict != INCONCLUSIVE or not in_time:
                break
    assert result is not None
    return result


def why_no_checkout(software: Software) -> str:
    """Return why the commit of `software` cannot be checked out here, an empty text where it can."""
    if not (_HERE / ".git").exists():
        return "the harness here is not a git checkout"
    if not software.commit:
        return "no commit names its code"
    if software.dirty:
        return "it was measured with uncommitted changes, which no commit names"
    if not has_commit(_HERE, software.commit):
        return f"commit {software.commit[:12]} is not in this checkout: fetch it (git fetch --unshallow)"
    return ""


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Yield a temporary folder with the harness of `commit`, its native library built.

    Raises:
        UserError: git or the build refuses.
    """
    with interruptible(), tempfile.TemporaryDirectory(prefix="harness-duet-") as name:
        tree = Path(name) / commit[:12]
        added = git(_HERE, "worktree", "add", "--detach", "--force", str(tree), commit)
        if added.code != 0:
            raise UserError(f"cannot compare: commit {commit[:12]} cannot be checked out: {added.last_error}")
        try:
            build = [sys.executable, "-m", "harness.comm.native.build"]
            changes = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
            built = ask(build, limit_s=600, changes=changes)
            if built.code != 0:
                raise UserError(f"cannot compare: commit {commit[:12]} does not build: {built.last_error}")
            yield tree
        finally:
            git(_HERE, "worktree", "remove", "--force", str(tree))
