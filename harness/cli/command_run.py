"""``harness run``: a script of the user's, unmodified, on many ranks."""

import contextlib
import os
import signal
import stat
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import BinaryIO

import click

from harness import transparent
from harness.base import exit_codes
from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.base.exit_codes import SIGNALLED
from harness.base.hostlock import HostLock
from harness.base.launch_guard import LaunchGuard
from harness.base.processes import interruptible, thread_limits
from harness.base.removal import check_new_folder
from harness.base.scratch import SCRATCH, Scratch
from harness.base.secret_text import refuse_secrets
from harness.cli.answer_output import answering
from harness.cli.common_options import GroupedCommand, defaulted, mpi_option, option_group, refuse_bad_mpi, take
from harness.cli.terminal import echo
from harness.comm.harness_variables import EXIT_CODE_FILE, mpi_choice
from harness.report.answer import Answer, Banner, Table
from harness.schema.layout import Layout
from harness.schema.record import read_run
from harness.schema.sweep_folder import LaunchFolder
from harness.transparent.child.sitecustomize import MARK
from harness.transparent.private_files import check_trees, namespace_refusal, sees_ranks
from harness.transparent.rank_output import make_logs
from harness.transparent.run_settings import INPUT, RunSettings, mpi_enabled, run_options

# Run the ranks of a script as a process below this one: what they read, where they write, how they end.

_TRANSPORTS = "OMPI_MCA_btl"
_GRACE_S = 10.0  # for mpirun to end its ranks


_RULE = b"-" * 70
_ON_ABORT = (b"MPI_ABORT was invoked", b"prterun has exited due to process", b"mpirun has exited due to process")


class RanksErrors:
    """Writes on what ranks have written to standard error, without Open MPI's own words on an abort.

    A rank that ends all others has said why. Open MPI then has two paragraphs to say, each between two rules.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write_on = write
        self._line = b""  # its end has not come, and it may be a rule
        self._rule = b""  # the next line tells whose it is
        self._drops = False

    def read(self, stream: BinaryIO) -> None:
        """Write on what comes from `stream`, to its end."""
        while data := os.read(stream.fileno(), 1 << 16):
            for part in data.splitlines(keepends=True):
                self._take(part)
        self._write(self._rule + self._line)

    def _write(self, text: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more: the ranks go on
            self._write_on(text)

    def _take(self, part: bytes) -> None:
        """Take a line, or the beginning or the rest of one."""
        self._line += part
        may_be_dropped = self._drops or self._rule or self._line.startswith(b"-")
        if may_be_dropped and not part.endswith(b"\n"):
            return
        line, self._line = self._line, b""
        is_rule = line.startswith(_RULE)
        if self._drops:
            self._drops = not is_rule
            return
        if self._rule and line.startswith(_ON_ABORT):
            self._rule, self._drops = b"", True
            return
        self._write(self._rule)
        self._rule = line if is_rule else b""
        self._write(b"" if is_rule else line)


def run_ranks(
    command: Sequence[str],
    environment: Mapping[str, str | None],
    *,
    output: int | None,
    handles: Sequence[int],
    here: bool = True,
) -> int:
    """Run `command` (mpirun and all) and return its exit code; a variable of None is unset.

    The ranks inherit standard output unless they are to write to the descriptor `output`; their standard error is ours
    (`RanksErrors`). mpirun inherits the open files `handles`. Ctrl-C, SIGTERM and a closed terminal end all of them,
    and so does the end of this process in any other way. Where all ranks are `here` and know with which code they end,
    it is in a file and mpirun's is 0; ranks on other hosts would not see this host's files.
    """
    variables = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    with interruptible():
        guard = LaunchGuard()
        scratch = Scratch()
        of_scratch = scratch.variables if here else {}
        code_file = Path(of_scratch[SCRATCH]) / "left" if of_scratch else None
        if code_file is not None:
            variables[EXIT_CODE_FILE] = str(code_file)
        child = subprocess.Popen(
            command,
            env=variables | of_scratch | guard.variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            pass_fds=(*handles, *scratch.handles),
        )
        assert child.stderr is not None
        errors = threading.Thread(target=RanksErrors(partial(os.write, 2)).read, args=[child.stderr], daemon=True)
        errors.start()
        code: int | None = None
        try:
            code = child.wait()
            if code == 0 and code_file is not None and code_file.exists():
                code = int(code_file.read_text())
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
            guard.end(orderly=code == 0)  # otherwise mpirun may have left ranks
            errors.join(_GRACE_S)
    return exit_codes.of_return_code(code)


def local_transports() -> dict[str, str]:
    """Return the variables with which ranks on one host do not start libfabric: Open MPI sleeps for a second there.

    They are for the Open MPI of our own environment. A site's may have its transports in a file, which a variable
    would replace.
    """
    if mpi_choice() != "wheel" or _TRANSPORTS in os.environ:
        return {}
    return {_TRANSPORTS: "^ofi"}


def rank_input(*, here: bool) -> str:
    """Return what every rank reads as its standard input: the file that is ours, else nothing.

    What mpirun would pass on of a file or pipe reaches rank 0 alone and never ends. Ranks that are not all `here` open
    the file by its name.
    """
    with contextlib.suppress(OSError):  # closed
        if stat.S_ISREG(os.fstat(0).st_mode):
            descriptor = Path(f"/proc/{os.getpid()}/fd/0")
            return str(descriptor if here else descriptor.resolve())
    return os.devnull


def rank_output() -> int | None:
    """Return where the script's output goes if not to standard output: there, JSON or nothing else may be."""
    try:
        return sys.stdout.fileno()
    except OSError:  # no file: a test's
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """What the command line of `harness run` asks for: the script with its arguments, the ranks, and their switches."""

    script: Path
    arguments: tuple[str, ...]
    allow_argument: tuple[str, ...]
    ranks: int | None
    threads: int
    gpus_per_rank: int
    here: bool
    settings: RunSettings


@click.command(
    name="run",
    cls=GroupedCommand,
    brief=(
        "--ranks",
        "--here",
        "--threads",
        "--sync",
        "--batch",
        "--gpus-per-rank",
        "--verify",
        "--logs",
        "--record",
        "--hang-timeout",
        "--witness",
        "--unjudged",
        "--shared-files",
        "--json",
    ),
    examples=(
        "harness run -n 2 train.py",
        "harness run -n 4 --batch global train.py --epochs 3",
        "harness run -n 2 --record my-launch train.py",
    ),
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-n", "--ranks", type=int, help="MPI ranks [default: the machine's cores, or GPUs].")
@click.option("--here", is_flag=True, help="Only on this host, also in a batch job of several nodes.")
@defaulted("--threads", type=int, default=1, help="Cores, and TensorFlow threads, of a rank.")
@run_options
@option_group("settings", partial(take, RunSettings))
@option_group("options", partial(take, RunOptions))
@answering
@mpi_option
def run_command(options: RunOptions) -> Answer:
    """Run SCRIPT, which is not edited and imports nothing of ours, on several ranks that train one model.

    Batches are divided over the ranks, gradients averaged, files and output are rank 0's. In a job of several nodes
    (Slurm, PBS) the ranks are spread over these nodes. `horovodrun -np P python SCRIPT` of a script written
    for Horovod is `harness run -n P SCRIPT`: it divides its rows itself.
    """
    script = options.script
    record = options.settings.record
    if not script.is_file():
        raise UserError(f"script '{script}' is not there: give the path of a Python file")
    if record is not None:
        refuse_secrets(options.arguments, options.allow_argument)
        check_new_folder(record, "--record")
    refuse_bad_mpi()
    from harness.sweep.scheduler_answers import State
    from harness.sweep.schedulers.local import Scheduler as Local

    start = rank_start(options)
    layout = start.layout
    if layout.ranks > 1 and MARK in os.environ:  # new Pythons there forget what a launcher tells them
        raise UserError(f"'{script}' is started by a script that runs on ranks itself: start it by -n 1, or apart")
    if layout.ranks > 1 and not options.settings.shared_files and not sees_ranks(script, options.arguments):
        check_trees([namespace_refusal()])
    command = [*start.words, *rank_words(options)]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}
    with contextlib.ExitStack() as stack:
        handles: tuple[int, ...] = ()
        if record is not None:  # its times count: no sweep's or probe's launch beside it
            lock = HostLock().held("a script", lambda text: echo(f"harness: {text}", err=True))
            handles = stack.enter_context(lock)
        if layout.ranks > 1:
            make_logs(options.settings.logs)
        begin = time.monotonic()
        script_input = {INPUT: rank_input(here=start.here)}
        hashes = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED") or "0"}  # a rank without it starts itself anew
        environment = {**start.environment, **thread_limits(options.threads), **quiet, **script_input, **hashes}
        if start.here and record is None:  # the times of a record are compared with those of a sweep's launches
            environment |= local_transports()
        code = run_ranks(command, environment, output=rank_output(), handles=handles, here=start.here)
    is_signalled = code - SIGNALLED in set(signal.Signals)
    why = f" (a rank was {Local.explain(State(phase='ended', exit_code=code))})" if is_signalled else ""
    return _answer(options, layout.ranks, time.monotonic() - begin, code, why)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStart:
    """The `words` of the launcher of ranks of a `layout`, and the `environment` of these, None for unset.

    They are all on this host, or not `here` but on the nodes of the job around this process.
    """

    layout: Layout
    words: tuple[str, ...]
    environment: Mapping[str, str | None]
    here: bool


def rank_start(options: RunOptions) -> RankStart:
    """Return how the ranks start: on the nodes of the job around this process, where it has several, else here.

    Raises:
        UserError: they do not fit on the nodes.
    """
    from harness.comm.gpus import visible_gpus
    from harness.sweep.allocation import cores_here, spread_ranks, start_on_nodes
    from harness.sweep.job_nodes import allocation_of_nodes, current_allocation
    from harness.sweep.schedulers import open_scheduler

    threads = options.threads
    job = None if options.here or not mpi_enabled() else allocation_of_nodes()
    if job is not None:
        layout = spread_ranks(job, options.ranks, threads, gpus_per_rank=options.gpus_per_rank)
        nodes = job.nodes[: layout.nodes]
        echo(f"harness: {layout} on {', '.join(nodes)} of this {job.scheduler} job (--here: this host)", err=True)
        words, environment = start_on_nodes(job, layout)
        return RankStart(layout=layout, words=words, environment=environment, here=False)
    devices = len(visible_gpus()) if options.gpus_per_rank else cores_here(current_allocation()) // max(1, threads)
    count = options.ranks if options.ranks is not None else max(1, devices)
    layout = Layout(nodes=count if mpi_enabled() else 1, threads=threads)
    if layout.cores > usable_cores():
        echo(f"harness: {layout.cores} cores are asked for, {usable_cores()} are there: it works, but slowly", err=True)
    local = open_scheduler("local", oversubscribe=True)
    return RankStart(
        layout=layout, words=local.launcher(layout).words, environment=local.environment(layout), here=True
    )


def rank_words(options: RunOptions) -> list[str]:
    """Return the words of a rank: Python, our program with its switches, the script's."""
    settings: dict[str, object] = {
        "threads": options.threads,
        "gpus_per_rank": options.gpus_per_rank,
        "allow_argument": options.allow_argument,
    }
    settings |= {field.name: getattr(options.settings, field.name) for field in fields(RunSettings)}
    switches = {f"--{name.replace('_', '-')}": value for name, value in settings.items()}
    flags = [name for name, value in switches.items() if value is True]
    words = [*flags]
    for name, value in switches.items():
        if value is None or isinstance(value, bool):
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [f"{name}={part}" for part in values]
    start = Path(transparent.__file__).with_name("start.py")
    return [sys.executable, str(start), *words, str(options.script), *options.arguments]


def _answer(options: RunOptions, ranks: int, wall_s: float, code: int, why: str) -> Answer:
    """Return what is known of the run: its time, and its epochs where it left a record."""
    from harness.analysis import units

    script = options.script
    record = options.settings.record
    unjudged = options.settings.unjudged and ranks > 1
    ended = "ended well" if code == 0 else f"ended with exit code {code}{why}"
    if unjudged:
        ended += ", compared with nothing (--unjudged),"
    sentence = f"{script.name} on {units.ranks(ranks)} {ended} after {units.seconds(wall_s)}"
    data: dict[str, object] = {"script": script, "ranks": ranks, "seconds": wall_s, "exit_code": code}
    data["unjudged"] = unjudged
    if code or record is None or not LaunchFolder(record).is_recorded:
        return Answer(sentence=f"{sentence}.", data=data, code=code)
    launch = read_run(record)
    times = [max(epoch.seconds) for epoch in launch.epochs]
    sentence += f", {units.seconds(statistics.median(times))} an epoch; a single launch has no interval: "
    return Answer(
        banners=[Banner(kind="warning", text=f"Its times are not valid: {reason}.") for reason in launch.invalid],
        sentence=f"{sentence}`harness sweep --script {script} --repeats 6` measures one.",
        table=Table(
            title="",
            headings=("Epoch", "Time", "Training loss", "Test accuracy"),
            rows=[
                (
                    str(epoch.epoch + 1),
                    units.seconds(seconds),
                    *map(units.significant, (epoch.train_loss, epoch.test_accuracy)),
                )
                for epoch, seconds in zip(launch.epochs, times, strict=True)
            ],
        ),
        data=data | {"record": record, "invalid": launch.invalid, "epochs": launch.epochs},
    )
