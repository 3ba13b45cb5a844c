"""Sweeps on a machine of known variances, whose blocks are as many and as long as `harness sweep` has them.

python -m tests.truth.block_lengths    the whole table: coverage, and the width after 3 minutes with and without
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from harness.analysis.block_plan import EndRule, RatioSample, best_seconds, spread_of
from harness.analysis.confidence_intervals import FEWEST_BLOCKS, mean_over_blocks

_ROUND_S = 0.1
_PARTS = 6  # of a block's rounds, as `harness.analysis.turn_blocks` has them
_SWEEPS = 2000


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What is planted of a block's logarithmic ratio, whose truth is 0.

    `between` is the standard deviation of starts, `within` that of the mean of one second of rounds. A block's start
    costs `start_s`, its epochs take `epochs_s`. The lengths of blocks are chosen where `chooses`.
    """

    between: float
    within: float
    start_s: float = 13.0
    epochs_s: float = 3.0
    chooses: bool = True

    def block(self, random: np.random.Generator, seconds: float) -> RatioSample:
        """Return a block whose rounds last so many `seconds`."""
        rounds = max(_PARTS, round(seconds / _ROUND_S))
        deviation = self.within / np.sqrt(_ROUND_S)
        ratios = random.normal(random.normal(0, self.between), deviation, rounds)
        means = [part.mean() for part in np.array_split(ratios, _PARTS)]
        error = float(np.var(means, ddof=1) / _PARTS)
        return RatioSample(log_ratio=float(ratios.mean()), error=error, seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class SimulatedSweep:
    """How one sweep ended: whether its interval `holds` the truth, half its width, and what it took."""

    holds: bool
    reach: float
    seconds: float
    blocks: int
    block_s: float


def sweep(machine: Machine, random: np.random.Generator, rule: EndRule) -> SimulatedSweep:
    """Return the end of a sweep on `machine`."""
    samples: list[RatioSample] = []
    block_s = machine.epochs_s
    seconds = 0.0
    wanted = FEWEST_BLOCKS
    while True:
        while len(samples) < wanted:
            samples.append(machine.block(random, block_s))
            seconds += machine.start_s + block_s
        mean = mean_over_blocks([sample.log_ratio for sample in samples])
        spread = spread_of(samples)
        assert mean is not None
        if machine.chooses and spread is not None:
            chosen_s = best_seconds(
                spread,
                start_s=machine.start_s,
                left_s=rule.budget_s - seconds,
                blocks=len(samples),
                seconds_so_far=float(np.mean([sample.seconds for sample in samples])),
            )
            block_s = max(machine.epochs_s, chosen_s)
        more = rule.next_repeats(mean.reach, wanted, seconds, repeat_s=machine.start_s + block_s)
        if more <= wanted:
            return SimulatedSweep(
                holds=abs(mean.mean) <= mean.reach,
                reach=mean.reach,
                seconds=seconds,
                blocks=len(samples),
                block_s=block_s,
            )
        wanted = more


def coverage(machine: Machine, sweeps: int, seed: int = 1) -> float:
    """Return the part of the intervals of so many `sweeps` that hold the truth."""
    random = np.random.default_rng(seed)
    return float(np.mean([sweep(machine, random, EndRule()).holds for _ in range(sweeps)]))


def median_reach(machine: Machine, sweeps: int, minutes: float) -> float:
    """Return the median of half the width of intervals after so many `minutes`."""
    random = np.random.default_rng(2)
    rule = EndRule(width=1e-9, budget_s=60 * minutes)
    return float(np.median([sweep(machine, random, rule).reach for _ in range(sweeps)]))


def machines() -> Iterator[Machine]:
    """Yield the machines of the table."""
    for between in (0.004, 0.008, 0.02, 0.05):
        for within in (0.01, 0.03, 0.1):
            for start_s in (13.0, 5.0):
                yield Machine(between=between, within=within, start_s=start_s)


if __name__ == "__main__":
    print("| starts | a second of rounds | a start costs | coverage | after 3 minutes: fixed | chosen |")
    print("|---|---|---|---|---|---|")
    for planted in machines():
        fixed = replace(planted, chooses=False, epochs_s=6.6)
        machine_words = f"| {planted.between:.1%} | {planted.within:.1%} | {planted.start_s:g} s "
        widths = f"| {median_reach(fixed, 500, 3):.2%} | {median_reach(planted, 500, 3):.2%} |"
        print(f"{machine_words}| {coverage(planted, _SWEEPS):.1%} {widths}", flush=True)
