"""Several sweeps launched as one: each repeat of all of them in one turn block."""

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.base import removal
from harness.base.command_context import Context
from harness.base.processes import interruptible
from harness.schema.point import Point
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import make_results
from harness.sweep.data_announcement import announce_data
from harness.sweep.finished_launches import Survey, set_aside
from harness.sweep.leftovers import carry_over
from harness.sweep.planned_launches import PlannedLaunches, SweepCommand
from harness.sweep.prepared_data import prepare_data
from harness.sweep.progress import say
from harness.sweep.submission_settings import Submission
from harness.sweep.sweep_lock import hold_sweep

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
    with contextlib.ExitStack() as stack:
        for command in (together, *commands):
            stack.enter_context(hold_sweep(command.files))
        stack.enter_context(interruptible())
        carry_over(together.scheduler, together.files, say)
        stack.callback(together.share_out)  # also of what ended before an interruption
        plan = together.plan(invalid_too=True)
        prepare_data(plan, context.data_dir)
        together.note()
        together.launch(plan, timed=True)
        together.launch(together.once_more(plan), timed=True)
        return len(together.survey(together.points).missing(together.points))


class JoinedSweeps(PlannedLaunches):
    """The launches of several sweeps, which take turns in a folder below `folder`."""

    def __init__(self, commands: Sequence[SweepCommand], folder: Path) -> None:
        self._commands = commands
        first = commands[0]
        self.submission = first.submission
        self.scheduler = first.scheduler
        self.folder = folder / first.sweep.name
        self.name = ", ".join(command.name for command in commands)
        self.skipped = tuple(dict.fromkeys(skipped for command in commands for skipped in command.skipped))
        points = (point for command in commands for point in command.points)
        self.points = tuple(sorted(points, key=lambda point: point.repeat))

    def note(self) -> None:
        """Write down what is asked for, and how it is launched."""
        for command in self._commands:
            command.note()

    def survey(self, points: Iterable[Point]) -> Survey:
        """Share out what has ended, and read what is known of `points`."""
        self.share_out()
        result = Survey(records={}, failures={}, damaged={})
        for command in self._commands:
            part = command.survey(points)
            result.records.update(part.records)
            result.failures.update(part.failures)
            result.damaged.update(part.damaged)
        return result

    def share_out(self) -> None:
        """Move the launches that have ended to their own sweeps' folders, with a copy of their rounds."""
        for command in self._commands:
            for point in command.points:
                self._move_launch(command, point)
            self._copy_turns(command)

    def _move_launch(self, command: SweepCommand, point: Point) -> None:
        shared = self.files
        home = command.files
        launch = shared.launch(point.folder)
        if launch.is_recorded:
            set_aside(home, point)
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

        home = command.files
        members = {point.folder for point in command.points}
        first = self._commands[0]
        lent = {point.folder for point in first.points if point.layout not in command.sweep.layouts}
        for file in self.files.rounds.glob("*.parquet"):
            turns = pd.read_parquet(file)
            if turns["launch"].isin(members).any():
                home.rounds.mkdir(exist_ok=True)
                turns[turns["launch"].isin(members | lent)].to_parquet(home.rounds / file.name, index=False)
