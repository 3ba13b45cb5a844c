"""Two variants that train in turns on a machine of known speeds: what `harness compare` makes of them.

python -m tests.truth.variant_simulation    the whole table: bias, coverage and decisions by noise and planted slowdown
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from harness.analysis.sessions import STEP
from harness.regression.change_threshold import DEFAULT_THRESHOLD
from harness.regression.launch_comparison import ALIKE, BETTER, OPEN, WORSE
from harness.regression.variant_samples import LOOKS, MEAN, BlockSample, TurnsStudy, block_samples, judge_samples
from harness.schema.layout import Layout
from tests.truth.turn_simulation import Machine, SimulatedLaunch

STUDY = TurnsStudy(layouts=(Layout(nodes=1), Layout(nodes=2)), steps=((100, 50), (100, 50)))
_COMPARISONS = 400  # drawn of the simulated blocks
_DECIDED = (BETTER, ALIKE)


@dataclass(frozen=True, kw_only=True)
class VariantFinding:
    """What comparisons say of a planted slowdown.

    `bias` is of the median and of the mean of rounds, as a part of a step's time, with its standard `error`.
    `coverage` is of Student's 95 % CI over six blocks. `verdicts` are parts of all comparisons, which end by the
    rule of `harness compare`.
    """

    bias: dict[str, float]
    error: float
    coverage: float
    verdicts: dict[str, float]


def examine(machine: Machine, slowdown: float, *, blocks: int, seed: int = 0) -> VariantFinding:
    """Return what comparisons with a variant that is `slowdown` slower say, drawn of so many simulated `blocks`."""
    rng = np.random.default_rng(seed)
    launches = [
        SimulatedLaunch("0-0", 1),
        SimulatedLaunch("0-1", machine.ranks),
        SimulatedLaunch("1-0", 1, 1 + slowdown),
        SimulatedLaunch("1-1", machine.ranks, 1 + slowdown),
    ]
    simulated = [block_samples([machine.block(rng, launches)], STUDY) for _ in range(blocks)]
    by_quantity = {
        quantity: np.array(
            [sample.blocks[0] for samples in simulated for sample in samples if sample.quantity == quantity]
        )
        for quantity in (STEP, STEP + MEAN)
    }
    planted = math.log1p(slowdown)
    verdicts: Counter[str] = Counter(_compare(simulated, rng) for _ in range(_COMPARISONS))
    values = by_quantity[STEP]
    return VariantFinding(
        bias={quantity: float(values.mean()) - planted for quantity, values in by_quantity.items()},
        error=float(values.std() / math.sqrt(len(values))),
        coverage=_coverage(values, rng),
        verdicts={verdict: count / _COMPARISONS for verdict, count in verdicts.items()},
    )


def _coverage(values: np.ndarray, rng: np.random.Generator) -> float:
    """Return how many of 1,000 intervals over six blocks hold the mean of all blocks."""
    from harness.analysis.confidence_intervals import ratio_over_blocks

    mean = math.exp(values.mean())
    held = 0
    for _ in range(1000):
        ratio = ratio_over_blocks(rng.choice(values, 6).tolist())
        assert ratio is not None
        held += ratio.interval.low <= mean <= ratio.interval.high
    return held / 1000


def _compare(simulated: list[tuple[BlockSample, ...]], rng: np.random.Generator) -> str:
    """Return the verdict of one comparison whose blocks are drawn of the simulated ones."""
    drawn = [simulated[number] for number in rng.integers(len(simulated), size=LOOKS[-1])]
    for count in LOOKS:
        verdicts = {row.verdict for row in judge_samples(_joined(drawn[:count]), DEFAULT_THRESHOLD) if row.decides}
        if WORSE in verdicts:
            return WORSE
        if OPEN not in verdicts:
            return next(verdict for verdict in _DECIDED if verdict in verdicts)
    return OPEN


def _joined(blocks: list[tuple[BlockSample, ...]]) -> tuple[BlockSample, ...]:
    """Return the samples of several blocks as those of one comparison."""
    joined = []
    for samples in zip(*blocks, strict=True):
        first = samples[0]
        joined.append(
            BlockSample(
                quantity=first.quantity,
                layout=first.layout,
                blocks=np.concatenate([sample.blocks for sample in samples]),
                rounds=np.concatenate([sample.rounds for sample in samples]),
                values=first.values,
                decides=first.decides,
            )
        )
    return tuple(joined)


def machines() -> dict[str, Machine]:
    """Return every machine of the table, by what is special about it."""
    return {
        "noise 2 %": Machine(noise=0.02),
        "noise 5 %": Machine(noise=0.05),
        "noise 13.5 %": Machine(),
        "noise 20 %": Machine(noise=0.2),
        "one core 1.4 times as slow": Machine(slow=1.4, fixed=True),
        "slow by 1.4 for seconds": Machine(slow=1.4),
        "others on one core in 20 % of rounds": Machine(disturbed=0.2),
        "two ranks on one physical core in 10 %": Machine(shared=0.1),
    }


if __name__ == "__main__":
    print("| machine | slower by | bias of medians | bias of means | error | coverage | slower | alike |")
    print("|---|---|---|---|---|---|---|---|")
    for title, machine in machines().items():
        for slowdown in (0.0, 0.05):
            finding = examine(machine, slowdown, blocks=300)
            shares = " | ".join(f"{finding.verdicts.get(verdict, 0):.1%}" for verdict in (WORSE, ALIKE))
            biases = " | ".join(f"{value:+.2%}" for value in finding.bias.values())
            print(
                f"| {title} | {slowdown:.0%} | {biases} | {finding.error:.2%} | {finding.coverage:.1%} | {shares} |",
                flush=True,
            )
