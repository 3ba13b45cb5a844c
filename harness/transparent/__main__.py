"""One rank: ``mpirun -n P python -m harness.transparent [switches] script.py [arguments]``."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import SharedError, UserError
from harness.schema.identity import code_identity
from harness.schema.layout import Layout
from harness.schema.presets import script_workload
from harness.schema.sweep import Point
from harness.schema.workload import DATASET
from harness.transparent.install import same_hashes
from harness.transparent.settings import RunSettings, run_options

if TYPE_CHECKING:
    from harness.comm.world import World


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@run_options
@click.option("--threads", type=int, help="TensorFlow threads of this rank [default: the host's cores over its ranks].")
def main(script: Path, arguments: tuple[str, ...], threads: int | None, gpus_per_rank: int, **options: Any) -> None:
    """Run SCRIPT on this rank of the MPI world."""
    same_hashes()
    from harness.comm.launcher import mpi_version
    from harness.comm.world import abort, start
    from harness.transparent.run import run_point

    world = start()
    try:
        settings = RunSettings(**options)
        workload = script_workload(script, arguments, sync=settings.sync, batch=settings.batch)
        point = Point(
            workload=workload,
            layout=Layout(
                nodes=1, ranks_per_node=world.size, threads=threads or _threads(world), gpus_per_rank=gpus_per_rank
            ),
            data_id=DATASET,
            code=world.on_root(lambda: code_identity(workload, mpi_version())),
        )
    except UserError as error:
        abort(world, error)
    except SharedError as shared:
        abort(world, shared.error)
    sys.exit(run_point(world, settings, point))


def _threads(world: "World") -> int:
    """Return the cores that each rank of this host may have to itself."""
    from harness.base.cores import usable_cores

    host = os.uname().nodename
    return max(1, usable_cores() // world.comm.allgather(host).count(host))


if __name__ == "__main__":
    main()
