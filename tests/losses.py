"""Kill and stop ranks of launches at random moments, and count what was outlived: `python -m tests.losses --losses 30`.

A launch goes down to one rank. Afterwards its record must be whole, name every loss, have every row, the undisturbed
launch's losses of every epoch, and equal weights on all ranks. Ctrl-C and SIGTERM print the table so far.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from harness.base.errors import UserError
from harness.base.exit_codes import LOST
from harness.comm.mpi_library import AS_ROOT, find_mpi
from harness.schema.record import RunRecord, read_run

LIMIT_S = 300.0
ROUNDING = 1e-3
SLOW_S = 1.0  # to notice a SIGKILL: worth a look


@dataclass(kw_only=True)
class Found:
    """What a campaign found; times in seconds."""

    outlived: int = 0
    stopped: int = 0
    notice_s: list[float] = field(default_factory=list)
    late_notice_s: list[float] = field(default_factory=list)  # behind the last step, where nobody waits for long
    stop_notice_s: list[float] = field(default_factory=list)
    recovery_s: list[float] = field(default_factory=list)
    redone: int = 0
    faults: list[str] = field(default_factory=list)


def words(ranks: int, epochs: int, patience: float, record: Path) -> list[str]:
    """Return the command of a launch."""
    options = ["--on-failure", "shrink", "--hang-timeout", str(patience)]
    return [
        str(find_mpi().mpirun),
        "--with-ft",
        "ulfm",
        "-n",
        str(ranks),
        "--map-by",
        ":OVERSUBSCRIBE",
        "--bind-to",
        "none",
        sys.executable,
        "-m",
        "harness",
        "train",
        "--dataset",
        "adult",
        "--data-kind",
        "synthetic",
        "--samples",
        "8000",
        "--seed",
        "1",
        "--epochs",
        str(epochs),
        "--record",
        str(record),
        *options,
    ]


class Launch:
    """A launch under way, what it says, and who was killed when (s, time.time)."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.said = folder / "said.txt"
        environment = os.environ | AS_ROOT | {"OMPI_MCA_mpi_yield_when_idle": "1", "PYTHONUNBUFFERED": "1"}
        with self.said.open("w") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        self.killed: dict[int, tuple[float, bool]] = {}
        self._end = time.monotonic() + LIMIT_S

    def count(self, text: str) -> int:
        """Return how often it has said so."""
        return self.said.read_text(errors="replace").count(text)

    def wait_for(self, text: str, times: int) -> bool:
        """Tell whether it says so, so many times, before it ends."""
        while self.count(text) < times:
            if self.process.poll() is not None or time.monotonic() > self._end:
                return False
            time.sleep(0.01)
        return True

    def ranks(self) -> list[psutil.Process]:
        """Return the ranks that live."""
        found = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                number = process.environ().get("OMPI_COMM_WORLD_RANK")
                if number and process.pid not in self.killed and "harness" in process.cmdline():
                    found[int(number)] = process
            except psutil.Error:
                continue
        return [found[number] for number in sorted(found)]

    def hit(self, process: psutil.Process, *, stop: bool) -> None:
        """Kill or stop a rank."""
        process.send_signal(signal.SIGSTOP if stop else signal.SIGKILL)
        self.killed[process.pid] = (time.time(), stop)

    def end(self) -> int | None:
        """Return the exit code, None where the launch hangs: it is ended then."""
        try:
            return self.process.wait(timeout=max(1.0, self._end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        """End it all."""
        for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
            process.kill()
        self.process.wait()


def disturb(launch: Launch, chance: random.Random, ranks: int, stops: float) -> None:
    """Kill ranks, mostly one after another, now and then the next one before the first is overcome."""
    left = ranks - 1
    if not launch.wait_for("epoch 2/", 1):
        return
    while left:
        time.sleep(chance.uniform(0, 1.5))
        together = 2 if left > 1 and chance.random() < 0.15 else 1
        alive = launch.ranks()[:ranks]
        if launch.process.poll() is not None or len(alive) <= together:
            return
        for process in chance.sample(alive, together):
            launch.hit(process, stop=chance.random() < stops)
            time.sleep(chance.choice((0, 0, chance.uniform(0, 2))) if together > 1 else 0)
        left -= together
        if not launch.wait_for(" failed after ", len(launch.killed)):
            return


def judge(launch: Launch, record: Path, found: Found, code: int | None, alone: RunRecord | None) -> RunRecord | None:
    """Take note of what a launch came to, beside the undisturbed one `alone`."""
    try:
        run = read_run(record)
    except UserError as error:
        tail = launch.said.read_text(errors="replace")[-3000:]
        found.faults.append(f"no record, exit code {code}, {len(launch.killed)} hit: {error}\n{tail}")
        return None
    by_pid = {loss.pid: loss for loss in run.losses}
    for pid, (when, stop) in launch.killed.items():
        if pid not in by_pid:
            if when < run.ended.timestamp() - 1:
                found.faults.append(f"process {pid} was lost and the record does not say so")
            continue
        loss = by_pid[pid]
        late = found.late_notice_s if loss.epoch == run.point.workload.epochs else found.notice_s
        seconds = loss.noticed.timestamp() - when
        (found.stop_notice_s if stop else late).append(seconds)
        if seconds > SLOW_S and not stop:
            print(f"  noticed after {seconds:.1f} s, by '{loss.reason}': {loss}")
        found.recovery_s.append(loss.recovery_s)
        found.redone += loss.redone
        found.outlived += 1
        found.stopped += stop
    if not run.weights.identical or (not run.invalid and run.losses) or code != (LOST if run.losses else 0):
        found.faults.append(f"identical {run.weights.identical}, exit code {code}, invalid {run.invalid}")
    if alone is not None:
        found.faults += differences(run, alone)
    return run


def differences(run: RunRecord, alone: RunRecord) -> list[str]:
    """Return in what a launch that outlived losses did not learn from the rows that the undisturbed one learned from.

    A row that is lost or doubled is a fortieth of its step.
    """
    found, differ = [], 0.0
    rows = [sum(rank.rows for rank in each.ranks) for each in (run, alone)]
    counts = [[(epoch.epoch, epoch.steps) for epoch in each.epochs] for each in (run, alone)]
    if rows[0] != rows[1] or counts[0] != counts[1]:
        found.append(f"{rows[0]} rows and (epoch, steps) {counts[0]} are not {rows[1]} and {counts[1]}")
    found += unaccounted(run)
    for epoch, same in zip(run.epochs, alone.epochs, strict=False):
        for loss, other in ((epoch.train_loss, same.train_loss), (epoch.test_loss, same.test_loss)):
            if loss is not None and other is not None:
                differ = max(differ, abs(loss / other - 1))
    if differ > ROUNDING:
        found.append(f"losses of an epoch differ by {differ:.2g} of them")
    print(f"  losses of {len(run.epochs)} epochs differ by at most {differ:.1e}")
    return found


def unaccounted(run: RunRecord) -> list[str]:
    """Return which steps of a launch that outlived losses are in no stretch between them, or in two."""
    made = 0
    for each in run.stretches:
        if each.first != made:
            return [f"a stretch begins behind {each.first} steps, the one before ends behind {made}"]
        made = each.first + each.steps
    total = len(run.epochs) * run.steps_per_epoch
    return [f"stretches have {made} of {total} steps"] if run.losses and made != total else []


def processes_of(record: Path) -> list[int]:
    """Return the processes of the launch that is to write `record`."""
    return [one.pid for one in psutil.process_iter(["cmdline"]) if str(record) in (one.info["cmdline"] or ())]


def left_behind(record: Path, before: set[Path]) -> list[str]:
    """Return the processes of a launch that are left, and what was not there `before` of shared memory."""
    found = (*(f"process {pid}" for pid in processes_of(record)), *sorted(map(str, in_memory() - before)))
    return [f"left behind: {one}" for one in found]


def in_memory() -> set[Path]:
    """Return what lies in shared memory."""
    return set(Path("/dev/shm").iterdir())


@dataclass(kw_only=True)
class Campaign:
    """Launches, the first of them undisturbed: `alone`."""

    ranks: int = 4
    stops: float = 0.0
    patience: float = 5.0
    epochs: int = 60
    seed: int = 1
    found: Found = field(default_factory=Found)
    alone: RunRecord | None = None

    def launch(self, number: int) -> list[str]:
        """Make a launch, disturb it unless it is the first, take note of what it came to; return what was wrong."""
        with tempfile.TemporaryDirectory(prefix="harness-losses-") as name:
            record, before = Path(name) / "record", in_memory()
            launch = Launch(words(self.ranks, self.epochs, self.patience, record), Path(name))
            known = len(self.found.faults)
            try:
                if self.alone:
                    disturb(launch, random.Random(f"{self.seed}/{number}"), self.ranks, self.stops)
                run = judge(launch, record, self.found, launch.end(), self.alone)
            except KeyboardInterrupt:
                launch.kill()
                raise
            self.found.faults += left_behind(record, before)
            self.alone = self.alone or run
        print(
            f"launch {number}: {len(launch.killed)} hit, {self.found.outlived} outlived, "
            f"{len(self.found.faults)} faults",
            *(run.losses if run else ()),
            *self.found.faults[known:],
            sep="\n  ",
            flush=True,
        )
        return self.found.faults[known:]

    def table(self) -> None:
        """Print what was found so far."""
        found = self.found
        print(f"{found.outlived} losses outlived ({found.stopped} by SIGSTOP), {found.redone} steps begun again")
        for title, values in (
            ("SIGKILL to notice", found.notice_s),
            ("behind all steps", found.late_notice_s),
            ("SIGSTOP to notice", found.stop_notice_s),
            ("notice to going on", found.recovery_s),
        ):
            if values:
                print(
                    f"{title:>20}: p50 {np.median(values):.3f} s, p99 {np.quantile(values, 0.99):.3f} s, "
                    f"most {max(values):.3f} s"
                )
        print(f"{len(found.faults)} faults", *found.faults, sep="\n")


def main() -> int:
    """Print the table of a campaign; exit code 1 where something was not outlived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--stops", type=float, default=0.0, help="part of the losses that are a SIGSTOP")
    parser.add_argument("--patience", type=float, default=5.0, help="seconds")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no launch after so many")
    options = vars(parser.parse_args())
    losses, end = options.pop("losses"), time.monotonic() + options.pop("seconds")
    campaign, number = Campaign(**options), 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        while campaign.found.outlived < losses and time.monotonic() < end and len(campaign.found.faults) < 5:
            campaign.launch(number)
            number += 1
    campaign.table()
    return bool(campaign.found.faults)


if __name__ == "__main__":
    sys.exit(main())
