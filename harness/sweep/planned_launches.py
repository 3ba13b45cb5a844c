"""What one command has to do with a sweep: what it asks for, what is missing of it, and the launches of that."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.base.command_context import Context
from harness.base.cores import memory_limit
from harness.base.errors import UserError
from harness.base.record_words import below
from harness.base.setting_names import setting
from harness.comm.mpi_library import mpi_version
from harness.schema.code_identity import code_identity
from harness.schema.point import Point
from harness.schema.sweep import Skipped, Sweep
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.finished_launches import Survey, survey
from harness.sweep.job_cost import NodeHours, estimate, past_launches, remarks, warn_of_nodes
from harness.sweep.job_plan import Job, TurnMemory, plan_allocations, plan_jobs, plan_turn_blocks
from harness.sweep.plan import launch_order, split_runnable
from harness.sweep.progress import say
from harness.sweep.schedulers import Scheduler
from harness.sweep.submission_settings import Submission, write_submission
from harness.sweep.sweep_files import Running, count_asked, write_study

_SIGNAL = 128  # and its number: the exit code of what a signal has ended
_RANK_BYTES = 2**30  # of a rank that was never seen: TensorFlow, a small network, its rows


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedLaunches:
    """Points in launch order, with the folder and the scheduler of their launches; `name` is what people are told."""

    name: str
    folder: Path
    points: tuple[Point, ...]
    skipped: tuple[Skipped, ...] = ()
    submission: Submission
    scheduler: Scheduler

    @property
    def files(self) -> SweepFolder:
        """The files of these launches, and of whatever is launched with them."""
        return SweepFolder(self.folder)

    def plan(
        self, surveyed: Survey, carried: Sequence[Running] = (), *, free_bytes: float, invalid_too: bool = True
    ) -> "SweepPlan":
        """Return what is to be done, by what is `surveyed` of the points and by the launches in the queue.

        Pure: nothing is read, asked, printed or written. `free_bytes` is the memory for the launches of a turn block.
        """
        missing = surveyed.missing(self.points, invalid_too=invalid_too)
        queued = {running.point.folder for running in carried}
        to_submit = [point for point in missing if point.folder not in queued]
        jobs, notes = self.jobs(to_submit, surveyed, free_bytes, queued)
        return SweepPlan(wanted=self, missing=missing, survey=surveyed, jobs=jobs, carried=tuple(carried), notes=notes)

    def jobs(
        self, missing: Sequence[Point], surveyed: Survey, free_bytes: float, queued: Collection[str] = ()
    ) -> tuple[tuple[Job, ...], tuple[str, ...]]:
        """Return the jobs for the `missing` points, and what memory does not allow of turn blocks. Pure as `plan`."""
        mode = self.submission.request.mode
        if mode != "turns":
            return plan_jobs(missing, mode or "jobs", self.folder), ()
        peaks = (launch.rank_bytes for launch in surveyed.records.values())
        memory = TurnMemory(
            rank_bytes=max(peaks, default=_RANK_BYTES), free=free_bytes, nodes=self.scheduler.survives_client
        )
        if not self.scheduler.survives_client:
            return plan_turn_blocks(missing, self.points, memory, self.folder)
        return plan_allocations(
            missing,
            self.points,
            memory,
            self.folder,
            allocations=self.submission.request.allocations,
            most_blocks=self.submission.most_blocks,
            queued=queued,
        )

    def free_bytes(self) -> float:
        """Read the memory for the launches of a turn block: of this machine, or of a node where that is surveyed.

        It is infinite where no launches take turns.
        """
        if self.submission.request.mode != "turns":
            return math.inf
        if not self.scheduler.survives_client:
            return memory_limit()
        limit = self.scheduler.limit()
        return limit.memory_mb * 2**20 if limit and limit.memory_mb else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """What a command will do: of the `wanted` points those that are missing, by what a survey says of all.

    `jobs` are those of the missing points that are not in the queue already; those are `carried`. `notes` say what the
    memory does not allow of turn blocks. Its methods are pure.
    """

    wanted: WantedLaunches
    survey: Survey = field(default_factory=Survey)
    missing: tuple[Point, ...] = ()
    jobs: tuple[Job, ...] = ()
    carried: tuple[Running, ...] = ()
    notes: tuple[str, ...] = ()

    def sentences(self, of_other_code: int) -> list[str]:
        """Return what the plan does: what is done, what runs and runs again, and what does not run.

        `of_other_code` launches of a different code version lie in the folder.
        """
        wanted = self.wanted
        done = len(wanted.points) - len(self.missing)
        sentences = [*self.notes]
        sentences.append(f"{wanted.name}: {len(wanted.points)} launches, {done} done, {len(self.missing)} to run")
        if of_other_code:
            sentences.append(
                f"{of_other_code} launches of a different code version (an edit or an upgrade since) are kept and do "
                "not count"
            )
        if self.carried:
            sentences.append(f"{count_asked(self.carried)} of them are in the queue already")
        sentences += [f"not run: {skipped.layout}: {skipped.reason}" for skipped in wanted.skipped]
        if wanted.skipped:
            sentences.append("the report predicts what is not run, or says why it cannot")
        records = self.survey.records
        invalid = [records[point.folder] for point in self.missing if point.folder in records]
        if invalid:
            text = f"runs again: {len(invalid)} of them, whose times are not valid"
            sentences.append(f"{text}; the first: {invalid[0].invalid[0]}")
        for point in self.missing:
            if point.folder in self.survey.damaged:
                sentences.append(f"runs again: {self.survey.damaged[point.folder]}")
        return sentences

    def once_more(self, surveyed: Survey, *, free_bytes: float) -> tuple["SweepPlan", str]:
        """Return the plan of what this one launched without valid times or was killed from outside, and a sentence.

        Of nothing where that was most of the sweep, or a launch failed by itself. It is `surveyed` after the launches.
        """
        missing = surveyed.missing(self.missing)
        codes = [surveyed.failures[point.folder].exit_code for point in missing if point.folder in surveyed.failures]
        if any(code <= _SIGNAL for code in codes):
            missing = ()
        sentence = ""
        if missing:
            cause = "killed or without valid times" if codes else "without valid times"
            sentence = f"{cause}: {len(missing)} of {len(self.missing)} launches"
            if len(missing) > max(1, len(self.wanted.points) / 2):  # the machine is busy, and will be
                sentence += "; that is most of the sweep, so none runs again: repeat the command on a quiet machine"
                missing = ()
            else:
                sentence += ", launched once more"
        jobs, notes = self.wanted.jobs(missing, surveyed, free_bytes)
        return replace(self, missing=missing, survey=surveyed, jobs=jobs, carried=(), notes=notes), sentence


def current(sweep: Sweep) -> Sweep:
    """Return `sweep` of the code as it is now, so that no launch of a different code version counts as done.

    Raises:
        UserError: a file of the user's code cannot be read.
    """
    return replace(sweep, code=code_identity(sweep.workload, mpi_version()))


class SweepCommand:
    """What one command has to do with one sweep: that of the code as it is now, and the layouts that can run.

    Raises:
        UserError: no layout can run here, or the scheduler does not know what is asked of it.
    """

    def __init__(self, sweep: Sweep, context: Context, submission: Submission) -> None:
        self.sweep = current(sweep)
        submission = replace(submission, data_dir=str(context.data_dir.resolve()) if context.data_dir else None)
        scheduler = submission.open(oversubscribe=sweep.oversubscribe)
        self.runnable, skipped = split_runnable(sweep.layouts, scheduler.refusal)
        if not self.runnable:
            fix = "ask for fewer NODES, RANKS_PER_NODE or THREADS"
            if not scheduler.survives_client:
                fix += f", or set {setting('oversubscribe', True)} to run for function only"
            raise UserError(f"no layout can run: {skipped[0].layout}: {skipped[0].reason}; {fix}")
        self.wanted = WantedLaunches(
            name=f"sweep {self.sweep.name}",
            folder=below(context.results, self.sweep.name),
            points=launch_order(self.sweep, self.runnable),
            skipped=skipped,
            submission=submission,
            scheduler=scheduler,
        )

    def note(self) -> None:
        """Write down what is asked for, and how it is launched."""
        write_study(self.wanted.files, self.sweep, self.wanted.skipped)
        write_submission(self.wanted.files, self.wanted.submission)

    def survey(self) -> Survey:
        """Read what is known of the sweep's launches."""
        return survey(self.wanted.files, self.wanted.points)

    def cost(self, plan: SweepPlan) -> NodeHours:
        """Return what the plan's jobs may cost, having said it, and by which MPI and on which cores they run."""
        request = self.wanted.submission.request
        scheduler = self.wanted.scheduler
        limit = scheduler.limit()
        site = self.wanted.submission.site
        for remark in remarks(self.runnable, request, limit, site, inside=bool(scheduler.around)):
            say(remark)
        unusable = scheduler.unusable_nodes() if limit is not None else ()
        if warning := warn_of_nodes(self.runnable, limit, unusable):
            say(warning)
        past = past_launches(self.wanted.files, request.partition)
        cost = estimate(plan.jobs, request, limit, plan.survey.durations(), past)
        say(str(cost))
        return cost

    def take_extra_blocks(self) -> None:
        """Count the whole blocks that a job has made beyond those that it was asked for: the sweep has so many."""
        most = max(self.sweep.repeats, self.wanted.submission.most_blocks)
        points = launch_order(replace(self.sweep, repeats=most), self.runnable)
        records = survey(self.wanted.files, points).records
        missing = {point.repeat for point in points if point.folder not in records}
        whole_blocks = min(missing, default=most)
        if whole_blocks > self.sweep.repeats:
            self._set_repeats(whole_blocks)

    def widen(self, repeats: int) -> SweepPlan:
        """Return the plan of what is missing of `repeats` repeats, which the sweep has from now on."""
        self._set_repeats(repeats)
        return self.wanted.plan(self.survey(), free_bytes=self.wanted.free_bytes(), invalid_too=False)

    def _set_repeats(self, repeats: int) -> None:
        self.sweep = replace(self.sweep, repeats=repeats)
        self.wanted = replace(self.wanted, points=launch_order(self.sweep, self.runnable))
        self.note()
