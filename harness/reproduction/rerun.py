"""Launch again what a record tells of, from the record alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from harness.base.errors import UserError
from harness.base.provenance import git
from harness.datasets import locate
from harness.schema.layout import Layout
from harness.schema.record import RUN_FILE, RunRecord, read_run
from harness.schema.sweep import Sweep
from harness.sweep.execute import run_sweep
from harness.sweep.submission import Submission

FOLDER = "reproductions"  # results/reproductions/<time>
_HERE = Path(__file__).parent.parent.parent
_MOST_LINES = 12  # of a difference in the source


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """A launch to be repeated, and all valid recorded ones of its layout."""

    run: RunRecord
    alike: tuple[RunRecord, ...]


def recorded(folder: Path) -> tuple[Recorded, ...]:
    """Return the launch in `folder`; of a sweep's folder the first valid launch of each layout.

    Raises:
        UserError: a record is missing or damaged, or no launch of the sweep has valid times.
    """
    single = (folder / RUN_FILE).exists()
    sweep = folder.resolve().parent if single else folder
    runs = sorted((read_run(file.parent) for file in sweep.glob(f"*/{RUN_FILE}")), key=lambda run: run.point.repeat)
    valid = [run for run in runs if not run.invalid]
    first: dict[Layout, RunRecord] = {}
    for run in valid:
        first.setdefault(run.point.layout, run)
    chosen = [read_run(folder)] if single else [*first.values()]
    if not chosen:
        raise UserError(f"'{folder}' has no launch with valid times: name one of its launches")
    return tuple(Recorded(run=run, alike=tuple(one for one in valid if _alike(one, run))) for run in chosen)


def _alike(one: RunRecord, other: RunRecord) -> bool:
    return (one.point.layout, one.point.code) == (other.point.layout, other.point.code)


def plan(run: RunRecord, data_dir: Path | None, *, here: bool) -> Sweep:
    """Return the sweep of one launch that repeats `run`; with `here` on as many ranks as this machine has cores for.

    The rows of a step over all ranks stay the same.

    Raises:
        UserError: the data of the record is not here.
    """
    workload = replace(run.point.workload, seed=run.point.seed)
    layout = run.point.layout
    fit = max(1, (psutil.cpu_count(logical=False) or 1) // layout.threads)
    if here and layout.ranks > fit:
        layout = replace(layout, nodes=fit, ranks_per_node=1, shares=None, last_node=None)
        workload = replace(workload, batch_per_rank=None, global_batch=run.global_batch)
    source = locate(workload, data_dir)
    if source.sha256 != run.data.sha256:
        raise UserError(
            f"the {run.data.name} data of the record ({run.data.kind}, {run.data.sha256[:12]}) is not here, what is "
            f"found is {source.kind}, {source.sha256[:12]}: name the folder with --data-dir"
        )
    return Sweep(
        workload=workload,
        layouts=(layout,),
        repeats=1,
        data_id=source.data_id,
        oversubscribe=run.point.oversubscribe,
        settings=run.point.settings,
    )


def repeat(sweep: Sweep, *, data_dir: Path | None, results: Path, submission: Submission) -> RunRecord:
    """Launch the sweep's one launch in a new folder of `results`, and return its record.

    Raises:
        UserError: it cannot run here.
        RunError: it failed.
    """
    folder = results / FOLDER / datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    made = run_sweep(sweep, data_dir=data_dir, results=folder, submission=submission, invalid_too=False)
    (file,) = made.glob(f"*/{RUN_FILE}")
    return read_run(file.parent)


def source_changes(run: RunRecord) -> Sequence[str]:
    """Return the lines of the harness's source that differ now from the record's commit, as far as git knows them."""
    commit = run.provenance.commit
    if not commit or git(_HERE, "cat-file", "-e", f"{commit}^{{commit}}").code != 0:
        return [f"the record's commit {commit[:12] or '(none)'} is not in this checkout: what changed cannot be named"]
    found = git(_HERE, "diff", "--unified=0", commit, "--", "harness", "jobs/templates").out.splitlines()
    changed = [line for line in found if line.startswith(("+", "-")) and not line.startswith("---")]
    more = len(changed) - _MOST_LINES
    lines = [line.replace("+++ b/", "in ") for line in changed[:_MOST_LINES]]
    if run.provenance.dirty:
        lines.append("the record's own source had uncommitted changes, which no commit names")
    return [*lines, *([f"and {more} more lines"] if more > 0 else [])]
