"""Several sweeps launched as one: each repeat of all of them in one turn block."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from harness.base import removal
from harness.base.command_context import Context
from harness.base.processes import interruptible
from harness.base.record_words import below
from harness.schema.point import Point
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import SweepFolder, make_results
from harness.sweep.data_announcement import announce_data
from harness.sweep.finished_launches import Survey, set_aside
from harness.sweep.leftovers import carry_over
from harness.sweep.planned_launches import SweepCommand, WantedLaunches
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
    wanted = together.wanted
    with contextlib.ExitStack() as stack:
        for files in (together.files, *(command.files for command in commands)):
            stack.enter_context(hold_sweep(files))
        stack.enter_context(interruptible())
        carry_over(wanted.scheduler, together.files, say)
        stack.callback(together.share_out)  # also of what ended before an interruption
        plan = wanted.plan(together.survey())
        for sentence in wanted.describe(plan):
            say(sentence)
        prepare_data(plan, context.data_dir)
        for command in commands:
            command.note()
        wanted.launch(plan, timed=True)
        again, sentence = wanted.once_more(plan, together.survey())
        for line in filter(None, (sentence, *again.notes)):
            say(line)
        wanted.launch(again, timed=True)
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
            submission=first.submission,
            scheduler=first.scheduler,
        )

    @property
    def files(self) -> SweepFolder:
        """The files that the sweeps share while they are launched."""
        return SweepFolder(self.wanted.folder)

    def survey(self) -> Survey:
        """Share out what has ended, and read what is known of all launches."""
        self.share_out()
        surveyed = Survey(records={}, failures={}, damaged={})
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
        members = {point.folder for point in command.wanted.points}
        first = self._commands[0]
        lent = {point.folder for point in first.wanted.points if point.layout not in command.sweep.layouts}
        for file in self.files.rounds.glob("*.parquet"):
            turns = pd.read_parquet(file)
            if turns["launch"].isin(members).any():
                home.rounds.mkdir(exist_ok=True)
                turns[turns["launch"].isin(members | lent)].to_parquet(home.rounds / file.name, index=False)
