"""`harness train`: one launch, as one rank of the MPI world it was started in."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import SharedError, UserError
from harness.cli.options import build_workload, workload_options
from harness.schema.identity import check_source, code_identity
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.workload import batch_mode, is_script

if TYPE_CHECKING:
    from harness.comm.world import World
    from harness.schema.record import EpochRecord


@click.command()
@workload_options
@click.option("--threads", type=int, default=1, show_default=True, help="TensorFlow threads per rank.")
@click.option("--gpus-per-rank", type=click.IntRange(0, 1), default=0, show_default=True, help="1: train on GPUs.")
@click.option("--shares", help="Unequal parts of the rows for unequal devices, such as 2:1:1.")
@click.option("--point", "point_file", type=click.Path(path_type=Path), help="Train this point; a sweep writes it.")
@click.option("--record", type=click.Path(path_type=Path), help="Write the run's record into this new folder.")
def train(point_file: Path | None, record: Path | None, **options: Any) -> None:
    """Train one workload on the ranks of this MPI world.

    Alone it is one rank; `mpirun -n 2 harness train --dataset mnist` trains on two.
    """
    import_begin = _process_start()
    load_before = os.getloadavg()[0]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from harness.comm.world import abort, check_start, start

    world = start()
    check_start(world.size)
    try:
        point = world.on_root(lambda: _point(world.size, point_file, options))
        if is_script(point.workload):
            sys.exit(_run_script(world, point, record))
        _train(world, point, options["data_dir"], record, import_begin, load_before)
    except SharedError as shared:
        if world.rank == 0:
            raise shared.error from shared
        sys.exit(2 if isinstance(shared.error, UserError) else 1)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for this one: end them too
        abort(world, error)


def _run_script(world: "World", point: Point, record: Path | None) -> int:
    from harness.transparent.run import run_point
    from harness.transparent.settings import Settings

    logs = record.parent / "rank-logs" / record.name if record else Path("harness-logs")
    batch = batch_mode(point.workload)
    return run_point(world, Settings(sync=point.workload.sync, batch=batch, logs=logs, record=record), point)


def _train(
    world: "World", point: Point, data_dir: Path | None, record: Path | None, begin: float, load_before: float
) -> None:
    from harness.base.logs import quiet_stderr, without_optional_packages
    from harness.comm.gpus import own_gpu

    gpu = own_gpu(world, point.layout.gpus_per_rank, shared=point.oversubscribe)
    with quiet_stderr(), without_optional_packages():
        from harness.train.devices import start_gpu
        from harness.train.run import configure_tensorflow, train

        start_gpu(gpu)
        configure_tensorflow(point.layout.threads)
    import_s = time.time() - begin
    outcome = train(world, point, data_dir, _progress(world.rank, point.workload.epochs), gpu)
    from harness.train.collect import collect, describe_ranks
    from harness.train.record import write_run

    collected = collect(outcome, import_s=import_s, load_before=load_before)

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
            write_run(record, run, steps)
        click.echo(f"replicas identical: {'yes' if run.weights.identical else 'no'} (sha256 {run.weights.sha256[:16]})")

    world.on_root(finish)


def _point(ranks: int, point_file: Path | None, options: dict[str, Any]) -> Point:
    if point_file:
        from harness.schema.record import read_point

        point = read_point(point_file)
        check_source(point.workload, point.code)
        return point
    from harness import datasets
    from harness.comm.launcher import mpi_version
    from harness.sweep.plan import parse_shares

    workload = build_workload(options)
    source = datasets.locate(workload, options["data_dir"])
    if source.note:
        click.echo(source.note)
    shares = parse_shares(options["shares"]) if options["shares"] else None
    layout = Layout(
        nodes=1, ranks_per_node=ranks, threads=options["threads"], gpus_per_rank=options["gpus_per_rank"], shares=shares
    )
    return Point(workload=workload, layout=layout, data_id=source.data_id, code=code_identity(workload, mpi_version()))


def _progress(rank: int, epochs: int) -> "Any":
    def show(epoch: "EpochRecord") -> None:
        if rank == 0:
            click.echo(_line(epoch, epochs))

    return show


def _line(epoch: "EpochRecord", epochs: int) -> str:
    parts = [f"epoch {epoch.epoch + 1}/{epochs}", f"{max(epoch.seconds):.3f} s"]
    for label, value in (
        ("train loss", epoch.train_loss),
        ("test loss", epoch.test_loss),
        ("accuracy", epoch.test_accuracy),
        ("AUC", epoch.test_auc),
    ):
        if value is not None:
            parts.append(f"{label} {value:.4f}")
    return "  ".join(parts)


def _process_start() -> float:
    import psutil

    return psutil.Process().create_time()  # type: ignore[no-any-return]
