"""The command of one rank: its switches, MPI, and the script."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from harness.base.current_user import settle_home
from harness.base.errors import SharedError, UserError
from harness.base.exit_codes import BAD_INPUT
from harness.base.removal import check_folder
from harness.base.secret_text import refuse_secrets
from harness.transparent import file_mechanism
from harness.transparent.run_settings import INPUT, RunSettings, mpi_enabled, run_options


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
        _part_files(script, arguments, options["logs"], keeps=options["keep_rank_files"])
    _run(script, arguments, threads, gpus_per_rank, options)


def _part_files(script: Path, arguments: Sequence[str], logs: Path, *, keeps: bool) -> None:
    """Give a rank above 0 files of its own; where no variable tells the rank, that is done when MPI has."""
    rank = file_mechanism.rank_by_environment()
    if rank and mpi_enabled() and script.is_file() and not file_mechanism.sees_ranks(script, arguments):
        file_mechanism.enter(script, logs, keep=f"rank-{rank}" if keeps else "")


def _run(
    script: Path, arguments: tuple[str, ...], threads: int | None, gpus_per_rank: int, options: dict[str, Any]
) -> None:
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
    from harness.schema.user_script import SCRIPT
    from harness.transparent.script_process import end_together, run_point

    with impatiently(options["hang_timeout"]):
        world = start_mpi()
    turns.join_turns(world.rank, world.size, busy_s)
    host = os.uname().nodename
    own_cores = max(1, usable_cores() // world.comm.allgather(host).count(host)) if threads is None else threads
    try:
        settings = RunSettings(**options)
        if settings.record is not None:
            record = settings.record
            world.on_root(lambda: check_folder(record, "--record"))
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
