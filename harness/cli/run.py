"""`harness run`: a user's TensorFlow script, unmodified, on many ranks."""

import contextlib
import os
import signal
import stat
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.base.hostlock import SCRATCH, HostLock, Scratch
from harness.base.processes import interruptible, thread_limits
from harness.cli.common import answering, check_secrets, defaulted
from harness.comm.world import LEFT
from harness.report.answer import Answer, Banner, Table
from harness.schema.record import RUN_FILE, read_run
from harness.schema.sweep import Layout
from harness.transparent.run_settings import INPUT, RunSettings, mpi_enabled, run_options

_GRACE_S = 10.0  # for mpirun to end its ranks


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
    from harness.comm.gpus import visible_gpus
    from harness.sweep.launch_command import can_survive, tolerant
    from harness.sweep.schedulers import State, open_scheduler

    devices = len(visible_gpus()) if gpus_per_rank else usable_cores() // max(1, threads)
    count = ranks if ranks is not None else max(1, devices)
    layout = Layout(nodes=count if mpi_enabled() else 1, threads=threads)
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
        *launcher.words, sys.executable, "-m", "harness.transparent",
        *words, str(script), *arguments,
    ]  # fmt: skip
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
    if code or record is None or not (record / RUN_FILE).exists():
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
