"""One rank: ``mpirun -n P python -m harness.transparent [switches] script.py [arguments]``."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from harness.base.cores import usable_cores
from harness.base.errors import SharedError, UserError
from harness.base.user import settle_home
from harness.schema.code_identity import code_identity
from harness.schema.presets import script_workload
from harness.schema.sweep import Layout, Point
from harness.schema.user_script import SCRIPT
from harness.transparent.install import restart_with_fixed_hashes
from harness.transparent.run_settings import INPUT, RunSettings, run_options
from harness.transparent.witness import WITNESS


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@run_options
@click.option("--threads", type=int, help="TensorFlow threads of this rank [default: the host's cores over its ranks].")
def main(script: Path, arguments: tuple[str, ...], threads: int | None, gpus_per_rank: int, **options: Any) -> None:
    """Run SCRIPT on this rank of the MPI world."""
    try:
        settle_home()
    except UserError as error:
        click.echo(f"harness: {error}", err=True)
        sys.exit(2)
    restart_with_fixed_hashes()
    if script_input := os.environ.get(INPUT):
        os.dup2(os.open(script_input, os.O_RDONLY), 0)
    from harness.base import turns
    from harness.base.cpu_contention import busy_s
    from harness.comm.mpi_library import mpi_version
    from harness.comm.world import impatiently, start_mpi
    from harness.transparent.session import end_together, run_point

    with impatiently(options["hang_timeout"]):
        world = start_mpi()
    turns.join_turns(world.rank, world.size, busy_s)
    host = os.uname().nodename
    own_cores = max(1, usable_cores() // world.comm.allgather(host).count(host)) if threads is None else threads
    try:
        settings = RunSettings(**options)
        workload = script_workload(script, arguments, sync=settings.sync, batch=settings.batch)
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


def start() -> None:
    """Be a rank, or the witness of some."""
    if os.environ.pop(WITNESS, ""):
        from harness.transparent.session import testify

        testify()
    main()


if __name__ == "__main__":
    start()
