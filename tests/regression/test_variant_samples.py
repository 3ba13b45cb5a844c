"""What blocks of variants in turns say: what verdicts promise, by simulation, and what a block's turns are worth."""

import itertools
from statistics import median

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from harness.analysis.sessions import EFFICIENCY, STEP
from harness.regression.change_threshold import DEFAULT_THRESHOLD
from harness.regression.launch_comparison import ALIKE, BETTER, OPEN, WORSE
from harness.regression.variant_samples import LOOKS, MEAN, BlockSample, TurnsStudy, block_samples, judge_samples
from harness.schema.layout import Layout

LAYOUTS = (Layout(nodes=1), Layout(nodes=2))

BLOCK, ROUND = 0.009, 0.05  # standard deviations of log ratios: from start to start, and from round to round
ROUNDS = 100
COMPARISONS = 120


def simulated(
    random: np.random.Generator, loss: tuple[float, float], *, slow_part: float = 1.0, block: float = BLOCK
) -> tuple[str, int]:
    """Return the verdict and the blocks of a comparison on 1 and 2 ranks; a part of the steps is slower by `loss`."""
    shape = (LOOKS[-1], ROUNDS, 2)
    costs = random.normal(0, block, (LOOKS[-1], 1, 2)) + random.normal(0, ROUND, shape)
    costs[:, : round(slow_part * ROUNDS)] += np.log1p(np.array(loss))
    curves = {STEP: costs[..., 0], f"{STEP} 2": costs[..., 1]}
    verdict = OPEN
    for blocks in LOOKS:
        samples = [
            BlockSample(
                quantity=name + (MEAN if middle is np.mean else ""),
                layout=None,
                blocks=middle(curve[:blocks], axis=1),
                rounds=curve[:blocks].ravel(),
                values=(1.0, 1.0),
            )
            for name, curve in curves.items()
            for middle in (np.median, np.mean)
        ]
        verdicts = {row.verdict for row in judge_samples(samples, DEFAULT_THRESHOLD)}
        verdict = WORSE if WORSE in verdicts else OPEN if OPEN in verdicts else ALIKE
        if verdict != OPEN:
            break
    return verdict, blocks


def repeated(loss: tuple[float, float], **changes: float) -> list[tuple[str, int]]:
    """Return `simulated` comparisons, seeded."""
    random = np.random.default_rng(1)
    return [simulated(random, loss, **changes) for _ in range(COMPARISONS)]


@pytest.mark.parametrize("block", [0.0, BLOCK, 0.03])
def test_the_same_stack_is_named_slower_in_fewer_than_one_of_twenty_comparisons(block: float) -> None:
    alarms = sum(verdict == WORSE for verdict, _ in repeated((0.0, 0.0), block=block))
    assert float(binomtest(alarms, COMPARISONS, 0.05, alternative="greater").pvalue) > 0.01


def test_the_same_stack_is_mostly_alike_within_eight_blocks() -> None:
    passed = [blocks for verdict, blocks in repeated((0.0, 0.0)) if verdict == ALIKE]
    assert sum(blocks <= 8 for blocks in passed) >= 0.8 * COMPARISONS


def test_a_slowdown_of_five_percent_is_found_within_four_blocks_in_the_median() -> None:
    found = repeated((0.05, 0.05))
    assert sum(verdict == WORSE for verdict, _ in found) >= 0.95 * COMPARISONS
    assert median(blocks for _, blocks in found) <= 4


def test_a_slowdown_of_five_percent_on_two_ranks_alone_is_found() -> None:
    assert sum(verdict == WORSE for verdict, _ in repeated((0.0, 0.05))) >= 0.95 * COMPARISONS


def test_two_of_five_epochs_slower_are_found_which_no_median_shows() -> None:
    assert sum(verdict == WORSE for verdict, _ in repeated((0.3, 0.3), slow_part=0.4)) >= 0.95 * COMPARISONS


def test_a_sure_slowdown_below_the_practical_size_is_none() -> None:
    random = np.random.default_rng(2)
    rounds = random.normal(0.0175, 0.01, (8, 50))
    sample = BlockSample(
        quantity=STEP, layout=LAYOUTS[0], blocks=np.median(rounds, axis=1), rounds=rounds.ravel(), values=(1.0, 1.02)
    )
    (row,) = judge_samples([sample], DEFAULT_THRESHOLD)
    assert row.verdict == ALIKE
    assert row.interval is not None and 0.01 < row.interval.low < 0.0175 < row.interval.high < 0.025


def test_blocks_that_the_rounds_do_not_bear_out_are_no_difference() -> None:
    """Three medians near each other may be chance, if the rounds lie on both sides of 0."""
    rounds = np.concatenate([np.full(20, 0.06), np.full(19, -0.5)])
    sample = BlockSample(
        quantity=STEP,
        layout=None,
        blocks=np.array([0.06, 0.0601, 0.0599]),
        rounds=np.tile(rounds, 3),
        values=(1.0, 1.0),
    )
    assert judge_samples([sample], DEFAULT_THRESHOLD)[0].verdict == OPEN
    gain = BlockSample(quantity=STEP, layout=None, blocks=-sample.blocks, rounds=-np.full(60, 0.06), values=(1.0, 1.0))
    assert judge_samples([gain], DEFAULT_THRESHOLD)[0].verdict == BETTER


def test_two_blocks_decide_nothing() -> None:
    sample = BlockSample(
        quantity=STEP, layout=None, blocks=np.array([0.5, 0.5]), rounds=np.full(100, 0.5), values=(1.0, 1.5)
    )
    (row,) = judge_samples([sample], DEFAULT_THRESHOLD)
    assert (row.verdict, row.interval) == (OPEN, None)


def turns(rounds: int, seconds: dict[str, float], *, slow: dict[str, float] | None = None) -> pd.DataFrame:
    """Return a block's turns: `seconds` a step of each launch, in the first two of five parts times its `slow`."""
    rows = [
        {
            "round": number,
            "launch": launch,
            "place": place,
            "steps": 20,
            "cores": 1.0,
            "at_s": 0.1 * number,
            "seconds": 20
            * step
            * ((slow or {}).get(launch, 1.0) if number < 0.4 * rounds else 1.0)
            * (1 + 0.2 * (number % 3)),  # which falls on all of a round
        }
        for number, (place, (launch, step)) in itertools.product(range(rounds), enumerate(seconds.items()))
    ]
    return pd.DataFrame(rows)


STUDY = TurnsStudy(layouts=LAYOUTS, steps=((100, 50), (100, 50)))
SECONDS = {"0-0": 0.001, "0-1": 0.0011, "1-0": 0.001, "1-1": 0.00121}


def test_what_differs_is_found_within_rounds_at_each_layout_and_over_the_curve() -> None:
    found = {(one.quantity, one.layout): one for one in block_samples([turns(30, SECONDS)] * 3, STUDY)}
    assert [one.decides for one in found.values()] == [True] * 4 + [False]
    on_two, curve = found[STEP, LAYOUTS[1]], found[EFFICIENCY, None]
    assert found[STEP, LAYOUTS[0]].blocks == pytest.approx([0, 0, 0])
    assert on_two.blocks == pytest.approx([np.log(1.1)] * 3) and curve.blocks == pytest.approx([np.log(1.1)] * 3)
    assert len(on_two.rounds) == 90 and np.ptp(on_two.rounds) == pytest.approx(0)
    assert curve.values == pytest.approx((1 / 1.1, 1 / 1.21))


def test_the_mean_of_all_steps_has_the_slow_epochs_and_the_median_has_not() -> None:
    same = dict.fromkeys(SECONDS, 0.001)
    blocks = [turns(60, same, slow={"1-0": 1.3})] * 3
    found = {one.quantity: one for one in block_samples(blocks, STUDY) if one.layout == LAYOUTS[0]}
    assert found[STEP].blocks == pytest.approx([0, 0, 0])
    assert found[STEP + MEAN].blocks == pytest.approx([np.log(1.12)] * 3, rel=0.1)


def test_more_steps_in_an_epoch_count_as_slower() -> None:
    twice = TurnsStudy(layouts=LAYOUTS[:1], steps=((100,), (200,)))
    (first, _) = block_samples([turns(30, SECONDS)] * 3, twice)
    assert first.blocks == pytest.approx([np.log(2)] * 3)


def test_long_steps_have_turns_of_three_which_count() -> None:
    few = turns(30, SECONDS).assign(steps=3)
    assert len(block_samples([few] * 3, STUDY)[0].rounds) == 90


def test_several_variants_share_the_error() -> None:
    """The interval of one of three comparisons is wider than that of the only one."""
    rounds = np.random.default_rng(3).normal(0, 0.01, (6, 50))
    sample = BlockSample(quantity=STEP, layout=None, blocks=rounds.mean(axis=1), rounds=rounds.ravel(), values=(1, 1))
    (alone,), (shared,) = (judge_samples([sample], DEFAULT_THRESHOLD, comparisons=count) for count in (1, 3))
    assert alone.interval and shared.interval
    assert shared.interval.low < alone.interval.low < alone.interval.high < shared.interval.high


def test_each_variant_is_set_beside_the_first() -> None:
    three = turns(30, SECONDS | {"2-0": 0.002, "2-1": 0.0011})
    study = TurnsStudy(layouts=LAYOUTS, steps=((100, 50), (100, 50)), variant=2)
    found = {(one.quantity, one.layout): one for one in block_samples([three] * 3, study)}
    assert found[STEP, LAYOUTS[0]].blocks == pytest.approx([np.log(2)] * 3)
    assert found[STEP, LAYOUTS[1]].blocks == pytest.approx([0] * 3)


def test_blocks_without_a_round_that_both_share_say_nothing() -> None:
    first_alone = turns(30, {"0-0": 0.001, "0-1": 0.001})
    samples = block_samples([first_alone] * 3, STUDY)
    assert samples == () and judge_samples(samples, DEFAULT_THRESHOLD) == ()
