"""Steps of known length through the real referee, on the real cores: the speedup is planted, and is to be found.

    python -m tests.truth.planted_step --runs 20    on a quiet machine of two cores; the planted speedup and every run's

A step spins so many iterations of a loop. Of one rank it is all of them; of two ranks it is the serial part and half of
the rest. In every turn one of the two ranks has that work and the other one four fifths of it, by turns, so that the
slowest rank's time is that of the planted work on one core or the other, and not the slower of two noisy times. Two
busy cores are slower than one: in the turns of one rank a companion keeps the other core as busy as the second rank
does.
"""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.stats import BlockRatio, ratio_over_blocks
from harness.analysis.turn_blocks import read_turn_block
from harness.sweep.referee import run_block
from harness.sweep.turn_block import LaunchSpec, TurnBlock

ITERATIONS = 40_000  # of a step on one rank, about a millisecond
ONE, TWO = "one rank", "two ranks"

RANK_PROGRAM = """
import os, sys, time
from harness.base.turns import join

rank, ranks, iterations, *cores = map(int, sys.argv[1:])


def spin(count):
    for _ in range(count):
        pass


def keep_the_other_core_busy(orders):
    for line in orders:
        core, seconds = line.split()
        os.sched_setaffinity(0, {int(core)})
        end = time.perf_counter() + float(seconds)
        while time.perf_counter() < end:
            pass


os.sched_setaffinity(0, {cores[rank]})
if ranks == 1:
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        keep_the_other_core_busy(os.fdopen(reading))
        os._exit(0)
    os.close(reading)
    orders = os.fdopen(writing, "w")
turns = join(rank, ranks)
turn, began = 0, time.perf_counter()
while True:
    if ranks == 1 and turns._turn != turn:
        turn, (core,) = turns._turn, os.sched_getaffinity(0)
        (other,) = set(cores) - {core}
        print(other, 0.04, file=orders, flush=True)  # four fifths of a turn
    has_the_work = ranks == 1 or turns._turn % 2 == rank
    spin(iterations if has_the_work else iterations * 4 // 5)
    turns.step()
"""


@dataclass(frozen=True, kw_only=True)
class PlantedRun:
    """What one run of several blocks found: on undisturbed cores, and as it ran."""

    planted: float
    undisturbed: BlockRatio | None
    as_it_ran: BlockRatio | None


def planted_speedup(serial: float) -> float:
    """Return how many times as fast two ranks are of whose step the part `serial` is not divided."""
    return ITERATIONS / _iterations(2, serial)


def _iterations(ranks: int, serial: float) -> int:
    return round(ITERATIONS * (serial + (1 - serial) / ranks))


def run_planted(serial: float, *, blocks: int, seconds: float, folder: Path) -> PlantedRun:
    """Run so many `blocks` of so many `seconds` each, and return what their turns say."""
    undisturbed, as_it_ran = [], []
    for number in range(blocks):
        sets = tuple(_rank_set(name, ranks, serial, folder) for name, ranks in ((ONE, 1), (TWO, 2)))
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


def _rank_set(name: str, ranks: int, serial: float, folder: Path) -> LaunchSpec:
    program = folder / "rank.py"
    program.write_text(RANK_PROGRAM)
    cores = sorted(os.sched_getaffinity(0))
    commands = [
        f'"{sys.executable}" "{program}" {rank} {ranks} {_iterations(ranks, serial)} {cores[0]} {cores[1]} &'
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
    print("| run | planted | undisturbed | as it ran |\n|---|---|---|---|")
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
