"""A process that runs a user's script as one rank, or as the witness: from its arguments to its exit code."""

import contextlib
import os
import runpy
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from harness.base.current_user import settle_home
from harness.base.errors import RunError, SharedError, UserError
from harness.base.exit_codes import BAD_INPUT
from harness.base.processes import process_age_s
from harness.base.removal import check_new_folder
from harness.base.secret_text import refuse_secrets
from harness.comm.gpus import own_gpu
from harness.comm.world import World, abort, leave
from harness.schema.point import Point
from harness.transparent import private_files
from harness.transparent.install import fuse_alone
from harness.transparent.own_modules import separate_own_modules
from harness.transparent.patch import (
    EXEC,
    ImportHook,
    Refusals,
    Refused,
    is_script,
    offer_old_names,
    put,
    refusing,
    script_place,
    with_script_traceback,
)
from harness.transparent.run_settings import INPUT, RunSettings, excluder_of_witness, mpi_enabled, run_options

if TYPE_CHECKING:
    from harness.transparent.session import Session  # it needs NumPy, whose threads come after the rank's own file tree

# What ends a script's process without Python's own end: `os._exit`, and another program in its place.
#
# MPI takes a process that goes so for one that has failed, and the run would have no end: no comparison of the
# replicas, no record.


class ProcessEnds:
    """Has a script's `os._exit` end the run first, and keeps a rank from being replaced by another program.

    `world` is None where the script runs alone. `end_run` ends the run of this process, whose script asks for an exit
    code, and returns the process's own.
    """

    def __init__(self, world: World | None, script: str, end_run: Callable[[int], int]) -> None:
        self._world = world
        self._script = script
        self._end_run = end_run
        self._process = os.getpid()  # what a script has forked ends as it likes
        self._exit: Callable[[int], NoReturn] = os._exit

    def install(self) -> None:
        """Replace `os._exit`, `os.execv` and `os.execve`; in what is forked from this process they are as before."""
        put(os, "_exit", self._end)
        for name in EXEC:
            put(os, name, refusing(self._guarded(getattr(os, name))))

    def _end(self, status: int) -> None:
        """End this process: its run first, where it is the script that ends it."""
        caller = sys._getframe(1)
        if os.getpid() != self._process or not is_script(caller.f_code.co_filename):
            self._exit(status)
        if self._world is not None and threading.current_thread() is not threading.main_thread():
            abort(
                self._world,
                UserError(
                    f"{self._script} ends its process in a thread (os._exit in {script_place(caller)}), which no other "
                    "rank can wait for: return from the script, or run it with -n 1"
                ),
            )
        code = self._end_run(status)
        end_mpi()
        self._exit(code)

    def _guarded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what replaces the process where no other rank waits for it."""

        def execute(*words: Any) -> Any:
            if os.getpid() != self._process:
                return original(*words)
            if self._world is not None:
                raise UserError(
                    f"{self._script} puts another program in its own place ({_exec_place()}), which is no rank: set "
                    "what it sets for that program before the start, as in `PYTHONHASHSEED=1 harness run`, or run it "
                    "with -n 1"
                )
            end_mpi()
            return original(*words)

        return execute


def _exec_place() -> str:
    """Return where the script asks for another program in its place, in words."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == os.__file__:
        frame = frame.f_back
    return f"os.exec in {script_place(frame)}"


def end_mpi() -> None:
    """End MPI in this process."""
    from mpi4py import MPI

    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()


ALIKE_S = 3.0  # all ranks fail alike where they get to the end within it


def testify() -> NoReturn:
    """Be the witness that rank 0 of a launch has started; its exit code is nobody's."""
    from harness.transparent.session import run_alone

    run_alone(prepare_script)
    sys.exit(0)


def refuse_unjudged(settings: RunSettings, gpus_per_rank: int) -> None:
    """Refuse a run on several ranks that no witness could judge, unless it is asked for.

    Raises:
        UserError: it is not.
    """
    excluder = excluder_of_witness(settings, gpus_per_rank)
    if excluder and not settings.unjudged:
        raise UserError(
            f"with {excluder} nobody compares the training with that of one process: write --unjudged too, or leave "
            f"{excluder} out"
        )


def prepare_script(point: Point) -> Path:
    """Give the script of `point` its arguments and its folder, as Python does; return it."""
    program = point.workload.script
    assert program is not None
    script = program.path
    sys.argv = [str(script), *program.arguments]
    sys.path[0] = str(script.parent)
    separate_own_modules(script.parent)
    return script


def run_point(world: World, settings: RunSettings, point: Point) -> int:
    """Run the script of `point` on this rank and return the exit code."""
    script = prepare_script(point)
    gpu = None
    if mpi_enabled():
        if world.rank == 0 and not point.layout.gpus_per_rank and shutil.which("nvidia-smi"):
            print(
                "harness: no rank uses a GPU: --gpus-per-rank 1 (in a sweep --gpus) gives each one",
                file=sys.stderr,
            )
        try:
            gpu = own_gpu(world, point.layout.gpus_per_rank, shared=point.oversubscribe)
        except SharedError as shared:
            return end_together(world, shared.error)
    if not mpi_enabled() or (world.size == 1 and settings.record is None):
        if world.rank == 0:
            ImportHook(offer_old_names).install()
            if mpi_enabled() and settings.fuse != "off":
                ImportHook(partial(fuse_alone, settings), ["keras"]).install()
            from harness.horovod.aliases import offer
            from harness.horovod.ranks import host

            host.alone = host.answers = True
            offer()
            ProcessEnds(None, script.name, lambda code: code).install()
            try:
                runpy.run_path(str(script), run_name="__main__")
            except Refused as refused:
                error = refused.error
                return end_together(world, error.error if isinstance(error, SharedError) else error)
        return 0
    from harness.transparent.session import Session

    began = time.monotonic() - process_age_s()
    return _run_rank(Session(world=world, settings=settings, script=script, point=point, began=began, gpu=gpu))


def _run_rank(session: "Session") -> int:
    """Run the script on this rank and return its exit code."""

    def end_run(status: int) -> int:
        return run_to_exit_code(session, lambda: session.end_early(status))

    ProcessEnds(session.world, session.script.name, end_run).install()
    return run_to_exit_code(session, session.run)


def run_to_exit_code(session: "Session", action: Callable[[], None]) -> int:
    """Do `action` on this rank and return its exit code; an error on one rank ends all."""
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks wait for this one: end them too
        return _end_with(session, Refusals.first or error)
    return 0


def _end_with(session: "Session", error: BaseException) -> int:
    """End all ranks because of `error`, which the script has ended with on this one, and return the exit code."""
    world = session.world
    if isinstance(error, SharedError):
        return end_together(world, error.error)
    reason = error if isinstance(error, (UserError, RunError)) else session.explain(error)
    if not all_fail(world):
        abort(world, with_script_traceback(reason))
    return end_together(world, with_script_traceback(reason))


def all_fail(world: World) -> bool:
    """Tell whether all ranks get here within some seconds: in what a script does wrong they fail alike."""
    deadline = time.monotonic() + ALIKE_S
    with contextlib.suppress(RuntimeError):  # MPI's: a rank is gone
        barrier = world.comm.Ibarrier()
        while time.monotonic() < deadline:
            if barrier.Test():
                return True
            time.sleep(0.05)
    return False


def end_together(world: World, error: BaseException) -> int:
    """Have rank 0 say why all ranks end and return the exit code."""
    if world.rank == 0:
        if isinstance(error, (UserError, RunError)):
            print(f"harness: {error}", file=sys.stderr, flush=True)
        else:
            traceback.print_exception(error)
            print(f"harness: the script has failed ({type(error).__name__})", file=sys.stderr, flush=True)
    world.comm.Barrier()  # a rank that ends with an error has mpirun end the others: rank 0 speaks first
    return leave(world, 2 if isinstance(error, UserError) else 1)


# The command of one rank: its switches, MPI, and the script.


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@run_options
@click.option("--threads", type=int, help="TensorFlow threads of this rank [default: the host's cores over its ranks].")
def main(
    script: Path,
    arguments: tuple[str, ...],
    threads: int | None,
    gpus_per_rank: int,
    allow_argument: tuple[str, ...],
    **options: Any,
) -> None:
    """Run SCRIPT on this rank of the MPI world."""
    try:
        settle_home()
        if options["record"] is not None:
            refuse_secrets(arguments, allow_argument)
    except UserError as error:
        click.echo(f"harness: {error}", err=True)
        sys.exit(BAD_INPUT)
    if input_file := os.environ.get(INPUT):
        os.dup2(os.open(input_file, os.O_RDONLY), 0)
    if not options["shared_files"]:
        part_files(script, arguments, options["logs"], keeps=options["keep_rank_files"])
    run_in_world(script, arguments, threads, gpus_per_rank, options)


def part_files(script: Path, arguments: Sequence[str], logs: Path, *, keeps: bool) -> None:
    """Give a rank above 0 files of its own; where no variable tells the rank, that is done when MPI has."""
    rank = private_files.rank_by_environment()
    if rank and mpi_enabled() and script.is_file() and not private_files.sees_ranks(script, arguments):
        private_files.enter(script, logs, keep=f"rank-{rank}" if keeps else "")


def run_in_world(
    script: Path, arguments: tuple[str, ...], threads: int | None, gpus_per_rank: int, options: dict[str, Any]
) -> NoReturn:
    """Start MPI, and run the script to its end; this ends the process."""
    from harness.base import turns
    from harness.base.cores import usable_cores
    from harness.base.cpu_contention import busy_s
    from harness.comm.mpi_library import mpi_version
    from harness.comm.world import impatiently, start_mpi
    from harness.schema.code_identity import code_identity
    from harness.schema.layout import Layout
    from harness.schema.point import Point
    from harness.schema.presets import script_workload
    from harness.schema.workload import SCRIPT

    with impatiently(options["hang_timeout"]):
        world = start_mpi()
    turns.join_turns(world.rank, world.size, busy_s)
    host = os.uname().nodename
    own_cores = max(1, usable_cores() // world.comm.allgather(host).count(host)) if threads is None else threads
    try:
        # Paths of what is written are meant now: the script may change its folder.
        places = {name: options[name].absolute() for name in ("logs", "record") if options[name] is not None}
        settings = RunSettings(**options | places)
        if settings.record is not None:
            record = settings.record
            world.on_root(lambda: check_new_folder(record, "--record"))
        if world.size > 1 and mpi_enabled() and not private_files.sees_ranks(script, arguments):
            refuse_unjudged(settings, gpus_per_rank)
        workload = script_workload(
            script, arguments, sync=settings.sync, batch=settings.batch, shared_files=settings.shared_files
        )
        point = Point(
            workload=workload,
            layout=Layout(nodes=1, ranks_per_node=world.size, threads=own_cores, gpus_per_rank=gpus_per_rank),
            data_id=SCRIPT,
            code=world.on_root(lambda: code_identity(workload, mpi_version())),
        )
    except UserError as error:
        sys.exit(end_together(world, error))
    except SharedError as shared:
        sys.exit(end_together(world, shared.error))
    sys.exit(run_point(world, settings, point))
