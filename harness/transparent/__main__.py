"""One rank: ``mpirun -n P python -m harness.transparent [switches] script.py [arguments]``."""

import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import UserError
from harness.spec.layout import Layout
from harness.spec.point import Point
from harness.spec.script import script_id, script_workload
from harness.transparent.options import run_options
from harness.transparent.settings import Settings, mpi_enabled

if TYPE_CHECKING:
    from harness.comm.world import World


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@run_options
@click.option("--threads", type=int, help="TensorFlow threads of this rank [default: the host's cores over its ranks].")
def main(script: Path, arguments: tuple[str, ...], threads: int | None, **options: Any) -> None:
    """Run SCRIPT on this rank of the MPI world."""
    from harness.comm.world import abort, start

    world = start()
    try:
        settings = Settings(**options)
        point = Point(
            workload=script_workload(script, arguments, sync=settings.sync, batch=settings.batch),
            layout=Layout(nodes=1, ranks_per_node=world.size, threads=threads or _threads(world)),
            data_id=script_id(script),
        )
    except UserError as error:
        abort(world, error)
    sys.exit(run_point(world, settings, point))


def run_point(world: "World", settings: Settings, point: Point) -> int:
    """Run the script of `point` on this rank and return the exit code."""
    import psutil

    from harness.spec.script import script_command
    from harness.transparent.run import Session, run_rank

    script, arguments = script_command(point.workload)
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.parent)
    if not mpi_enabled() or (world.size == 1 and settings.record is None):
        if world.rank == 0:
            runpy.run_path(str(script), run_name="__main__")
        return 0
    began = psutil.Process().create_time()
    return run_rank(Session(world=world, settings=settings, script=script, point=point, began=began))


def _threads(world: "World") -> int:
    """Return the cores that each rank of this host may have to itself."""
    from harness.comm.cores import usable_cores

    host = os.uname().nodename
    return max(1, usable_cores() // world.comm.allgather(host).count(host))


if __name__ == "__main__":
    main()
