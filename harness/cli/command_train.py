"""``harness train``: one launch, as one rank of its MPI world."""

import functools
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from harness.base import turns
from harness.base.context import Context
from harness.base.cpu_contention import busy_s
from harness.base.errors import SharedError, UserError
from harness.base.processes import process_age_s, quiet_stderr, without_optional_packages
from harness.base.user_path import UserPath
from harness.cli.common_options import GroupedCommand, context_options, defaulted
from harness.cli.training_options import build_workload, workload_options
from harness.schema.code_identity import check_source, code_identity
from harness.schema.record import EpochRecord, read_point
from harness.schema.sweep import AGAIN, Layout, Point
from harness.schema.sweep_folder import LaunchFolder
from harness.schema.workload import batch_mode, is_script, survives
from harness.transparent.run_settings import RunSettings

if TYPE_CHECKING:
    from harness.comm.world import World
    from harness.train.launch_record import TrainingOutcome


@click.command(cls=GroupedCommand)
@workload_options
@context_options("data_dir")
@defaulted("--threads", type=int, default=1, help="TensorFlow threads per rank.")
@defaulted("--gpus-per-rank", type=click.IntRange(0, 1), default=0, help="1: train on GPUs.")
@click.option("--shares", help="Unequal parts of the rows for unequal devices, such as 2:1:1.")
@click.option("--point", "point_file", type=UserPath(), help="Train this point; a sweep writes it.")
@click.option("--record", type=UserPath(), help="Write the run's record into this new folder.")
@defaulted(
    "--hang-timeout",
    type=click.FloatRange(0),
    default=120.0,
    help="Seconds to wait for a rank before the run ends with a report; 0 for ever.",
)
def train(point_file: Path | None, record: Path | None, context: Context, **options: Any) -> None:
    """Train one workload on the ranks of this MPI world.

    Alone it is one rank; `mpirun -n 2 harness train --dataset mnist` trains on two.
    """
    load_before = os.getloadavg()[0]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from harness.comm.world import abort, abort_together, check_start, impatiently, start
    from harness.train.stop_signals import Stopped

    with impatiently(options["hang_timeout"]):
        world = start()
    check_start(world.size)
    turns.join(world.rank, world.size, busy_s)
    point: Point | None = None
    try:
        point = world.on_root(lambda: _point(world.size, point_file, context.data_dir, options))
        if is_script(point.workload):
            from harness.transparent.session import run_point

            workload = point.workload
            settings = RunSettings(
                sync=workload.sync,
                batch=batch_mode(workload),
                hang_timeout=options["hang_timeout"],
                logs=_logs(record),
                record=record,
            )
            sys.exit(run_point(world, settings, point))
        _train(world, point, record, context.data_dir, options["hang_timeout"], load_before)
    except SharedError as shared:
        if point is not None and survives(point.workload):  # MPI_Finalize may wait for ranks that are gone
            abort_together(world, shared)
        if world.rank == 0:
            raise shared.error from shared
        sys.exit(2 if isinstance(shared.error, UserError) else 1)
    except Stopped as stopped:
        if world.rank == 0:
            click.echo(f"harness: {stopped}", err=True)
        sys.exit(AGAIN)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for this one: end them too
        abort(world, error)


def _logs(record: Path | None) -> Path:
    return record.parent / "rank-logs" / record.name if record else Path("harness-logs")


def _train(
    world: "World", point: Point, record: Path | None, data_dir: Path | None, patience_s: float, load_before: float
) -> None:
    from harness.comm.gpus import own_gpu, start_gpu
    from harness.comm.hang import HangWatch

    gpu = own_gpu(world, point.layout.gpus_per_rank, shared=point.oversubscribe)
    with quiet_stderr(), without_optional_packages():
        from harness.train.training import configure_tensorflow, train

        start_gpu(gpu)
        configure_tensorflow(point.layout.threads)
    import_s = process_age_s()
    if survives(point.workload):
        _survive(world, point, record, data_dir, patience_s, (import_s, load_before))
    watch = HangWatch(world, _logs(record) / "hang", patience_s)
    world = replace(world, comm=watch.watched(world.comm))
    show = functools.partial(_progress(point.workload.epochs), world)
    outcome = train(world, point, data_dir, show, gpu, watch, record)
    _finish(world, outcome, record, (import_s, load_before))
    watch.stop()


def _finish(
    world: "World",
    outcome: "TrainingOutcome",
    record: Path | None,
    before: tuple[float, float],
    confirm: Callable[[], None] = lambda: None,
) -> int:
    """Write the record and report; on all ranks together. Return how many ranks failed.

    `confirm` is called before what was collected is written.
    """
    from harness.comm.placement import describe_ranks
    from harness.train.launch_record import collect, write_run

    import_s, load_before = before
    collected = collect(outcome, import_s=import_s, load_before=load_before)
    confirm()

    def finish() -> None:
        assert collected is not None
        run, steps = collected
        for reason in run.invalid:
            click.echo(f"times are not valid: {reason}")
        for line in describe_ranks(run.ranks) if run.invalid else ():
            click.echo(f"  {line}")
        for note in run.notes:
            click.echo(note)
        if record:
            for staging in record.parent.glob(f".{record.name}.*") if run.losses else ():  # by a rank 0 that failed
                shutil.rmtree(staging, ignore_errors=True)
            write_run(record, run, steps)
            LaunchFolder(record).forget_checkpoints()
        click.echo(f"replicas identical: {'yes' if run.weights.identical else 'no'} (sha256 {run.weights.sha256[:16]})")

    world.on_root(finish)
    return len(outcome.losses)


LOST = 4
"""The exit code of a launch that came to its end and wrote its record without some of its ranks."""


def _survive(
    world: "World",
    point: Point,
    record: Path | None,
    data_dir: Path | None,
    patience_s: float,
    before: tuple[float, float],
) -> NoReturn:
    """Train with whoever is left, and end every process at once: MPI_Finalize may wait for those that are gone."""
    from harness.comm.elastic_world import Team
    from harness.train.elastic import Survivor

    layout = point.layout
    folder = _logs(record) / "hang"
    world.on_root(lambda: _check_survival(world, point))
    world.on_root(lambda: shutil.rmtree(folder, ignore_errors=True))  # left by an earlier launch
    team = Team(world.comm, layout.shares or (1,) * layout.ranks, patience_s, folder)
    show = _progress(point.workload.epochs)
    survivor = Survivor(team=team, point=point, data_dir=data_dir, report=show)
    lost = survivor.run(lambda now, outcome: _finish(now, outcome, record, before, team.confirm))
    team.leave()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(LOST if lost else 0)


def _check_survival(world: "World", point: Point) -> None:
    from harness.comm.elastic_world import check_library
    from harness.train.elastic import check_workload

    check_library(str(point.workload.on_failure))
    check_workload(point)
    if world.size != point.layout.ranks:
        raise UserError(
            f"{world.size} MPI ranks were started for a layout of {point.layout.ranks}: start it with "
            f"mpirun -n {point.layout.ranks}"
        )


def _point(ranks: int, point_file: Path | None, data_dir: Path | None, options: dict[str, Any]) -> Point:
    if point_file:
        point = read_point(point_file)
        check_source(point.workload, point.code)
        return point
    from harness import datasets
    from harness.comm.mpi_library import mpi_version
    from harness.sweep.plan import parse_shares

    workload = build_workload(options)
    source = datasets.locate(workload, data_dir)
    if source.note:
        click.echo(source.note)
    if source.name == datasets.FILE:
        for line in datasets.own_file_lines(datasets.prepare(source).record):
            click.echo(line)
    shares = parse_shares(options["shares"]) if options["shares"] else None
    layout = Layout(
        nodes=1, ranks_per_node=ranks, threads=options["threads"], gpus_per_rank=options["gpus_per_rank"], shares=shares
    )
    return Point(workload=workload, layout=layout, data_id=source.data_id, code=code_identity(workload, mpi_version()))


def _progress(epochs: int) -> "Callable[[World, EpochRecord], None]":
    def show(world: "World", epoch: EpochRecord) -> None:
        if world.rank:
            return
        parts = [f"epoch {epoch.epoch + 1}/{epochs}", f"{max(epoch.seconds):.3f} s"]
        for label, value in (
            ("train loss", epoch.train_loss),
            ("test loss", epoch.test_loss),
            ("accuracy", epoch.test_accuracy),
            ("AUC", epoch.test_auc),
        ):
            if value is not None:
                parts.append(f"{label} {value:.4f}")
        click.echo("  ".join(parts))

    return show
