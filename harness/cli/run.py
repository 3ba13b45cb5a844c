"""`harness run`: a user's TensorFlow script, unmodified, on many ranks."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from harness.base.errors import UserError
from harness.transparent.settings import Settings, mpi_enabled, run_options


@click.command(name="run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--ranks", type=int, help="MPI ranks [default: the machine's cores].")
@click.option("--threads", type=int, default=1, show_default=True, help="Cores, and TensorFlow threads, of a rank.")
@run_options
def run(ranks: int | None, threads: int, script: Path, arguments: tuple[str, ...], **options: Any) -> None:
    """Run SCRIPT, which is not edited and imports nothing of ours, on several ranks that train one model.

    Batches are divided over the ranks, gradients averaged, files and output are rank 0's. Under a batch scheduler
    the same is `mpirun -n P python -m harness.transparent SCRIPT`.
    """
    Settings(**options)
    if not script.is_file():
        raise UserError(f"script '{script}' is not there: give the path of a Python file")
    from harness.base.cores import usable_cores
    from harness.schema.layout import Layout
    from harness.sweep.schedulers import open_scheduler
    from harness.transparent.settings import run_ranks

    count = ranks if ranks is not None else max(1, usable_cores() // max(1, threads))
    layout = Layout(nodes=count if mpi_enabled() else 1, threads=threads)
    if layout.cores > usable_cores():
        click.echo(
            f"harness: {layout.cores} cores are asked for and {usable_cores()} there: it works, slowly", err=True
        )
    scheduler = open_scheduler("local", oversubscribe=True)
    words = [word for name, value in options.items() if value is not None for word in _switch(name, value)]
    code = run_ranks(
        [
            *scheduler.launcher(layout).words, sys.executable, "-m", "harness.transparent",
            *words, "--threads", str(threads), str(script), *arguments,
        ],
        {**scheduler.environment(layout), **_environment(threads)},
    )  # fmt: skip
    sys.exit(code)


def _switch(name: str, value: object) -> tuple[str, str]:
    return f"--{name.replace('_', '-')}", str(value)


def _environment(threads: int) -> dict[str, str | None]:
    """Return what keeps other libraries from starting threads of their own."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**dict.fromkeys(names, str(threads)), "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}
