"""What a user waits for beside training: the start of `harness run` beside mpirun's, and a sweep's first interval."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.analysis.confidence_intervals import Interval
from harness.base.processes import ONE_THREAD, run_program
from harness.bench.bench_record import FirstInterval, StartUp, Waiting
from harness.schema.layout import Layout
from harness.sweep.launch_command import first_error
from harness.sweep.schedulers import open_scheduler

SCRIPT = Path(__file__).with_name("contenders") / "small_fit.py"
PAIRS = 3
_RANKS = 2
_LIMIT_S = 600.0
_SWEEP = ("--dataset", "mnist", "--data-kind", "synthetic", "--nodes", f"1..{_RANKS}", "--repeats", "3")


class _Failed(Exception):
    """A command failed; the message is its first error."""


def measure_waiting(pairs: int, say: Callable[[str], None]) -> Waiting:
    """Return what was measured: `pairs` starts of both kinds in turns, and one sweep of three blocks; failures too.

    The machine's lock is the caller's: what is started here takes one of its own.
    """
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as name:
        folder = Path(name)
        shutil.copy(SCRIPT, folder)
        start_up = first_interval = None
        failed = ""
        try:
            start_up = _start_up(pairs, folder)
            first_interval = _first_interval(folder)
        except _Failed as error:
            failed = str(error)
            say(f"what one waits for could not be measured: {failed}")
    return Waiting(start_up=start_up, first_interval=first_interval, failed=failed)


def _start_up(pairs: int, folder: Path) -> StartUp:
    """Start a small script by mpirun alone and by `harness run`, one after the other, the first one in turns."""
    layout = Layout(nodes=_RANKS)
    scheduler = open_scheduler("local")
    script = str(folder / SCRIPT.name)
    plain = (*scheduler.launcher(layout).words, sys.executable, script)
    ours = (sys.executable, "-m", "harness", "run", "-n", str(_RANKS), script)
    changes = dict(scheduler.environment(layout)) | ONE_THREAD
    _seconds(plain, changes, folder)  # what is read first is in memory afterwards
    _seconds(ours, changes, folder)
    plain_s = []
    run_s = []
    for number in range(pairs):
        if number % 2:
            run_s.append(_seconds(ours, changes, folder))
            plain_s.append(_seconds(plain, changes, folder))
        else:
            plain_s.append(_seconds(plain, changes, folder))
            run_s.append(_seconds(ours, changes, folder))
    return StartUp(plain_s=tuple(plain_s), run_s=tuple(run_s))


def _first_interval(folder: Path) -> FirstInterval:
    """Return when a sweep of three blocks had its interval; raise `_Failed` where it has none, on a busy machine."""
    words = (sys.executable, "-m", "harness", "sweep", *_SWEEP, "--json")
    begin = time.monotonic()
    document = _output((*words, "--results", str(folder / "results"), "--reports", str(folder / "reports")), {}, folder)
    seconds = time.monotonic() - begin
    scaling = json.loads(document)["scaling"]
    interval = scaling["points"][-1]["speedup_interval"] if scaling else None
    if interval is None:
        raise _Failed("a sweep of three blocks has no interval")
    return FirstInterval(seconds=seconds, reach=Interval(**interval).log_reach)


def _seconds(words: Sequence[str], changes: Mapping[str, str | None], folder: Path) -> float:
    begin = time.monotonic()
    _output(words, changes, folder)
    return time.monotonic() - begin


def _output(words: Sequence[str], changes: Mapping[str, str | None], folder: Path) -> str:
    """Return what a command prints; raise `_Failed` with its first error."""
    own_lock = {"HARNESS_LOCK_DIR": str(folder)}
    reply = run_program(words, limit_s=_LIMIT_S, changes={**changes, **own_lock}, folder=folder)
    if reply.code != 0:
        raise _Failed(first_error(reply.err) or reply.last_error)
    return reply.out
