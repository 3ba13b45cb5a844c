"""A process that runs a user's script as one rank, or as the witness: from its arguments to its exit code."""

import contextlib
import runpy
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from harness.base.errors import RunError, SharedError, UserError
from harness.base.processes import process_age_s
from harness.comm.gpu_choice import own_gpu
from harness.comm.world import World, abort, leave
from harness.schema.point import Point
from harness.transparent.install import fuse_alone
from harness.transparent.module_precedence import NAME, has_own
from harness.transparent.patch import ImportHook, offer_old_names, with_script_traceback
from harness.transparent.process_ends import ProcessEnds, end_at_exec
from harness.transparent.run_settings import RunSettings, mpi_enabled
from harness.transparent.session import Session
from harness.transparent.shadowed_modules import give_way
from harness.transparent.witness import Alone
from harness.transparent.witness_process import enter as enter_witness

_ALIKE_S = 3.0  # all ranks fail alike where they get to the end within it


def testify() -> NoReturn:
    """Be the witness that rank 0 of a launch has started; its exit code is nobody's."""
    witness, (settings, point) = enter_witness()
    world = World(comm=Alone(), rank=0, size=1)  # type: ignore[arg-type]
    session = Session(
        world=world, settings=settings, script=_prepare(point), point=point, began=time.monotonic(), witness=witness
    )
    end_at_exec(witness.end)
    session.run()
    sys.exit(0)


def _prepare(point: Point) -> Path:
    """Give the script of `point` its arguments and its folder, as Python does; return it."""
    program = point.workload.script
    assert program is not None
    script = program.path
    sys.argv = [str(script), *program.arguments]
    sys.path[0] = str(script.parent)
    if __name__.partition(".")[0] == NAME and has_own(script.parent):
        raise UserError(f"'{script.parent / NAME}' has the name of this tool: start the script by `harness run`")
    give_way(script.parent)
    return script


def run_point(world: World, settings: RunSettings, point: Point) -> int:
    """Run the script of `point` on this rank and return the exit code."""
    try:
        script = _prepare(point)
    except UserError as error:
        return end_together(world, error)
    gpu = None
    if mpi_enabled():
        if world.rank == 0 and not point.layout.gpus_per_rank and shutil.which("nvidia-smi"):
            print("harness: no rank uses a GPU: --gpus-per-rank 1 (in a sweep GPUS=) gives each one", file=sys.stderr)
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
            runpy.run_path(str(script), run_name="__main__")
        return 0
    began = time.monotonic() - process_age_s()
    return _run_rank(Session(world=world, settings=settings, script=script, point=point, began=began, gpu=gpu))


def _run_rank(session: Session) -> int:
    """Run the script on this rank and return its exit code."""

    def end_run(status: int) -> int:
        return _outcome(session, lambda: session.end_early(status))

    ProcessEnds(session.world, session.script.name, end_run).install()
    return _outcome(session, session.run)


def _outcome(session: Session, action: Callable[[], None]) -> int:
    """Do `action` on this rank and return its exit code; an error on one rank ends all."""
    world = session.world
    try:
        action()
    except SharedError as shared:
        return end_together(session.world, shared.error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks wait for this one: end them too
        reason = error if isinstance(error, (UserError, RunError)) else session.explain(error)
        if isinstance(reason, (UserError, RunError)) and _all_fail(world):
            return end_together(world, reason)
        abort(world, with_script_traceback(reason))
    return 0


def _all_fail(world: World) -> bool:
    """Tell whether all ranks get here within some seconds: in what a script cannot do they fail alike."""
    deadline = time.monotonic() + _ALIKE_S
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
        print(f"harness: {error}", file=sys.stderr, flush=True)
    world.comm.Barrier()  # a rank that ends with an error has mpirun end the others: rank 0 speaks first
    return leave(world, 2 if isinstance(error, UserError) else 1)
