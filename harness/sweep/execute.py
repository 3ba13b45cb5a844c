"""Run a sweep: take in what has ended, launch what is missing, and keep what is finished whatever happens."""

import contextlib
import math
import shlex
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.cores import memory_limit
from harness.base.errors import RunError, UserError
from harness.base.processes import interruptible
from harness.datasets import locate, own_file_lines, prepare
from harness.models import check_model
from harness.schema.record import RUN_FILE
from harness.schema.sweep import FAILURES, LOGS, ROUNDS, Point, Skipped, Sweep
from harness.sweep.job_loop import Launches
from harness.sweep.job_script import Group, NodeHours, blocks, estimate, group_points, remarks, write_group
from harness.sweep.plan import current, divide, launch_order
from harness.sweep.progress import Pace, display, say
from harness.sweep.schedulers import Scheduler
from harness.sweep.status import ask_accounts
from harness.sweep.submitting import carry_over, identify
from harness.sweep.sweep_folder import (
    Running,
    Submission,
    Survey,
    is_locked,
    locked,
    other_code,
    read_running,
    read_study,
    read_submission,
    set_aside,
    survey,
    tidy,
    write_study,
    write_submission,
)

_LOCAL = Submission()
_SIGNAL = 128  # and its number: the exit code of what a signal has ended
_RANK_BYTES = 2**30  # of a rank that was never seen: TensorFlow, a small network, its rows
_TOGETHER = "together"  # results/together/<first sweep>/: launches of several sweeps, until they are shared out

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
    known: Survey
    groups: tuple[Group, ...]
    carried: tuple[Running, ...] = ()


def write_scripts(sweep: Sweep, *, data_dir: Path | None, results: Path, submission: Submission = _LOCAL) -> SweepPlan:
    """Write the study and the scripts of what is missing, launch nothing, and return the plan.

    Raises:
        UserError: no layout can run here, the user's own file or network is wrong, or the results folder cannot be
            written to.
    """
    command = _Command(sweep, data_dir, results, submission)
    scheduler, folder = command.scheduler, command.folder
    _say_data([sweep], data_dir)
    with locked(folder):
        left = read_running(folder)
        queued = tuple(running for running in left if running.scheduler != scheduler.name)
        if scheduler.survives_client:  # what a killed command has left on this machine is not in any queue
            queued += identify(scheduler, folder, tuple(running for running in left if running not in queued))
        plan = command.plan(queued, invalid_too=True)
        _prepare(plan, data_dir, own_only=True)
        # What was launched stays what is asked for: a plan alone must not make it launches of a different code version.
        if not queued and not any(folder.glob(f"*/{RUN_FILE}")):
            command.note()
        if scheduler.survives_client:
            command.cost(plan)
        for group in plan.groups:
            write_group(group, scheduler, folder=folder, data_dir=data_dir, template=submission.template)
    return plan


def run_sweep(
    sweep: Sweep,
    *,
    data_dir: Path | None,
    results: Path,
    submission: Submission = _LOCAL,
    approve: Approve | None = None,
    invalid_too: bool = True,
    enough: Callable[[Path], int] | None = None,
) -> Path:
    """Launch every point of `sweep` that has no valid record, wait for all, and return the sweep's folder.

    What earlier commands left in a queue is taken in or waited for. Without `invalid_too` launches whose times are not
    valid are not made again. On this machine one launch or block runs at a time, and what was killed or has no valid
    times runs once more at the end; after that `enough` says how many repeats of each layout there shall be, and is
    asked again until they are there. `approve` may raise when it sees the cost of batch jobs.

    Raises:
        UserError: no layout can run here, the data is wrong, another process runs this sweep, the scheduler
            refuses a job, or the results folder cannot be written to.
        RunError: some launches failed; all the others were run and are kept.
    """
    command = _Command(sweep, data_dir, results, submission)
    scheduler, folder = command.scheduler, command.folder
    _say_data([sweep], data_dir)
    notice = scheduler.check()
    if notice:
        say(notice)
    with locked(folder), interruptible():
        carried = carry_over(scheduler, folder, say)
        tidy(folder, carried)
        if carried:
            carried = command.take_in(carried)
        plan = command.plan(carried, invalid_too)
        if scheduler.survives_client and plan.groups:
            cost = command.cost(plan)
            if approve is not None:
                approve(cost)
        _prepare(plan, data_dir)
        command.note()  # not before: what is refused is no sweep of missing launches
        failed, dropped, busy = command.launch(plan, timed=invalid_too)
        if not scheduler.survives_client and not busy:
            again = command.once_more(plan)
            if again.missing:
                failed, dropped, busy = command.launch(again, timed=invalid_too)
            while not (failed or busy) and enough and (repeats := enough(folder)) > command.sweep.repeats:
                failed, dropped, _ = command.launch(command.widen(repeats), timed=False)  # the first ones have waited
        ask_accounts(folder, scheduler)
    if failed or busy:
        counts = f"{failed} of {len(plan.missing)} launches failed" + (f", {dropped} were not tried" if dropped else "")
        if busy:
            counts = f"{dropped} of {len(plan.missing)} launches were not made: {busy}"
        where = "" if results == Path("results") else f" --results {shlex.quote(str(results))}"
        raise RunError(
            f"{counts}, whatever finished is kept: "
            f"see `harness status {folder.name}{where}`; the same command again runs only what is missing"
        )
    return folder


def run_together(
    sweeps: Sequence[Sweep], *, data_dir: Path | None, results: Path, submission: Submission = _LOCAL
) -> int:
    """Launch on this machine what is missing of `sweeps`, each repeat of all of them in one block, in turns.

    Every launch goes to its own sweep's folder, with the rounds of its block, in which the first sweep's launches stand
    for layouts that its own sweep does not have. What has no valid times runs once more, unless that is most of it.
    Return how many launches are missing still.

    Raises:
        UserError: a layout cannot run here, the data is wrong, or another process runs one of the sweeps.
    """
    each = [_Command(sweep, data_dir, results, submission) for sweep in sweeps]
    command = _Together(each, results / _TOGETHER)
    _say_data(sweeps, data_dir)
    with contextlib.ExitStack() as held:
        for one in (command, *each):
            held.enter_context(locked(one.folder))
        held.enter_context(interruptible())
        carry_over(command.scheduler, command.folder, say)
        held.callback(command.share_out)  # also of what ended before an interruption
        plan = command.plan((), invalid_too=True)
        _prepare(plan, data_dir)
        command.note()
        command.launch(plan, timed=True)
        command.launch(command.once_more(plan), timed=True)
        return len(command.survey(command.points).missing(command.points))


def cancel(folder: Path) -> tuple[int, bool]:
    """End the launches of the sweep in `folder` that are queued or running, and keep that they were cancelled.

    Return how many there were, and whether a command that waits for them in another terminal takes them in.

    Raises:
        UserError: nothing of the sweep is queued or running, or the scheduler does not answer.
    """
    left = read_running(folder)
    if not left:
        raise UserError(f"nothing of sweep '{folder.name}' is queued or running")
    sweep, submission = read_study(folder).sweep, read_submission(folder)
    scheduler = submission.open(oversubscribe=sweep.oversubscribe)
    if not scheduler.survives_client:
        raise UserError(f"sweep '{folder.name}' runs on this machine: end its command (Ctrl-C) instead")
    launches = identify(scheduler, folder, left, say=None if is_locked(folder) else say)
    scheduler.cancel(sorted({launch.job for launch in launches}))
    if is_locked(folder):
        return len(left), True
    with locked(folder), interruptible():
        carried = identify(scheduler, folder, read_running(folder), say=say)
        pace = Pace(launch_order(sweep, sweep.layouts))
        with display(len(carried)) as shown:
            Launches(
                scheduler=scheduler, submission=submission, folder=folder, pace=pace, shown=shown, carried=carried
            ).run()
        ask_accounts(folder, scheduler)
    return len(carried), False


class _Command:
    """What one command has to do with a sweep: the sweep of the code as it is now, where it is launched, its layouts.

    Raises:
        UserError: no layout can run here, or the scheduler does not know what is asked of it.
    """

    def __init__(self, sweep: Sweep, data_dir: Path | None, results: Path, submission: Submission) -> None:
        self.sweep = current(sweep)
        self.submission = replace(submission, data_dir=str(data_dir.resolve()) if data_dir is not None else None)
        self.scheduler: Scheduler = self.submission.open(oversubscribe=sweep.oversubscribe)
        self.folder, self.name = results / self.sweep.name, f"sweep {self.sweep.name}"
        self.runnable, self.skipped = divide(sweep.layouts, self.scheduler.refusal)
        if not self.runnable:
            first, fix = self.skipped[0], "ask for fewer NODES, RANKS_PER_NODE or THREADS"
            if not self.scheduler.survives_client:
                fix += ", or set OVERSUBSCRIBE=1 to run for function only"
            raise UserError(f"no layout can run: {first.layout}: {first.reason}; {fix}")
        self.points = launch_order(self.sweep, self.runnable)

    def note(self) -> None:
        """Write down what is asked for, and how it is launched."""
        write_study(self.folder, self.sweep, self.skipped)
        write_submission(self.folder, self.submission)

    def survey(self, points: Iterable[Point]) -> Survey:
        """Read what is known of `points`."""
        return survey(self.folder, points)

    def _launches(self, **asked: Any) -> Launches:
        return Launches(scheduler=self.scheduler, submission=self.submission, folder=self.folder, **asked)

    def take_in(self, carried: Sequence[Running]) -> tuple[Running, ...]:
        """Settle those launches in the queue that have ended, and return the others."""
        with display(len(carried)) as shown:
            launches = self._launches(pace=Pace(self.points), shown=shown, carried=carried)
            launches.take_in()
        return launches.going

    def plan(self, carried: Sequence[Running], invalid_too: bool) -> SweepPlan:
        """Compare what is asked for with what the folder holds and the queue has, and say what is to be done."""
        plan = self._plan(carried, invalid_too=invalid_too)
        _announce(self.name, plan)
        return plan

    def _plan(self, carried: Sequence[Running] = (), *, invalid_too: bool) -> SweepPlan:
        known = self.survey(self.points)
        missing = known.missing(self.points, invalid_too=invalid_too)
        queued = {running.point.folder for running in carried}
        groups = self._groups([point for point in missing if point.folder not in queued], known)
        return SweepPlan(
            folder=self.folder,
            points=self.points,
            missing=missing,
            skipped=self.skipped,
            known=known,
            groups=groups,
            carried=tuple(carried),
        )

    def _groups(self, missing: Sequence[Point], known: Survey) -> tuple[Group, ...]:
        shape = self.submission.request.shape
        if shape != "block":
            return group_points(missing, shape)
        seen = (rank.peak_memory_bytes for record in known.records.values() for rank in record.ranks)
        limit, nodes = self.scheduler.limit(), self.scheduler.survives_client
        free = (limit.memory_mb * 2**20 if limit and limit.memory_mb else math.inf) if nodes else memory_limit()
        groups, notes = blocks(missing, self.points, max(seen, default=_RANK_BYTES), free, nodes=nodes)
        for note in notes:
            say(note)
        return groups

    def cost(self, plan: SweepPlan) -> NodeHours:
        """Return what the plan's jobs may cost, having said it, and by which MPI and on which cores they run."""
        request, limit = self.submission.request, self.scheduler.limit()
        for remark in remarks(self.runnable, request, limit, self.submission.site):
            say(remark)
        cost = estimate(plan.groups, request, limit, plan.known.durations())
        say(str(cost))
        return cost

    def launch(self, plan: SweepPlan, *, timed: bool) -> tuple[int, int, str]:
        """Run the plan's jobs; return how many launches failed, how many were not tried, and what kept cores busy."""
        total = sum(len(group.points) for group in plan.groups) + len(plan.carried)
        if not total:
            return 0, 0, ""
        with display(total) as shown:
            pace = Pace(plan.points, plan.known.records.values())
            launches = self._launches(
                pace=pace, shown=shown, groups=plan.groups, carried=plan.carried, resubmits=True, timed=timed
            )
            try:
                return launches.run(), launches.dropped, launches.busy
            except KeyboardInterrupt:
                if self.scheduler.survives_client and launches.going:
                    shown.say(
                        f"{len(launches.going)} launches stay in the queue: the same command waits for them again, "
                        f"`harness cancel {self.folder.name}` ends them"
                    )
                raise

    def widen(self, repeats: int) -> SweepPlan:
        """Return the plan of what is missing of `repeats` repeats, which the sweep has from now on."""
        self.sweep = replace(self.sweep, repeats=repeats)
        self.points = launch_order(self.sweep, self.runnable)
        self.note()
        return self._plan(invalid_too=False)

    def once_more(self, plan: SweepPlan) -> SweepPlan:
        """Return the plan of what `plan` launched without valid times, or was killed from outside.

        Of nothing where that was most of the sweep, or a launch failed by itself.
        """
        known = self.survey(plan.points)
        missing = known.missing(plan.missing)
        codes = [known.failures[point.folder].exit_code for point in missing if point.folder in known.failures]
        if any(code <= _SIGNAL for code in codes):
            missing = ()
        if missing:
            said = f"{'killed or ' if codes else ''}without valid times: {len(missing)} of {len(plan.missing)} launches"
            if len(missing) > max(1, len(plan.points) / 2):  # the machine is busy, and will be
                said += "; that is most of the sweep, so none runs again: repeat the command on a quiet machine"
                missing = ()
            say(said + (", launched once more" if missing else ""))
        return replace(plan, missing=missing, known=known, groups=self._groups(missing, known), carried=())


class _Together(_Command):
    """What one command has to do with several sweeps, whose launches take turns in a folder below `folder`."""

    def __init__(self, each: Sequence[_Command], folder: Path) -> None:
        first, self.each = each[0], each
        self.submission, self.scheduler = first.submission, first.scheduler
        self.folder, self.name = folder / first.sweep.name, ", ".join(one.name for one in each)
        self.skipped = tuple(dict.fromkeys(skipped for one in each for skipped in one.skipped))
        self.points = tuple(sorted((point for one in each for point in one.points), key=lambda point: point.repeat))

    def note(self) -> None:
        """Write down what is asked for, and how it is launched."""
        for one in self.each:
            one.note()

    def survey(self, points: Iterable[Point]) -> Survey:
        """Share out what has ended, and read what is known of `points`."""
        self.share_out()
        known = Survey(records={}, failures={}, damaged={})
        for one in self.each:
            found = one.survey(points)
            known.records.update(found.records)
            known.failures.update(found.failures)
            known.damaged.update(found.damaged)
        return known

    def share_out(self) -> None:
        """Move the launches that have ended to their own sweeps' folders, with a copy of their rounds."""
        import pandas as pd

        for one in self.each:
            for point in one.points:
                if (self.folder / point.folder / RUN_FILE).exists():
                    set_aside(one.folder, point)
                    shutil.rmtree(one.folder / point.folder, ignore_errors=True)
                    (self.folder / point.folder).rename(one.folder / point.folder)
                for part in (f"{LOGS}/{point.folder}.log", f"{FAILURES}/{point.folder}.json"):
                    if (self.folder / part).exists():
                        (one.folder / part).parent.mkdir(exist_ok=True)
                        (self.folder / part).replace(one.folder / part)
            mine = {point.folder for point in one.points}
            lent = {point.folder for point in self.each[0].points if point.layout not in one.sweep.layouts}
            for file in (self.folder / ROUNDS).glob("*.parquet"):
                turns = pd.read_parquet(file)
                if turns["launch"].isin(mine).any():
                    (one.folder / ROUNDS).mkdir(exist_ok=True)
                    turns[turns["launch"].isin(mine | lent)].to_parquet(one.folder / ROUNDS / file.name, index=False)


def _announce(name: str, plan: SweepPlan) -> None:
    done = len(plan.points) - len(plan.missing)
    say(f"{name}: {len(plan.points)} launches, {done} done, {len(plan.missing)} to run")
    others = other_code(plan.folder, plan.points[0].code)
    if others:
        say(f"{others} launches of a different code version (an edit or an upgrade since) are kept and do not count")
    if plan.carried:
        say(f"{len(plan.carried)} of them are in the queue already")
    for skipped in plan.skipped:
        say(f"not run: {skipped.layout}: {skipped.reason}")
    if plan.skipped:
        say("the report predicts what is not run, or says why it cannot")
    invalid = [plan.known.records[point.folder] for point in plan.missing if point.folder in plan.known.records]
    if invalid:
        said = f"runs again: {len(invalid)} of them, whose times are not valid"
        say(f"{said}; the first: {invalid[0].invalid[0]}")
    for point in plan.missing:
        if point.folder in plan.known.damaged:
            say(f"runs again: {plan.known.damaged[point.folder]}")


def _say_data(sweeps: Iterable[Sweep], data_dir: Path | None) -> None:
    """Say on which data the `sweeps` train, loudly where synthetic rows stand in for real ones and nobody asked."""
    lines: dict[str, None] = {}
    for workload in dict.fromkeys(sweep.workload for sweep in sweeps):
        source = locate(workload, data_dir)
        unasked = source.kind == "synthetic" and workload.data == "auto" and workload.input != "resident"
        if unasked:
            ways = "DATA_DIR=folder names the real files, DATA_KIND=synthetic hides this line"
            line = f"SYNTHETIC DATA: {source.note}. {ways}."
        else:
            line = f"data: {source.name}, {source.kind}" + (f": {source.note}" if source.note else "")
        lines[line] = None
    for line in lines:
        say(line)


def _prepare(plan: SweepPlan, data_dir: Path | None, *, own_only: bool = False) -> None:
    """Bring the data into the cache before the first launch, not inside it, and try the network.

    With `own_only` that is done with a file or a network of the user's own only, which may be wrong: reading the
    others takes long, and is no reason to refuse.
    """
    shown: set[str] = set()
    tried = bool(plan.known.records) or not plan.groups
    asked = dict.fromkeys((point.workload, point.data_id) for point in plan.missing or plan.points[:1])
    for workload, data_id in asked:
        if own_only and not (workload.data_file or ":" in workload.model):
            continue
        source = locate(workload, data_dir, data_id)
        if source.kind == "script":
            continue
        data = prepare(source).record
        texts = own_file_lines(data) or ((data.note,) if data.note != source.note else ())
        for text in texts:
            if text and text not in shown:
                say(text)
                shown.add(text)
        if not tried:
            notice = check_model(workload, data)
            if notice:
                say(notice)
            tried = True
