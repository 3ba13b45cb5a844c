"""``harness train``: one launch, as one rank of its MPI world."""

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from harness.base import turns
from harness.base.command_context import Context
from harness.base.cpu_contention import busy_s
from harness.base.current_user import UserPath
from harness.base.errors import SharedError
from harness.base.exit_codes import AGAIN
from harness.base.removal import check_new_folder
from harness.cli.common_options import (
    GroupedCommand,
    NumberRange,
    context_options,
    defaulted,
    mpi_option,
    option_group,
    take,
)
from harness.cli.launch_rank import LaunchRank, rank_logs
from harness.cli.terminal import echo
from harness.cli.training_options import WorkloadOptions, build_workload, workload_options
from harness.schema.code_identity import check_source, code_identity
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import read_point
from harness.schema.workload import UserScript, Workload, survives
from harness.transparent.run_settings import RunSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """What the command line of `harness train` asks for; the options' help says what each is."""

    workload: WorkloadOptions
    threads: int
    gpus_per_rank: int
    point_file: Path | None
    record: Path | None
    hang_timeout: float


@click.command(
    name="train",
    cls=GroupedCommand,
    brief=(
        "--dataset",
        "--data",
        "--model",
        "--preset",
        "--optimizer",
        "--learning-rate",
        "--batch-per-rank",
        "--global-batch",
        "--epochs",
        "--samples",
        "--sync",
        "--threads",
        "--record",
    ),
    examples=(
        "harness train --dataset mnist",
        "mpirun -n 2 harness train --dataset mnist --epochs 3",
        "harness train --data file.csv --label income --record my-launch",
    ),
)
@workload_options
@context_options("data_dir")
@defaulted("--threads", type=int, default=1, help="TensorFlow threads per rank.")
@defaulted("--gpus-per-rank", type=click.IntRange(0, 1), default=0, help="1: train on GPUs.")
@click.option("--point", "point_file", type=UserPath(), help="Train this point; a sweep writes it.")
@click.option("--record", type=UserPath(), help="Write the run's record into this new folder.")
@defaulted(
    "--hang-timeout",
    type=NumberRange(0),
    default=120.0,
    help="Seconds to wait for a rank before the run ends with a report; 0 for no limit.",
)
@option_group("options", partial(take, TrainOptions))
@mpi_option
def train_command(options: TrainOptions, context: Context) -> None:
    """Train one workload on the ranks of this MPI world.

    Alone it is one rank; `mpirun -n 2 harness train --dataset mnist` trains on two.
    """
    record = options.record.absolute() if options.record is not None else None  # a script may change its folder
    load_before = os.getloadavg()[0]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from harness.comm.world import abort, abort_together, check_start, impatiently, start_mpi
    from harness.train.stop_signals import Stopped

    with impatiently(options.hang_timeout):
        world = start_mpi()
    check_start(world.size)
    turns.join_turns(world.rank, world.size, busy_s)
    point: Point | None = None
    try:
        if record is not None:
            world.on_root(lambda: check_new_folder(record, "--record"))
        point = world.on_root(lambda: _point(world.size, context.data_dir, options))
        script = point.workload.script
        if script:
            from harness.transparent.script_process import run_point

            sys.exit(run_point(world, _run_settings(point.workload, script, record, options.hang_timeout), point))
        rank = LaunchRank(
            world=world,
            point=point,
            record=record,
            data_dir=context.data_dir,
            patience_s=options.hang_timeout,
            load_before=load_before,
        )
        rank.train()
    except SharedError as shared:
        if point is not None and survives(point.workload):  # MPI_Finalize may wait for ranks that are gone
            abort_together(world, shared)
        if world.rank == 0:
            raise shared.error from shared
        sys.exit(shared.error.exit_code)
    except Stopped as stopped:
        if world.rank == 0:
            echo(f"harness: {stopped}", err=True)
        sys.exit(AGAIN)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for this one: end them too
        abort(world, error)


def _run_settings(workload: Workload, script: UserScript, record: Path | None, hang_timeout: float) -> RunSettings:
    """Return how the script of `workload` is run."""
    return RunSettings(
        sync=workload.sync,
        batch=script.batch,
        hang_timeout=hang_timeout,
        logs=rank_logs(record),
        record=record,
        shared_files=workload.shared_files,
        unjudged=True,  # a sweep compares its launches with those on one rank
    )


def _point(ranks: int, data_dir: Path | None, options: TrainOptions) -> Point:
    if options.point_file:
        point = read_point(options.point_file)
        check_source(point.workload, point.code)
        return point
    from harness import datasets
    from harness.comm.mpi_library import mpi_version

    workload = build_workload(options.workload)
    source = datasets.locate(workload, data_dir)
    if source.note:
        echo(source.note)
    if source.name == datasets.FILE:
        for line in datasets.own_file_lines(datasets.prepare(source).record):
            echo(line)
    layout = Layout(nodes=1, ranks_per_node=ranks, threads=options.threads, gpus_per_rank=options.gpus_per_rank)
    return Point(workload=workload, layout=layout, data_id=source.data_id, code=code_identity(workload, mpi_version()))
