"""Kill launches at random moments, take them up again, and compare with what the same launches learn undisturbed.

``python -m tests.kills [--kills N] [--seed S] [--ranks P]`` trains tiny launches on a stand-in for adult. An attempt is
killed (kill -9 of mpirun and every rank at once), or asked to stop (SIGTERM to the ranks, or SIGUSR1 to mpirun, which
passes it on) at a random moment, mostly after training has begun; sometimes its newest checkpoint is damaged then. When
a launch comes to its end its weights, every loss of every step and every epoch's scores must be those of the
undisturbed launch bit for bit, and no checkpoint may be left.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import psutil

from harness.base.exit_codes import AGAIN
from harness.schema.record import RunRecord, Segment, read_run
from harness.schema.sweep_folder import LaunchFolder
from harness.train.checkpointing import read_attempts
from tests.mpi.launch import rank_command, rank_environment, warm_python

_LIMIT_S = 300
COMMON = ("--dataset", "adult", "--data-kind", "synthetic", "--samples", "2005", "--global-batch", "64")
# Partial batches, optimizer state and weights of each rank's own, random layers, statistics of each rank's own.
LAUNCHES = (
    ("--epochs", "60", "--checkpoint", "40"),
    ("--epochs", "60", "--checkpoint", "25", "--sync", "weights:5", "--optimizer", "momentum"),
    ("--epochs", "60", "--checkpoint", "30", "--model", "tests.mpi.networks:forgetful"),
    ("--epochs", "60", "--checkpoint", "70", "--sync", "weights:epoch", "--optimizer", "adagrad"),
    ("--epochs", "60", "--checkpoint", "25", "--sync", "diloco:5", "--optimizer", "momentum"),
    ("--epochs", "60", "--checkpoint", "30", "--sync", "powersgd:2"),
)
WAYS = ("kill -9", "kill -9", "kill -9", "SIGTERM", "SIGUSR1")


@dataclass(kw_only=True)
class Victim:
    """A launch: `words` are its settings, `record` where it is to write; `moments` what was done to it so far."""

    words: Sequence[str]
    ranks: int
    record: Path
    moments: Counter[str] = field(default_factory=Counter)
    damaged: int = 0
    found: list[str] = field(default_factory=list)
    said: str = ""

    def start(self, python: str = sys.executable) -> "subprocess.Popen[str]":
        """Start an attempt: ranks that are killed have a Python of their own."""
        words = [
            *rank_command(self.ranks, python),
            "-m",
            "harness",
            "train",
            *COMMON,
            *self.words,
            "--record",
            str(self.record),
        ]
        environment = rank_environment()
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def disturb(self, chance: random.Random) -> bool:
        """Start an attempt and end it at a random moment; return False where it came to its end before."""
        known = read_attempts(LaunchFolder(self.record).checkpoints)
        process = self.start()
        way = chance.choice(WAYS)
        if way == "kill -9" and chance.random() < 0.2:
            _wait(process, chance.uniform(0, 6))
        else:
            self.await_training(process, known)
            _wait(process, chance.uniform(0, 2))
        moment = f"{way}, {self._moment()}"
        _end(process, way)
        said, _ = process.communicate(timeout=_LIMIT_S)
        self.said += said
        if process.returncode == 0:
            return False
        self.moments[moment] += 1
        # After the last step a SIGTERM ends a rank at once: the next attempt goes on from the last checkpoint.
        expected = {"SIGTERM": (AGAIN, 128 + signal.SIGTERM), "SIGUSR1": (AGAIN,)}
        if way in expected and process.returncode not in expected[way]:
            self.found.append(f"{moment}: exit code {process.returncode}: {said[-800:]}")
        return True

    def damage(self, chance: random.Random) -> None:
        """Cut off the newest checkpoint, or change a byte of it, where there is one before it."""
        files = sorted(LaunchFolder(self.record).checkpoints.glob("*.ckpt"))
        if len(files) < 2 or chance.random() > 0.25:
            return
        content = bytearray(files[-1].read_bytes())
        place = chance.randrange(len(content))
        if chance.random() < 0.5:
            content[place] ^= 1
        else:
            del content[place:]
        files[-1].write_bytes(content)
        self.damaged += 1

    def finish(self) -> RunRecord | None:
        """Let the launch come to its end, where it has not yet, and return its record."""
        if not self.record.exists():
            process = self.start(warm_python())
            said, _ = process.communicate(timeout=_LIMIT_S)
            self.said += said
            if process.returncode:
                self.found.append(f"the last attempt ended with {process.returncode}: {said[-800:]}")
                return None
        if LaunchFolder(self.record).checkpoints.exists():
            self.found.append("checkpoints are left")
        # One may be told of by each attempt until newer ones replace it; what a killed attempt said may be lost.
        lost = any(moment.startswith("kill -9") for moment in self.moments)
        if self.damaged and "checksum does not match" not in self.said and not lost:
            self.found.append(f"none of {self.damaged} damaged checkpoints was told of")
        return read_run(self.record)

    def await_training(self, process: "subprocess.Popen[str]", known: tuple[Segment, ...] = ()) -> None:
        """Wait until the attempt notes that it has begun to train; `known` were noted before it was started."""
        folder, deadline = LaunchFolder(self.record).checkpoints, time.monotonic() + 120
        begun = {attempt.started for attempt in known}
        while process.poll() is None and time.monotonic() < deadline:
            if any(attempt.started not in begun for attempt in read_attempts(folder)):
                return
            time.sleep(0.02)

    def _moment(self) -> str:
        folder = LaunchFolder(self.record).checkpoints
        if not read_attempts(folder):
            return "before training"
        return "with checkpoints" if any(folder.glob("*.ckpt")) else "before the first checkpoint"


def _wait(process: "subprocess.Popen[str]", seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def _end(process: "subprocess.Popen[str]", way: str) -> None:
    """End mpirun and all that it started, or ask for it."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    ranks = [one for one in family[1:] if "harness" in " ".join(_words(one))]
    numbers = {
        "kill -9": (family, signal.SIGKILL),
        "SIGTERM": (ranks, signal.SIGTERM),
        "SIGUSR1": (family[:1], signal.SIGUSR1),
    }
    victims, number = numbers[way]
    for one in victims:
        try:
            one.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def differences(disturbed: Path, whole: Path) -> list[str]:
    """Return in what a launch that was taken up again differs from the undisturbed one; of times nothing is asked."""
    pair = [read_run(disturbed), read_run(whole)]
    found = [] if len({run.weights.sha256 for run in pair}) == 1 else ["weights differ"]
    scores = [
        [(e.epoch, e.steps, e.train_loss, e.test_loss, e.test_accuracy, e.test_auc) for e in run.epochs] for run in pair
    ]
    found += [] if scores[0] == scores[1] else [f"epochs differ: {scores}"]
    keys = ["epoch", "step", "rank"]
    steps = [pd.read_parquet(folder / "steps.parquet").sort_values(keys) for folder in (disturbed, whole)]
    for column in (*keys, "loss_sum"):
        if list(steps[0][column]) != list(steps[1][column]):
            found.append(f"{column} of the steps differs")
    if not (steps[0]["exit_s"].dropna() > steps[0]["entry_s"].dropna()).all():
        found.append("a call ends before it begins")
    if (not pair[0].timed_epochs) != any("resumed" in reason for reason in pair[0].invalid):
        found.append("its times count though it has no timed epoch, or the other way round")
    return found


def run(
    kills: int, seed: int, ranks: int, launches: Sequence[Sequence[str]] = LAUNCHES
) -> tuple[Counter[str], list[str]]:
    """Return the moments of at least so many kills, and the faults."""
    moments: Counter[str] = Counter()
    found: list[str] = []
    number = 0
    with tempfile.TemporaryDirectory(prefix="harness-kills-") as name:
        whole: dict[int, Path] = {}
        while moments.total() < kills:
            kind, chance = number % len(launches), random.Random(f"{seed}/{number}")
            if kind not in whole:
                whole[kind] = Path(name) / f"whole-{kind}"
                undisturbed = Victim(words=launches[kind], ranks=ranks, record=whole[kind])
                undisturbed.finish()
                found += undisturbed.found
            victim = Victim(words=launches[kind], ranks=ranks, record=Path(name) / f"victim-{number}")
            while victim.moments.total() < min(5, kills - moments.total()) and victim.disturb(chance):
                victim.damage(chance)
            if record := victim.finish():
                victim.found += differences(victim.record, whole[kind])
                redone = [segment.redone for segment in record.segments]
                words = f"{dict(victim.moments)}, {victim.damaged} checkpoints damaged, redone {redone}"
                print(f"launch {number}: {words}, {record.weights.sha256[:12]}: {len(victim.found)} faults", flush=True)
            moments += victim.moments
            found += victim.found
            number += 1
    return moments, found


def main() -> int:
    """Kill as often as asked, and print what was done when, and what was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", type=int, help="the number of a launch in LAUNCHES")
    asked = parser.parse_args()
    launches = LAUNCHES if asked.only is None else LAUNCHES[asked.only : asked.only + 1]
    moments, found = run(asked.kills, asked.seed, asked.ranks, launches)
    for moment, times in sorted(moments.items()):
        print(f"{times:4}  {moment}")
    print(f"{moments.total()} disturbances: {len(found)} faults")
    print("\n".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
