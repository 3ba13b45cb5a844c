"""Run a sweep: take in what has ended, launch what is missing, and keep what is finished whatever happens."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from harness.base import removal
from harness.base.command_context import Context
from harness.base.errors import RunError, UserError
from harness.base.processes import interruptible
from harness.base.record_words import below, shell_line
from harness.base.removal import remove_left
from harness.base.setting_names import setting
from harness.datasets import locate, own_file_lines, prepare
from harness.models import check_model
from harness.schema.option import is_own_code
from harness.schema.point import Point
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import SweepFolder, make_results
from harness.schema.workload import SCRIPT
from harness.sweep.finished_launches import Survey, other_code, set_aside
from harness.sweep.job_cost import NodeHours, ask_accounts
from harness.sweep.job_loop import Launches, LaunchTally
from harness.sweep.job_script import write_job
from harness.sweep.job_submission import JobQueue
from harness.sweep.plan import launch_order
from harness.sweep.planned_launches import SweepCommand, SweepPlan, WantedLaunches
from harness.sweep.progress import display, say
from harness.sweep.submission_settings import Submission, read_submission
from harness.sweep.sweep_files import Running, count_asked, read_running, read_study, write_running
from harness.sweep.sweep_lock import hold_sweep, is_locked
from harness.sweep.warm_python import forked_ranks

# What a command finds that an earlier one has left: launches in a queue or on this machine, and half-written files.


def carry_over(wanted: WantedLaunches) -> tuple[Running, ...]:
    """Return the launches in the folder of the `wanted` ones that go on in the queue: none is submitted twice.

    Launches on this machine are ended instead, and that is said: they would share the cores with what is timed next.

    Raises:
        UserError: they were submitted to another scheduler, or this one does not say whether it has them.
    """
    scheduler = wanted.scheduler
    files = wanted.files
    left = read_running(files)
    if not scheduler.survives_client:
        orphans = scheduler.find([running.name for running in left if running.scheduler == scheduler.name])
        scheduler.cancel(orphans)
        for running in left:
            if running.name in orphans:
                say(f"ended {running.point.folder}, which a killed command of this sweep had left running")
    others = {running.scheduler for running in left} - {scheduler.name}
    if others:
        holder = sorted(others)[0]
        raise UserError(
            f"sweep '{files.name}' has launches in {holder}: give {setting('scheduler', holder)} again to wait for "
            f"them, or end them with `{shell_line(['harness', 'cancel', files.name])}`, then change the scheduler"
        )
    if not scheduler.survives_client:
        write_running(files, ())
        return ()
    launches = JobQueue(scheduler=scheduler, files=files).identify(left, say=say)
    write_running(files, launches)
    return launches


def tidy(files: SweepFolder, going: Sequence[Running]) -> None:
    """Remove what commands and launches had half written when they were killed.

    Launches that are `going` on may be writing theirs.
    """
    at_work = {running.point.folder for running in going}
    unfinished = [path for path in files.checkpoints.glob("*") if path.name not in at_work]
    for path in unfinished:
        launch = files.launch(path.name)
        if launch.is_recorded:  # it was killed when its record was written
            launch.forget_checkpoints()
    for place in (files.path, files.jobs, files.logs, files.failures, *unfinished):
        remove_left(place, keep=at_work)


# The data of a sweep before its launches: brought into the cache, and announced.


def prepare_data(plan: SweepPlan, data_dir: Path | None, *, own_only: bool = False) -> None:
    """Bring the data into the cache before the first launch, not inside it, and try the network.

    With `own_only` that is done with a file or a network of the user's own only, which may be wrong: reading the
    others takes long, and is no reason to refuse.

    Raises:
        UserError: the data or the network is wrong.
    """
    lines: set[str] = set()
    tried = bool(plan.survey.records) or not plan.jobs
    asked = dict.fromkeys((point.workload, point.data_id) for point in plan.missing or plan.wanted.points[:1])
    for workload, data_id in asked:
        if own_only and workload.has_known_data and not is_own_code(workload.model):
            continue
        source = locate(workload, data_dir, data_id)
        if source.kind == SCRIPT:
            continue
        data = prepare(source).record
        texts = own_file_lines(data) or ((data.note,) if data.note != source.note else ())
        for text in texts:
            if text and text not in lines:
                say(text)
                lines.add(text)
        if not tried:
            notice = check_model(workload, data)
            if notice:
                say(notice)
            tried = True


def announce_data(sweeps: Iterable[Sweep], data_dir: Path | None) -> None:
    """Say on which data the `sweeps` train, loudly where synthetic rows stand in for real ones and nobody asked."""
    lines: dict[str, None] = {}
    for workload in dict.fromkeys(sweep.workload for sweep in sweeps):
        source = locate(workload, data_dir)
        unasked = source.kind == "synthetic" and workload.data == "auto" and workload.input != "resident"
        if unasked:
            ways = f"{setting('data_dir', 'FOLDER')} names the real files"
            ways += f", {setting('data_kind', 'synthetic')} hides this line"
            line = f"SYNTHETIC DATA: {source.note}. {ways}."
        else:
            line = f"data: {source.name}, {source.kind}" + (f": {source.note}" if source.note else "")
        lines[line] = None
    for line in lines:
        say(line)


_LOCAL = Submission()

Approve = Callable[[NodeHours], None]


def write_scripts(sweep: Sweep, context: Context, submission: Submission = _LOCAL) -> SweepPlan:
    """Write the study and the scripts of what is missing, launch nothing, and return the plan.

    Raises:
        UserError: no layout can run here, the user's own file or network is wrong, or the results folder cannot be
            written to.
    """
    command = SweepCommand(sweep, context, submission)
    scheduler = command.wanted.scheduler
    files = command.wanted.files
    announce_data([sweep], context.data_dir)
    with hold_sweep(files):
        left = read_running(files)
        queued = tuple(running for running in left if running.scheduler != scheduler.name)
        if scheduler.survives_client:  # what a killed command has left on this machine is not in any queue
            here = tuple(running for running in left if running not in queued)
            queued += JobQueue(scheduler=scheduler, files=files).identify(here)
        plan = _told_plan(command, queued, invalid_too=True)
        prepare_data(plan, context.data_dir, own_only=True)
        # What was launched stays what is asked for: a plan alone must not make it launches of a different code version.
        if not queued and not files.has_records:
            command.note()
        if scheduler.survives_client:
            command.cost(plan)
        for job in plan.jobs:
            write_job(job, scheduler, command.wanted.submission)
    return plan


def run_sweep(
    sweep: Sweep,
    context: Context,
    submission: Submission = _LOCAL,
    *,
    approve: Approve | None = None,
    invalid_too: bool = True,
    enough: Callable[[Path], int] | None = None,
) -> Path:
    """Launch every point of `sweep` that has no valid record, wait for all, and return the sweep's folder.

    What earlier commands left in a queue is taken in or waited for. Without `invalid_too` launches whose times are not
    valid are not made again. On this machine one launch or block runs at a time. Launches that were killed or have no
    valid times run once more at the end. Then `enough` says how many repeats each layout shall have; it is asked again
    until these exist. `approve` may raise when it sees the cost of batch jobs.

    Raises:
        UserError: no layout can run here, the data is wrong, another process runs this sweep, the scheduler
            refuses a job, or the results folder cannot be written to.
        RunError: some launches failed; all the others were run and are kept.
    """
    command = SweepCommand(sweep, context, submission)
    scheduler = command.wanted.scheduler
    files = command.wanted.files
    announce_data([sweep], context.data_dir)
    notice = scheduler.check()
    if notice:
        say(notice)
    with hold_sweep(files), interruptible():
        carried = carry_over(command.wanted)
        tidy(files, carried)
        if carried:
            carried = _take_in(command.wanted, carried)
        plan = _told_plan(command, carried, invalid_too=invalid_too)
        if scheduler.survives_client and plan.jobs:
            cost = command.cost(plan)
            if approve is not None and not scheduler.around:  # the job around it has these nodes already
                approve(cost)
        prepare_data(plan, context.data_dir)
        command.note()  # not before: what is refused is no sweep of missing launches
        with _forking(plan):
            tally = _launch_all(command, plan, timed=invalid_too, enough=enough)
        if scheduler.survives_client:
            command.take_extra_blocks()
            ask_accounts(files, scheduler)
    if tally.failed or tally.not_made or tally.busy:
        raise _unfinished(tally, plan, context.results)
    return files.path


def _told_plan(command: SweepCommand, queued: Sequence[Running], *, invalid_too: bool) -> SweepPlan:
    """Compare what is asked for with what the folder holds and the queue has, and say what is to be done."""
    wanted = command.wanted
    plan = wanted.plan(command.survey(), queued, free_bytes=wanted.free_bytes(), invalid_too=invalid_too)
    _tell(plan)
    return plan


def _tell(plan: SweepPlan) -> None:
    """Say what `plan` does."""
    of_other_code = other_code(plan.wanted.files, plan.survey, plan.wanted.points[0].code)
    for sentence in plan.sentences(of_other_code):
        say(sentence)


def _take_in(wanted: WantedLaunches, carried: tuple[Running, ...]) -> tuple[Running, ...]:
    """Settle those launches in the queue that have ended, and return the others."""
    with display(count_asked(carried)) as progress:
        launches = Launches(SweepPlan(wanted=wanted, carried=carried), progress)
        launches.take_in()
    return launches.going


def _launch(plan: SweepPlan, *, timed: bool) -> LaunchTally:
    """Run the jobs of `plan`, and return what became of them."""
    total = sum(len(set(job.points)) for job in plan.jobs) + count_asked(plan.carried)
    if not plan.jobs and not plan.carried:
        return LaunchTally()
    with display(total) as progress:
        launches = Launches(plan, progress, resubmits=True, timed=timed)
        try:
            return launches.run()
        except KeyboardInterrupt:
            if plan.wanted.scheduler.survives_client and launches.going:
                progress.say(_going_on(launches.going, plan.wanted.folder))
            raise


def _going_on(launches: Sequence[Running], folder: Path) -> str:
    """Return what becomes of the jobs of `launches`, of the sweep in `folder`, when no command waits for them."""
    jobs = sorted({running.job or running.name for running in launches})
    go_on = f"job {jobs[0]} goes on" if len(jobs) == 1 else f"{len(jobs)} jobs go on"
    ends = shell_line(["harness", "cancel", folder.name])
    return f"{go_on}, queued or running: the same command waits for the end again, `{ends}` ends what is left"


@contextlib.contextmanager
def _forking(plan: SweepPlan) -> Iterator[None]:
    """Have the ranks of the blocks of `plan`, and of those that follow it, forked where that is possible."""
    scheduler = plan.wanted.scheduler
    with contextlib.ExitStack() as stack:
        if scheduler.forks_ranks and any(job.in_turns for job in plan.jobs):
            variables = scheduler.environment(plan.jobs[0].layout)
            try:
                scheduler.rank_python = stack.enter_context(forked_ranks(plan.wanted.points, variables))
            except RunError as error:
                say(f"each rank starts a Python of its own: {error}")
        try:
            yield
        finally:
            scheduler.rank_python = ()


def _launch_all(
    command: SweepCommand, plan: SweepPlan, *, timed: bool, enough: Callable[[Path], int] | None
) -> LaunchTally:
    """Launch `plan`; on this machine also once more what has no valid times, and further repeats until it is `enough`.

    Return what became of the last launches.
    """
    wanted = command.wanted
    tally = _launch(plan, timed=timed)
    if wanted.scheduler.survives_client or tally.busy:
        return tally
    again, sentence = plan.once_more(command.survey(), free_bytes=wanted.free_bytes())
    for line in filter(None, (sentence, *again.notes)):
        say(line)
    if again.missing:
        tally = _launch(again, timed=timed)
    while enough is not None and not tally.failed and not tally.busy:
        repeats = enough(wanted.folder)
        if repeats <= command.sweep.repeats:
            break
        wider = command.widen(repeats)
        for note in wider.notes:
            say(note)
        tally = _launch(wider, timed=False)  # the first ones have waited
    return tally


def _unfinished(tally: LaunchTally, plan: SweepPlan, results: Path) -> RunError:
    counts = f"{tally.failed} of {len(plan.missing)} launches failed"
    if tally.not_made:
        failed = f"{counts}, and " if tally.failed else ""
        counts = f"{failed}{tally.not_made} of {len(plan.missing)} launches were not made within the time limit"
    if tally.dropped:
        counts += f", {tally.dropped} were not tried"
    if tally.busy:
        counts = f"{tally.dropped} of {len(plan.missing)} launches were not made: {tally.busy}"
    where = "" if results == Path("results") else f" --results {shell_line([results])}"
    status = shell_line(["harness", "status", plan.wanted.folder.name])
    return RunError(
        f"{counts}, whatever finished is kept: see `{status}{where}`; the same command again runs only what is missing"
    )


def cancel_launches(folder: Path) -> tuple[int, bool]:
    """End the launches of the sweep in `folder` that are queued or running, and keep that they were cancelled.

    Return how many there were, and whether a command that waits for them in another terminal takes them in.

    Raises:
        UserError: nothing of the sweep is queued or running, one of its jobs is another's, or the scheduler is silent.
    """
    files = SweepFolder(folder)
    left = read_running(files)
    if not left:
        raise UserError(f"nothing of sweep '{folder.name}' is queued or running")
    sweep = read_study(files).sweep
    submission = read_submission(files)
    scheduler = submission.open(oversubscribe=sweep.oversubscribe)
    if not scheduler.survives_client:
        raise UserError(f"sweep '{folder.name}' runs on this machine: end its command (Ctrl-C) instead")
    queue = JobQueue(scheduler=scheduler, files=files)
    launches = queue.identify(left, say=None if is_locked(files) else say)
    scheduler.cancel(queue.own_jobs(launches))
    if is_locked(files):
        return count_asked(left), True
    with hold_sweep(files), interruptible():
        carried = queue.identify(read_running(files), say=say)
        wanted = WantedLaunches(
            name=f"sweep {folder.name}",
            folder=folder,
            points=launch_order(sweep, sweep.layouts),
            submission=submission,
            scheduler=scheduler,
        )
        with display(count_asked(carried)) as progress:
            Launches(SweepPlan(wanted=wanted, carried=carried), progress, gives_up=True).run()
        ask_accounts(files, scheduler)
    return count_asked(carried), False


# Several sweeps launched as one: each repeat of all of them in one turn block.

_TOGETHER = "together"  # results/together/<first sweep>/: launches of several sweeps, until they are shared out


def run_together(sweeps: Sequence[Sweep], context: Context, submission: Submission) -> int:
    """Launch on this machine what is missing of `sweeps`, each repeat of all of them in one block, in turns.

    Every launch goes to its own sweep's folder, with the rounds of its block, in which the first sweep's launches stand
    for layouts that its own sweep does not have. What has no valid times runs once more, unless that is most of it.
    Return how many launches are missing still.

    Raises:
        UserError: a layout cannot run here, the data is wrong, or another process runs one of the sweeps.
    """
    commands = [SweepCommand(sweep, context, submission) for sweep in sweeps]
    together = JoinedSweeps(commands, context.results / _TOGETHER)
    announce_data(sweeps, context.data_dir)
    make_results(context.results)
    wanted = together.wanted
    with contextlib.ExitStack() as stack:
        for files in (together.wanted.files, *(command.wanted.files for command in commands)):
            stack.enter_context(hold_sweep(files))
        stack.enter_context(interruptible())
        carry_over(wanted)
        stack.callback(together.share_out)  # also of what ended before an interruption
        plan = wanted.plan(together.survey(), free_bytes=wanted.free_bytes())
        _tell(plan)
        prepare_data(plan, context.data_dir)
        for command in commands:
            command.note()
        with _forking(plan):
            _launch(plan, timed=True)
            again, sentence = plan.once_more(together.survey(), free_bytes=wanted.free_bytes())
            for line in filter(None, (sentence, *again.notes)):
                say(line)
            _launch(again, timed=True)
        return len(together.survey().missing(wanted.points))


class JoinedSweeps:
    """The launches of several sweeps, which take turns in a folder below `folder`."""

    def __init__(self, commands: Sequence[SweepCommand], folder: Path) -> None:
        self._commands = commands
        first = commands[0]
        parts = [command.wanted for command in commands]
        points = (point for part in parts for point in part.points)
        self.wanted = WantedLaunches(
            name=", ".join(part.name for part in parts),
            folder=below(folder, first.sweep.name),
            points=tuple(sorted(points, key=lambda point: point.repeat)),
            skipped=tuple(dict.fromkeys(skipped for part in parts for skipped in part.skipped)),
            submission=parts[0].submission,
            scheduler=parts[0].scheduler,
        )

    def survey(self) -> Survey:
        """Share out what has ended, and read what is known of all launches."""
        self.share_out()
        surveyed = Survey()
        for command in self._commands:
            part = command.survey()
            surveyed.records.update(part.records)
            surveyed.failures.update(part.failures)
            surveyed.damaged.update(part.damaged)
        return surveyed

    def share_out(self) -> None:
        """Move the launches that have ended to their own sweeps' folders, with a copy of their rounds."""
        for command in self._commands:
            for point in command.wanted.points:
                self._move_launch(command, point)
            self._copy_turns(command)

    def _move_launch(self, command: SweepCommand, point: Point) -> None:
        shared = self.wanted.files
        home = command.wanted.files
        launch = shared.launch(point.folder)
        if launch.is_recorded:
            set_aside(home, point.folder)
            removal.remove_empty_folder(home.launch(point.folder).path)
            removal.move(launch.path, home.launch(point.folder).path)
        for source, target in (
            (shared.log(point.folder), home.log(point.folder)),
            (shared.failure(point.folder), home.failure(point.folder)),
        ):
            if source.exists():
                target.parent.mkdir(exist_ok=True)
                removal.replace_file(source, target, "output file")

    def _copy_turns(self, command: SweepCommand) -> None:
        """Copy the turns of blocks with launches of `command`, with those of the first sweep that it does not have."""
        import pandas as pd

        home = command.wanted.files
        members = {point.folder for point in command.wanted.points}
        first = self._commands[0]
        lent = {point.folder for point in first.wanted.points if point.layout not in command.sweep.layouts}
        for file in self.wanted.files.rounds.glob("*.parquet"):
            turns = pd.read_parquet(file)
            if turns["launch"].isin(members).any():
                home.rounds.mkdir(exist_ok=True)
                turns[turns["launch"].isin(members | lent)].to_parquet(home.rounds / file.name, index=False)
