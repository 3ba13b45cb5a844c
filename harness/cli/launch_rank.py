"""This process as a rank of a launch: train, write the record, say what came of it; with survivors if asked for."""

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.base.exit_codes import LOST
from harness.base.first_epoch import note_first_epoch
from harness.base.processes import process_age_s, quiet_stderr, without_optional_packages
from harness.base.removal import remove_left
from harness.cli.terminal import echo
from harness.schema.point import Point
from harness.schema.record import EpochRecord
from harness.schema.sweep_folder import LaunchFolder
from harness.schema.workload import survives

if TYPE_CHECKING:
    from harness.comm.world import World
    from harness.train.launch_record import TrainingOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRank:
    """A rank of `world` that trains `point` on the data in `data_dir`.

    Rank 0 writes the folder `record`, unless that is None. `patience_s` are the seconds that a rank is waited for,
    `load_before` is the machine's load before the ranks started.
    """

    world: "World"
    point: Point
    record: Path | None
    data_dir: Path | None
    patience_s: float
    load_before: float

    def train(self) -> None:
        """Train and write the record; with `ON_FAILURE` this ends the process."""
        from harness.comm.gpus import own_gpu, start_gpu
        from harness.comm.hang import HangWatch

        gpu = own_gpu(self.world, self.point.layout.gpus_per_rank, shared=self.point.oversubscribe)
        with quiet_stderr(), without_optional_packages():
            from harness.train.training import configure_tensorflow, train

            start_gpu(gpu)
            configure_tensorflow(self.point.layout.threads)
        import_s = process_age_s()
        if survives(self.point.workload):
            self._survive(import_s)
        watch = HangWatch(self.world, self._hang_reports, self.patience_s)
        watched = replace(self.world, comm=watch.watched(self.world.comm))
        show = functools.partial(_show_epoch, self.point.workload.epochs, watched)
        outcome = train(watched, self.point, self.data_dir, show, gpu, watch, self.record)
        self._finish(watched, outcome, import_s)
        watch.stop()

    @property
    def _hang_reports(self) -> Path:
        return rank_logs(self.record) / "hang"

    def _survive(self, import_s: float) -> NoReturn:
        """Train with whoever is left, and end every process at once: MPI_Finalize may wait for those that are gone."""
        from harness.comm.elastic_world import Team
        from harness.comm.hang import remove_reports
        from harness.comm.world import check_world_size
        from harness.train.elastic import Survivor

        folder = self._hang_reports
        check_world_size(self.world, self.point.layout.ranks)
        self.world.on_root(self._check_survival)
        self.world.on_root(lambda: remove_reports(folder))  # left by an earlier launch
        team = Team(self.world.comm, self.patience_s, folder)
        show = functools.partial(_show_epoch, self.point.workload.epochs)
        survivor = Survivor(team=team, point=self.point, data_dir=self.data_dir, report=show)
        lost = survivor.run(lambda world, outcome: self._finish(world, outcome, import_s, team.confirm))
        team.leave()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(LOST if lost else 0)

    def _check_survival(self) -> None:
        from harness.comm.elastic_world import check_library
        from harness.train.elastic import check_workload

        check_library(str(self.point.workload.on_failure))
        check_workload(self.point)

    def _finish(
        self,
        world: "World",
        outcome: "TrainingOutcome",
        import_s: float,
        confirm: Callable[[], None] = lambda: None,
    ) -> int:
        """Write the record and report; on all ranks of `world` together. Return how many ranks failed.

        `confirm` is called before what was collected is written.
        """
        from harness.train.launch_record import collect, write_run

        collected = collect(outcome, import_s=import_s, load_before=self.load_before)
        confirm()

        def write() -> None:
            assert collected is not None
            run, steps = collected
            from harness.comm.placement_check import describe_ranks

            for reason in run.invalid:
                echo(f"times are not valid: {reason}")
            for line in describe_ranks(run.ranks) if run.invalid else ():
                echo(f"  {line}")
            for note in run.notes:
                echo(note)
            if self.record:
                if run.losses:  # a rank 0 that failed may have left some
                    remove_left(self.record.parent, only=self.record.name)
                write_run(self.record, run, steps)
                LaunchFolder(self.record).forget_checkpoints()
            identical = "yes" if run.weights.identical else "no"
            echo(f"replicas identical: {identical} (sha256 {run.weights.sha256[:16]})")

        world.on_root(write)
        return len(outcome.losses)


def rank_logs(record: Path | None) -> Path:
    """Return the folder of what ranks write beside the `record` of their launch."""
    return record.parent / "rank-logs" / record.name if record else Path("harness-logs")


def _show_epoch(epochs: int, world: "World", epoch: EpochRecord) -> None:
    """Print the line of an epoch, on rank 0."""
    if world.rank:
        return
    if epoch.epoch == 0 and epoch.train_loss is not None:
        note_first_epoch(epoch.train_loss)
    parts = [f"epoch {epoch.epoch + 1}/{epochs}", f"{max(epoch.seconds):.3f} s"]
    for label, value in (
        ("train loss", epoch.train_loss),
        ("test loss", epoch.test_loss),
        ("accuracy", epoch.test_accuracy),
        ("AUC", epoch.test_auc),
    ):
        if value is not None:
            parts.append(f"{label} {value:.4f}")
    echo("  ".join(parts))
