"""A machine of known speeds on which a single rank and P ranks train in turns, with noise on everything measured.

python -m tests.truth.turn_simulation    the whole table: bias and coverage by noise, cores and disturbances
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from harness.analysis.confidence_intervals import FEWEST_BLOCKS, ratio_over_blocks
from harness.analysis.turn_blocks import read_turn_block
from harness.cli.sweep_end import EndRule

ONE, MANY = f"n1x1x1-r0-{'a' * 12}", f"n2x1x1-r0-{'b' * 12}"  # what launches of one rank and of all are called
_BLOCK_S = 5.0  # of machine time, by which the stopping rule knows that there is time for more
SHARED_CORE = 1.8  # times as long do ranks take of which two have one physical core
_STATE_ROUNDS = 20  # a core keeps its speed for about 3 s


@dataclass(frozen=True)
class SimulatedLaunch:
    """A launch called `name` on `ranks` ranks; its steps take `cost` times what the machine's own would."""

    name: str
    ranks: int
    cost: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What is planted.

    `ranks` ranks on as many cores are `speedup` times as fast as one on a core of the same speed. `noise` is the
    standard deviation of the logarithm of a turn's time, of every launch. Each core takes `slow` times as long in a
    part `slow_part` of its time; with `fixed` the last core always does and no other. In a part `disturbed` of the
    rounds other work has half of the first core. In a part `shared` two ranks have one physical core (`SHARED_CORE`).
    `start` is the deviation of the speed that each start of a launch has.
    """

    ranks: int = 2
    speedup: float = 1.667
    noise: float = 0.135
    slow: float = 1.0
    slow_part: float = 0.4
    fixed: bool = False
    disturbed: float = 0.0
    shared: float = 0.0
    start: float = 0.007
    rounds: int = 60

    @property
    def undisturbed_truth(self) -> float:
        """The speedup that is planted, by logarithms: without what others take."""
        one, many = self._log_slowness()
        return self.speedup * math.exp(one - many - self.shared * math.log(SHARED_CORE))

    @property
    def truth_as_it_ran(self) -> float:
        """The planted ratio of total times."""
        one, many = self._slowness()
        one *= 1 + self.disturbed / self.ranks  # the single rank is on the first core in one of so many turns
        return self.speedup * one / (many * (1 + self.disturbed) * (1 + (SHARED_CORE - 1) * self.shared))

    def _slow_chances(self) -> tuple[float, float]:
        """Return the mean part of time that one core is slow, and that any of them is."""
        if self.fixed:
            return 1 / self.ranks, 1.0
        return self.slow_part, 1 - (1 - self.slow_part) ** self.ranks

    def _log_slowness(self) -> tuple[float, float]:
        one, many = self._slow_chances()
        return one * math.log(self.slow), many * math.log(self.slow)

    def _slowness(self) -> tuple[float, float]:
        one, many = self._slow_chances()
        return 1 + one * (self.slow - 1), 1 + many * (self.slow - 1)

    def speedup_of(self, ranks: int) -> float:
        """The planted speedup of fewer ranks on cores of the same speed."""
        return 1 + (self.speedup - 1) * (ranks - 1) / (self.ranks - 1)

    def block(self, rng: np.random.Generator, launches: Sequence[SimulatedLaunch] = ()) -> pd.DataFrame:
        """Return the turns of a block, with the columns of `harness.sweep.turn_block.BlockEnd`.

        By default of one rank and of all ranks.
        """
        rounds = np.arange(self.rounds)
        slowness = self._core_slowness(rng)
        busy = rng.random(self.rounds) < self.disturbed
        shared = rng.random(self.rounds) < self.shared
        drift = np.exp(np.cumsum(rng.normal(0, 0.01, self.rounds)))
        core = rounds % self.ranks
        tables = []
        for launch in launches or (SimulatedLaunch(ONE, 1), SimulatedLaunch(MANY, self.ranks)):
            if launch.ranks == 1:
                met, bound = busy & (core == 0), core.astype(str)
                times = self.speedup * slowness[rounds, core]
            else:
                met, bound = busy, np.full(self.rounds, ";".join(map(str, range(launch.ranks))))
                times = slowness[:, : launch.ranks].max(axis=1) * np.where(shared, SHARED_CORE, 1.0)
                times *= self.speedup / self.speedup_of(launch.ranks)
            times = times * np.where(met, 2.0, 1.0) * math.exp(rng.normal(0, self.start)) * launch.cost
            steps = 0.001 * drift * times * np.exp(rng.normal(0, self.noise, self.rounds))
            share = np.where(met, 0.5, 0.99) + rng.normal(0, 0.004, self.rounds)
            columns = {"round": rounds, "launch": launch.name, "steps": 50, "seconds": 50 * steps, "cores": share}
            tables.append(pd.DataFrame(columns | {"bound": bound, "core_ns": 200.0, "place": 0, "at_s": 0.1 * rounds}))
        return pd.concat(tables).sort_values("round", kind="stable", ignore_index=True)

    def _core_slowness(self, rng: np.random.Generator) -> np.ndarray:
        """Return how many times as long each core takes, [rounds, ranks]."""
        if self.fixed:
            slowness = np.ones((self.rounds, self.ranks))
            slowness[:, -1] = self.slow
            return slowness
        # A state is drawn anew in one round of `_STATE_ROUNDS`, of each core by itself.
        slow = rng.random((self.rounds, self.ranks)) < self.slow_part
        anew = rng.random((self.rounds, self.ranks)) < 1 / _STATE_ROUNDS
        for number in range(1, self.rounds):
            slow[number] = np.where(anew[number], slow[number], slow[number - 1])
        return np.where(slow, self.slow, 1.0)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What an estimator did on a machine: `bias` relative to the truth, `coverage` of its 95 % CIs, and blocks.

    `error` is the standard error of the bias.
    """

    bias: float
    error: float
    coverage: float
    blocks: float


def estimate(machine: Machine, count: int, seed: int = 0) -> tuple[Finding, Finding]:
    """Return what both estimators, undisturbed and including interference, do on `machine`: of `count` blocks."""
    rng = np.random.default_rng(seed)
    blocks = [read_turn_block(machine.block(rng)) for _ in range(count)]
    undisturbed = [_log_ratio(block.undisturbed) for block in blocks if block.undisturbed]
    as_it_ran = [_log_ratio(block.as_it_ran) for block in blocks]
    return (
        _finding(np.array(undisturbed), machine.undisturbed_truth, rng),
        _finding(np.array(as_it_ran), machine.truth_as_it_ran, rng),
    )


def _log_ratio(times: Mapping[str, float]) -> float:
    return math.log(times[ONE] / times[MANY])


def _finding(values: np.ndarray, truth: float, rng: np.random.Generator) -> Finding:
    """Return bias, and coverage of sweeps that are drawn of these blocks and end by the rule of `harness sweep`.

    Coverage is of the mean of all these blocks, so that their own error is not counted as the intervals'.
    """
    held, counts = [], []
    mean = math.exp(values.mean())
    for _ in range(1000):
        drawn = rng.choice(values, 80)
        wanted = FEWEST_BLOCKS
        while True:
            ratio = ratio_over_blocks(drawn[:wanted].tolist())
            assert ratio is not None
            reach = math.log(ratio.interval.high / ratio.interval.low) / 2
            more = EndRule().next_repeats(reach, wanted)
            more = EndRule().within_budget(more, wanted, _BLOCK_S * wanted, _BLOCK_S)
            if more <= wanted:
                break
            wanted = more
        held.append(ratio.interval.low <= mean <= ratio.interval.high)
        counts.append(wanted)
    return Finding(
        bias=math.exp(values.mean()) / truth - 1,
        error=float(values.std() / math.sqrt(len(values))),
        coverage=float(np.mean(held)),
        blocks=float(np.mean(counts)),
    )


def machines() -> Iterator[tuple[str, Machine]]:
    """Yield every machine of the table, by what is special about it."""
    for noise in (0.0, 0.02, 0.05, 0.1, 0.135, 0.2):
        yield f"noise {100 * noise:g} %", Machine(noise=noise)
    for ranks in (4, 8):
        yield f"{ranks} cores", Machine(ranks=ranks, speedup=0.8 * ranks)
    for ranks in (2, 4, 8):
        for slow in (1.1, 1.4):
            base = Machine(ranks=ranks, speedup=0.8 * ranks, slow=slow)
            yield f"{ranks} cores, one {slow:g} times as slow", replace(base, fixed=True)
            yield f"{ranks} cores, slow by {slow:g} for seconds", base
    for disturbed in (0.05, 0.2):
        yield f"others on one core in {disturbed:.0%} of rounds", Machine(disturbed=disturbed)
        yield f"4 cores, others on one in {disturbed:.0%}", Machine(ranks=4, speedup=3.2, disturbed=disturbed)
    for shared in (0.1, 0.5):
        yield f"two ranks on one physical core in {shared:.0%}", Machine(shared=shared)


if __name__ == "__main__":
    print(
        "| machine | truth | undisturbed: bias | coverage | blocks | including interference: truth | bias | coverage |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for title, machine in machines():
        undisturbed, as_it_ran = estimate(machine, 600)
        print(
            f"| {title} | {machine.undisturbed_truth:.3f} | {undisturbed.bias:+.2%} +-{2 * undisturbed.error:.2%} | "
            f"{undisturbed.coverage:.1%} | {undisturbed.blocks:.1f} | {machine.truth_as_it_ran:.3f} | "
            f"{as_it_ran.bias:+.2%} +-{2 * as_it_ran.error:.2%} | {as_it_ran.coverage:.1%} |",
            flush=True,
        )
