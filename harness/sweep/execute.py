"""Run a sweep: launch what is missing, settle what has ended, keep what is finished whatever happens."""

import functools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from harness.base.errors import RunError, UserError
from harness.base.processes import interruptible
from harness.datasets import locate, prepare
from harness.models import check_model
from harness.schema.layout import Layout
from harness.schema.record import RUN_FILE
from harness.schema.sweep import Point, Skipped, Sweep
from harness.sweep import store
from harness.sweep.accounts import ask_accounts
from harness.sweep.eta import Pace, layout_words
from harness.sweep.job_groups import Group, NodeHours, estimate, group_points
from harness.sweep.job_loop import Launches
from harness.sweep.jobs import write_group
from harness.sweep.plan import current, divide, launch_order
from harness.sweep.progress import display, say
from harness.sweep.scheduler import Scheduler
from harness.sweep.store import locked
from harness.sweep.submission import Submission, carry_over, identify, tidy, write_submission

_LOCAL = Submission()

Approve = Callable[[NodeHours], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """What a command will do: every runnable point in launch order, those that are missing, what is skipped.

    `groups` are the jobs of the missing points that are not in the queue already; those are `carried`.
    """

    folder: Path
    points: tuple[Point, ...]
    missing: tuple[Point, ...]
    skipped: tuple[Skipped, ...]
    known: store.Survey
    groups: tuple[Group, ...]
    carried: tuple[store.Running, ...] = ()


def write_scripts(
    sweep: Sweep,
    *,
    data_dir: Path | None,
    results: Path,
    console: Console | None = None,
    submission: Submission = _LOCAL,
) -> SweepPlan:
    """Write the study and the scripts of what is missing, launch nothing, and return the plan.

    Raises:
        UserError: no layout can run here, or the results folder cannot be written to.
    """
    console = console or Console()
    sweep = current(sweep)
    submission = _with_data(submission, data_dir)
    scheduler = submission.open(oversubscribe=sweep.oversubscribe)
    layouts = _runnable(sweep, scheduler)
    with locked(results / sweep.name):
        left = store.read_running(results / sweep.name)
        queued = tuple(running for running in left if running.scheduler != scheduler.name)
        if scheduler.survives_client:  # what a killed command has left on this machine is not in any queue
            queued += identify(scheduler, tuple(running for running in left if running not in queued))
        # What was launched stays what is asked for: a plan alone must not make it launches of other code.
        new = not queued and not any((results / sweep.name).glob(f"*/{RUN_FILE}"))
        plan = _plan(sweep, layouts, results, scheduler, submission, queued, write=new)
        _tell(plan, console)
        if scheduler.survives_client:
            say(console, str(_cost(plan, scheduler, submission)))
        for group in plan.groups:
            write_group(
                group,
                scheduler,
                folder=plan.folder,
                data_dir=data_dir,
                template=submission.template,
            )
    return plan


def run_sweep(
    sweep: Sweep,
    *,
    data_dir: Path | None,
    results: Path,
    console: Console | None = None,
    submission: Submission = _LOCAL,
    approve: Approve | None = None,
    invalid_too: bool | None = None,
) -> Path:
    """Launch every point of `sweep` that has no record, wait for all, and return the sweep's folder.

    On this machine one launch runs at a time, and one whose times were not valid runs again: once more at the end, then
    with each further call. In a batch system it does so only with `invalid_too`, for it would cost node-hours.
    `approve` may raise when it sees the cost of batch jobs.

    Raises:
        UserError: no layout can run here, the data is wrong, another process runs this sweep, the scheduler
            refuses a job, or the results folder cannot be written to.
        RunError: some launches failed; all the others were run and are kept.
    """
    console = console or Console()
    sweep = current(sweep)
    submission = _with_data(submission, data_dir)
    scheduler = submission.open(oversubscribe=sweep.oversubscribe)
    notice = scheduler.check()
    if notice:
        say(console, notice)
    layouts = _runnable(sweep, scheduler)
    folder = results / sweep.name
    with locked(folder), interruptible():
        carried = carry_over(scheduler, folder, functools.partial(say, console))
        tidy(folder, carried)
        plan = _plan(sweep, layouts, results, scheduler, submission, carried, invalid_too)
        _tell(plan, console)
        if scheduler.survives_client and plan.groups:
            cost = _cost(plan, scheduler, submission)
            say(console, str(cost))
            if approve is not None:
                approve(cost)
        _prepare(plan, data_dir, console)
        failed, dropped = _launch(plan, scheduler, submission, console)
        if not failed and not scheduler.survives_client:
            failed, dropped = _launch(_once_more(plan, console), scheduler, submission, console)
        ask_accounts(folder, scheduler)
    if failed:
        lost = f"{failed} of {len(plan.missing)} launches failed" + (f", {dropped} were not tried" if dropped else "")
        where = "" if results == Path("results") else f" --results {shlex.quote(str(results))}"
        raise RunError(
            f"{lost}, whatever finished is kept: "
            f"see `harness status {sweep.name}{where}`; the same command again runs only what failed"
        )
    return folder


def _launch(plan: SweepPlan, scheduler: Scheduler, submission: Submission, console: Console) -> tuple[int, int]:
    """Run the plan's jobs and return how many launches failed, and how many were not tried for that."""
    total = sum(len(group.points) for group in plan.groups) + len(plan.carried)
    if not total:
        return 0, 0
    with display(total, console) as shown:
        launches = Launches(
            scheduler,
            submission,
            folder=plan.folder,
            groups=plan.groups,
            carried=plan.carried,
            pace=Pace(plan.points, plan.known.records.values()),
            shown=shown,
            resubmits=True,
        )
        try:
            return launches.run(), launches.dropped
        except KeyboardInterrupt:
            if scheduler.survives_client and launches.left:
                shown.say(
                    f"{launches.left} launches go on in the queue: `harness collect {plan.folder.name}` or the same "
                    f"command takes them up again, `harness cancel {plan.folder.name}` ends them"
                )
            raise


def _once_more(plan: SweepPlan, console: Console) -> SweepPlan:
    """Return the plan of what `plan` launched without valid times: of nothing where it was most of the sweep."""
    known = store.survey(plan.folder, plan.points)
    missing = known.missing(plan.missing)
    if len(missing) > max(1, len(plan.points) / 2):  # the machine is busy, and will be
        missing = ()
    if missing:
        say(console, f"without valid times, so once more: {len(missing)} of {len(plan.missing)} launches")
    return replace(plan, missing=missing, known=known, groups=group_points(missing, "jobs"), carried=())


def _with_data(submission: Submission, data_dir: Path | None) -> Submission:
    return replace(submission, data_dir=str(data_dir.resolve()) if data_dir is not None else None)


def _runnable(sweep: Sweep, scheduler: Scheduler) -> tuple[tuple[Layout, ...], tuple[Skipped, ...]]:
    runnable, skipped = divide(sweep.layouts, scheduler.refusal)
    if not runnable:
        fix = (
            "ask for fewer NODES, RANKS_PER_NODE or THREADS"
            if scheduler.survives_client
            else "ask for fewer NODES, RANKS_PER_NODE or THREADS, or set OVERSUBSCRIBE=1 to run for function only"
        )
        raise UserError(f"no layout can run: {layout_words(skipped[0].layout)}: {skipped[0].reason}; {fix}")
    return runnable, skipped


def _plan(
    sweep: Sweep,
    layouts: tuple[tuple[Layout, ...], tuple[Skipped, ...]],
    results: Path,
    scheduler: Scheduler,
    submission: Submission,
    carried: Sequence[store.Running] = (),
    invalid_too: bool | None = None,
    write: bool = True,
) -> SweepPlan:
    """Write down what `sweep` asks for and compare it with what `results` holds and the queue has.

    Without `write` what the launches that are there were asked for with stays as it is.
    """
    runnable, skipped = layouts
    folder = results / sweep.name
    if write:
        store.write_study(folder, sweep, skipped)
        write_submission(folder, submission)
    points = launch_order(sweep, runnable)
    known = store.survey(folder, points)
    again = not scheduler.survives_client if invalid_too is None else invalid_too
    missing = known.missing(points, invalid_too=again)
    queued = {running.point.folder for running in carried}
    return SweepPlan(
        folder=folder,
        points=points,
        missing=missing,
        skipped=skipped,
        known=known,
        groups=group_points((point for point in missing if point.folder not in queued), submission.request.shape),
        carried=tuple(carried),
    )


def _cost(plan: SweepPlan, scheduler: Scheduler, submission: Submission) -> NodeHours:
    return estimate(plan.groups, submission.request, scheduler.limit(), plan.known.durations())


def _tell(plan: SweepPlan, console: Console) -> None:
    done = len(plan.points) - len(plan.missing)
    say(console, f"sweep {plan.folder.name}: {len(plan.points)} launches, {done} done, {len(plan.missing)} to run")
    others = store.other_code(plan.folder, plan.points[0].code)
    if others:
        say(console, f"{others} launches of other code (an edit or an upgrade since) are kept and do not count")
    if plan.carried:
        say(console, f"{len(plan.carried)} of them are in the queue already")
    for skipped in plan.skipped:
        say(console, f"not run: {layout_words(skipped.layout)}: {skipped.reason}")
    wanted = {point.folder for point in plan.missing}
    doubtful = [name for name, record in plan.known.records.items() if record.invalid and name not in wanted]
    counted = [name for name in doubtful if not plan.known.records[name].point.oversubscribe]
    if counted:
        say(
            console,
            f"{len(counted)} launches have times that are not valid: `harness retry {plan.folder.name}` repeats them",
        )
    for point in plan.missing:
        if point.folder in plan.known.damaged:
            say(console, f"runs again: {plan.known.damaged[point.folder]}")
        elif point.folder in plan.known.records:
            say(console, f"runs again: {point.folder}: {plan.known.records[point.folder].invalid[0]}")


def _prepare(plan: SweepPlan, data_dir: Path | None, console: Console) -> None:
    """Say which data it is, bring it into the cache before the first launch, not inside it, and try the network."""
    shown: set[str] = set()
    tried = bool(plan.known.records) or not plan.groups
    asked = dict.fromkeys((point.workload, point.data_id) for point in plan.missing or plan.points[:1])
    for workload, data_id in asked:
        source = locate(workload, data_dir, data_id)
        line = f"data: {source.name}, {source.kind}" + (f": {source.note}" if source.note else "")
        if line not in shown:
            say(console, line)
            shown.add(line)
        if source.kind == "script":
            continue
        data = prepare(source).record
        if not tried:
            notice = check_model(workload, data)
            if notice:
                say(console, notice)
            tried = True
