"""Steps of known length through the real referee, on the real cores: the speedup is planted, and is to be found.

    python -m tests.truth.planted_step --runs 20    on a quiet machine of two cores; the planted speedup and every run's

A step spins until it has had a planned time of its processor. Of one rank that is all of the step; of two ranks it
is the serial part and half of the rest. Processor time is planned and not a number of iterations, as two busy cores
of a machine slow each other by some per cent, which nobody has planted. In every turn one of the two ranks has that
work and the other one four fifths of it, by turns, so that the slowest rank's time is that of the planted work and
not the larger of two noisy times. Every turn's work is multiplied by noise that is planted too, of the same
distribution for both launches; what the machine adds comes on top of it.
"""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.confidence_intervals import BlockRatio, ratio_over_blocks
from harness.analysis.turn_blocks import read_turn_block
from harness.sweep.referee import run_block
from harness.sweep.turn_block import LaunchSpec, TurnBlock

STEP_SECONDS = 0.001  # of a step on one rank
NOISE = 0.1  # standard deviation of the logarithm of a turn's work, as measured on two shared cores
ONE, TWO = "one rank", "two ranks"

RANK_PROGRAM = """
import os, random, sys, time
from harness.base.turns import join_turns

rank, ranks = int(sys.argv[1]), int(sys.argv[2])
step_seconds, noise, seed = float(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
cores = sys.argv[6:]


def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


os.sched_setaffinity(0, {int(cores[rank])})
turns = join_turns(rank, ranks)
while True:
    turn = turns.turn
    factor = random.Random(f"{seed} {ranks} {turn}").lognormvariate(0, noise)
    has_the_work = ranks == 1 or turn % 2 == rank
    spin(step_seconds * factor * (1 if has_the_work else 0.8))
    turns.step()
"""


@dataclass(frozen=True, kw_only=True)
class PlantedRun:
    """What one run of several blocks found: excluding contended rounds, and including interference."""

    planted: float
    undisturbed: BlockRatio | None
    as_it_ran: BlockRatio | None


def planted_speedup(serial: float) -> float:
    """Return how many times as fast two ranks are of whose step the part `serial` is not divided."""
    return 1 / (serial + (1 - serial) / 2)


def run_planted(serial: float, *, blocks: int, seconds: float, folder: Path) -> PlantedRun:
    """Run so many `blocks` of so many `seconds` each, and return what their turns say."""
    undisturbed, as_it_ran = [], []
    for number in range(blocks):
        seed = f"{folder.name}-{number}"  # another one in every run
        step_seconds = {1: STEP_SECONDS, 2: STEP_SECONDS / planted_speedup(serial)}
        sets = tuple(_rank_set(name, ranks, step_seconds[ranks], seed, folder) for name, ranks in ((ONE, 1), (TWO, 2)))
        end = run_block(TurnBlock(name=f"planted-{number}-{os.getpid()}", launches=sets, seconds=seconds))
        times = read_turn_block(end.turns[end.turns["steps"] > 0])
        if times.undisturbed:
            undisturbed.append(math.log(times.undisturbed[ONE] / times.undisturbed[TWO]))
        as_it_ran.append(math.log(times.as_it_ran[ONE] / times.as_it_ran[TWO]))
    return PlantedRun(
        planted=planted_speedup(serial),
        undisturbed=ratio_over_blocks(undisturbed),
        as_it_ran=ratio_over_blocks(as_it_ran),
    )


def _rank_set(name: str, ranks: int, step_seconds: float, seed: str, folder: Path) -> LaunchSpec:
    program = folder / "rank.py"
    program.write_text(RANK_PROGRAM)
    cores = sorted(os.sched_getaffinity(0))
    commands = [
        f'"{sys.executable}" "{program}" {rank} {ranks} {step_seconds} {NOISE} {seed} {cores[0]} {cores[1]} &'
        for rank in range(ranks)
    ]
    return LaunchSpec(name=name, words=("bash", "-c", "\n".join([*commands, "wait"])), log=str(folder / f"{name}.log"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each run, and how many intervals hold what was planted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3.0, help="of the turns of a block")
    parser.add_argument("--serial", type=float, default=0.2, help="part of a step that is not divided")
    options = parser.parse_args(arguments)
    held = {"undisturbed": 0, "as_it_ran": 0}
    print("| run | planted | undisturbed | including interference |\n|---|---|---|---|")
    for number in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            run = run_planted(options.serial, blocks=options.blocks, seconds=options.seconds, folder=Path(folder))
        cells = []
        for name in held:
            ratio = getattr(run, name)
            if ratio is None:
                cells.append("too few undisturbed blocks")
                continue
            holds = ratio.interval.low <= run.planted <= ratio.interval.high
            held[name] += holds
            span = f"{ratio.interval.low:.3f} to {ratio.interval.high:.3f}"
            cells.append(f"{ratio.ratio:.3f} ({span}){'' if holds else ' misses'}")
        print(f"| {number + 1} | {run.planted:.3f} | {' | '.join(cells)} |", flush=True)
    print(f"held: {held['undisturbed']} and {held['as_it_ran']} of {options.runs}")


if __name__ == "__main__":
    main()
