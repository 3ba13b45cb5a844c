"""`harness train`: one launch, as one rank of its MPI world; `harness run`: a script of yours, unmodified, on many."""

import contextlib
import functools
import os
import shutil
import signal
import stat
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from harness.base import turns
from harness.base.cores import usable_cores
from harness.base.cpu_contention import busy_s
from harness.base.errors import SharedError, UserError
from harness.base.hostlock import HostLock
from harness.base.processes import interruptible, process_age_s, quiet_stderr, thread_limits, without_optional_packages
from harness.base.scratch import SCRATCH, Scratch
from harness.base.user_path import UserPath
from harness.cli.common import GroupedCommand, answering, check_mpi, check_secrets, defaulted
from harness.cli.options import build_workload, workload_options
from harness.comm.world import LEFT
from harness.report.answer import Answer, Banner, Table
from harness.schema.code_identity import check_source, code_identity
from harness.schema.record import EpochRecord, read_point, read_run
from harness.schema.sweep import AGAIN, Layout, Point
from harness.schema.sweep_folder import LaunchFolder
from harness.schema.workload import batch_mode, is_script, survives
from harness.transparent.run_settings import INPUT, RunSettings, mpi_enabled, run_options

if TYPE_CHECKING:
    from harness.comm.world import World
    from harness.train.launch_record import TrainingOutcome

_GRACE_S = 10.0  # for mpirun to end its ranks


@click.command(cls=GroupedCommand)
@workload_options
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
def train(point_file: Path | None, record: Path | None, **options: Any) -> None:
    """Train one workload on the ranks of this MPI world.

    Alone it is one rank; `mpirun -n 2 harness train --dataset mnist` trains on two.
    """
    load_before = os.getloadavg()[0]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from harness.comm.world import abort, abort_together, check_start, impatiently, start
    from harness.train.checkpoint_file import Stopped

    with impatiently(options["hang_timeout"]):
        world = start()
    check_start(world.size)
    turns.join(world.rank, world.size, busy_s)
    point: Point | None = None
    try:
        point = world.on_root(lambda: _point(world.size, point_file, options))
        if is_script(point.workload):
            from harness.transparent.session import run_point

            own, patience_s = point.workload, options["hang_timeout"]
            settings = RunSettings(
                sync=own.sync, batch=batch_mode(own), hang_timeout=patience_s, logs=_logs(record), record=record
            )
            sys.exit(run_point(world, settings, point))
        _train(world, point, record, options, load_before)
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


def _train(world: "World", point: Point, record: Path | None, options: dict[str, Any], load_before: float) -> None:
    from harness.comm.gpus import own_gpu, start_gpu
    from harness.comm.hang import HangWatch

    gpu = own_gpu(world, point.layout.gpus_per_rank, shared=point.oversubscribe)
    with quiet_stderr(), without_optional_packages():
        from harness.train.training import configure_tensorflow, train

        start_gpu(gpu)
        configure_tensorflow(point.layout.threads)
    import_s = process_age_s()
    if survives(point.workload):
        _survive(world, point, record, options, (import_s, load_before))
    watch = HangWatch(world, _logs(record) / "hang", options["hang_timeout"])
    world = replace(world, comm=watch.watched(world.comm))
    show = functools.partial(_progress(point.workload.epochs), world)
    outcome = train(world, point, options["data_dir"], show, gpu, watch, record)
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
            for left in record.parent.glob(f".{record.name}.*") if run.losses else ():  # by a rank 0 that failed
                shutil.rmtree(left, ignore_errors=True)
            write_run(record, run, steps)
            LaunchFolder(record).forget_checkpoints()
        click.echo(f"replicas identical: {'yes' if run.weights.identical else 'no'} (sha256 {run.weights.sha256[:16]})")

    world.on_root(finish)
    return len(outcome.losses)


LOST = 4
"""The exit code of a launch that came to its end and wrote its record without some of its ranks."""


def _survive(
    world: "World", point: Point, record: Path | None, options: dict[str, Any], before: tuple[float, float]
) -> NoReturn:
    """Train with whoever is left, and end every process at once: MPI_Finalize may wait for those that are gone."""
    from harness.comm.elastic_world import Team
    from harness.train.elastic import Survivor

    layout = point.layout
    folder = _logs(record) / "hang"
    world.on_root(lambda: _check_survival(world, point))
    world.on_root(lambda: shutil.rmtree(folder, ignore_errors=True))  # left by an earlier launch
    team = Team(world.comm, layout.shares or (1,) * layout.ranks, options["hang_timeout"], folder)
    show = _progress(point.workload.epochs)
    survivor = Survivor(team=team, point=point, data_dir=options["data_dir"], report=show)
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


def _point(ranks: int, point_file: Path | None, options: dict[str, Any]) -> Point:
    if point_file:
        point = read_point(point_file)
        check_source(point.workload, point.code)
        return point
    from harness import datasets
    from harness.comm.mpi_library import mpi_version
    from harness.sweep.plan import parse_shares

    workload = build_workload(options)
    source = datasets.locate(workload, options["data_dir"])
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


@click.command(name="run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--ranks", type=int, help="MPI ranks [default: the machine's cores, or GPUs].")
@defaulted("--threads", type=int, default=1, help="Cores, and TensorFlow threads, of a rank.")
@run_options
@answering
def run(
    ranks: int | None, threads: int, gpus_per_rank: int, script: Path, arguments: tuple[str, ...], **options: Any
) -> Answer:
    """Run SCRIPT, which is not edited and imports nothing of ours, on several ranks that train one model.

    Batches are divided over the ranks, gradients averaged, files and output are rank 0's. Under a batch scheduler
    the same is `mpirun -n P python -m harness.transparent SCRIPT`. `horovodrun -np P python SCRIPT` of a script written
    for Horovod is `harness run -n P SCRIPT`: it divides its rows itself.
    """
    RunSettings(**options)
    if not script.is_file():
        raise UserError(f"script '{script}' is not there: give the path of a Python file")
    check_mpi()
    from harness.comm.gpus import visible_gpus
    from harness.sweep.allocation import cores_here, current_allocation, other_nodes
    from harness.sweep.job_state import State
    from harness.sweep.launch_command import can_survive, tolerant
    from harness.sweep.schedulers import open_scheduler

    allocation = current_allocation()
    devices = len(visible_gpus()) if gpus_per_rank else cores_here(allocation) // max(1, threads)
    count = ranks if ranks is not None else max(1, devices)
    layout = Layout(nodes=count if mpi_enabled() else 1, threads=threads)
    if notice := other_nodes(allocation, layout, script):
        click.echo(f"harness: {notice}", err=True)
    if layout.cores > usable_cores():
        click.echo(
            f"harness: {layout.cores} cores are asked for, {usable_cores()} are there: it works, but slowly", err=True
        )
    scheduler = open_scheduler("local", oversubscribe=True)
    given = {"threads": threads, "gpus_per_rank": gpus_per_rank, **options}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
    launcher = scheduler.launcher(layout)
    text = script.read_bytes()
    if b"horovod" in text and b"elastic" in text and can_survive(launcher):  # Horovod's words for ranks that outlive
        launcher = tolerant(launcher)
    command = [
        *launcher.words,
        sys.executable,
        "-m",
        "harness.transparent",
        *words,
        str(script),
        *arguments,
    ]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}
    with contextlib.ExitStack() as stack:
        handles: tuple[int, ...] = ()
        if options["record"] is not None:  # its times count: no sweep's or probe's launch beside it
            check_secrets(arguments)
            lock = HostLock().held(f"'{script}'", lambda text: click.echo(f"harness: {text}", err=True))
            handles = stack.enter_context(lock)
        begin = time.monotonic()
        environment = {**scheduler.environment(layout), **thread_limits(threads), **quiet, INPUT: _input()}
        code = _run_ranks(command, environment, output=_output(), handles=handles)
    why = f" (a rank was {scheduler.explain(State(phase='ended', exit_code=code))})" if code > 128 else ""
    return _answer(script, layout.ranks, time.monotonic() - begin, code, options["record"], why)


def _answer(script: Path, ranks: int, wall_s: float, code: int, record: Path | None, why: str) -> Answer:
    """Return what is known of the run: its time, and its epochs where it left a `record`."""
    from harness.analysis import numbers

    ended = "ended well" if code == 0 else f"ended with exit code {code}{why}"
    sentence = f"{script.name} on {numbers.ranks(ranks)} {ended} after {numbers.seconds(wall_s)}"
    data: dict[str, object] = {"script": script, "ranks": ranks, "seconds": wall_s, "exit_code": code}
    if code or record is None or not LaunchFolder(record).is_recorded:
        return Answer(sentence=f"{sentence}.", data=data, code=code)
    found = read_run(record)
    times = [max(epoch.seconds) for epoch in found.epochs]
    sentence += f", {numbers.seconds(statistics.median(times))} an epoch; a single launch has no interval: "
    return Answer(
        banners=[Banner(kind="warning", text=f"Its times are not valid: {reason}.") for reason in found.invalid],
        sentence=f"{sentence}`harness sweep --script {script} --repeats 6` measures one.",
        table=Table(
            title="",
            headings=("Epoch", "Time", "Training loss", "Test accuracy"),
            rows=[
                (
                    str(one.epoch + 1),
                    numbers.seconds(took),
                    *map(numbers.significant, (one.train_loss, one.test_accuracy)),
                )
                for one, took in zip(found.epochs, times, strict=True)
            ],
        ),
        data=data | {"record": record, "invalid": found.invalid, "epochs": found.epochs},
    )


def _input() -> str:
    """Return what every rank reads as its standard input: the file that is ours, else nothing.

    What mpirun would pass on of a file or pipe reaches rank 0 alone and never ends.
    """
    with contextlib.suppress(OSError):  # closed
        if stat.S_ISREG(os.fstat(0).st_mode):
            return f"/proc/{os.getpid()}/fd/0"
    return os.devnull


def _output() -> int | None:
    """Return where the script's output goes if not to standard output: there, JSON or nothing else may be."""
    try:
        return sys.stdout.fileno()
    except OSError:  # no file: a test's
        return None


def _run_ranks(
    command: Sequence[str], environment: Mapping[str, str | None], *, output: int | None, handles: Sequence[int]
) -> int:
    """Run `command` (mpirun and all) and return its exit code; a variable of None is unset.

    The ranks inherit standard error, and standard output unless they are to write to the descriptor `output`; mpirun
    inherits the open files `handles`. Where all ranks know with which code they end, it is in a file and mpirun's is 0.
    Ctrl-C, SIGTERM and a closed terminal end all of them.
    """
    changed = {**os.environ, **environment}
    variables = {name: value for name, value in changed.items() if value is not None}
    with interruptible():
        scratch = Scratch()
        left = {LEFT: f"{scratch.variables[SCRATCH]}/left"} if scratch.variables else {}
        child = subprocess.Popen(
            command,
            env=variables | scratch.variables | left,
            stdin=subprocess.DEVNULL,
            stdout=output,
            pass_fds=(*handles, *scratch.handles),
        )
        try:
            code = child.wait()
            if code == 0 and left and Path(left[LEFT]).exists():
                code = int(Path(left[LEFT]).read_text())
        except KeyboardInterrupt:
            child.send_signal(signal.SIGTERM)  # mpirun ends its ranks
            try:
                child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            raise
        finally:
            scratch.close()
    return code if code >= 0 else 128 - code
