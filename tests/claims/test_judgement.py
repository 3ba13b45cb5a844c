"""Verdicts on claims: none says more than comparable launches show, and planted records give the held ones."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.base.files import resource
from harness.claims.claim_evidence import ClaimEvidence, gather
from harness.claims.judgement import CONFIRMED, ERRATUM, REFUTED, UNKNOWN, Judgement, judge_claim
from harness.schema.claim import CLAIMS_FILE, Claim, read_published
from harness.schema.record import RunRecord
from tests.labs.claim_sweeps import before, exchanging, lasting, losing, scoring, sweep, weights
from tests.labs.factories import make_turn_block, write_run
from tests.labs.sentences import says

HELD = Path(__file__).parents[1] / "data/claim-verdicts.json"
CLAIMS = read_published(resource(CLAIMS_FILE)).claims
WIDE = {"model": "mine:wide", "change": weights(2_000_000)}
CIFAR = {"dataset": "cifar10"}
ACOUSTIC = {"dataset": "acoustic"}
IMAGES = {"dataset": "imagenet", "model": "resnet50", "sync": "gradients", "kind": "synthetic"}
SCENARIOS: dict[str, Callable[[], Sequence[ClaimEvidence]]] = {
    "nothing": lambda: [],
    "mnist to 32": lambda: [sweep({1: 23.2, 2: 12.0, 32: 2.0})],
    "mnist to 32, less": lambda: [sweep({1: 20.0, 2: 12.0, 32: 4.0})],
    "mnist to 32, slower": lambda: [sweep({1: 20.0, 2: 12.0, 32: 24.0})],
    "mnist to 32, at the edge": lambda: [sweep({1: 20.9, 32: 2.0})],
    "mnist to 32, few": lambda: [sweep({1: 23.2, 32: 2.0}, launches=2)],
    "mnist of 2": lambda: [sweep(SCALES, change=before(compile_s=1.0))],
    "mnist of 1": lambda: [sweep({1: 2.0})],
    "mnist, an epoch loses": lambda: [sweep({1: 1.0, 2: 1.1}, change=before(compile_s=1.0))],
    "mnist, few": lambda: [sweep(SCALES, launches=2, change=before(compile_s=1.0))],
    "mnist, few rows": lambda: [sweep(SCALES, rows=320)],
    "mnist, half of the rows": lambda: [sweep(SCALES, rows=30_000, kind="synthetic", sync="gradients", wire="bf16")],
    "mnist, no sync": lambda: [sweep(SCALES, sync="none")],
    "mnist, own policy": lambda: [sweep(SCALES, sync="mine:Policy")],
    "mnist, two threads": lambda: [sweep(SCALES, layout={"threads": 2})],
    "mnist, weak": lambda: [sweep(SCALES, scaling="weak", samples=60_000)],
    "cnn, equal rows": lambda: [sweep({16: 8.0, 64: 4.17}, model="cnn")],
    "cnn, fixed time": lambda: [
        sweep({16: 8.0, 64: 4.17}, change=lasting({16: 8, 64: 15}), model="cnn", epochs=20, seconds=60.0)
    ],
    "cnn, fixed time, more": lambda: [
        sweep({16: 8.0, 64: 2.5}, change=lasting({16: 8, 64: 20}), model="cnn", epochs=20, seconds=60.0)
    ],
    "adult gains": lambda: [sweep({5: 8.0, 10: 4.5, 40: 2.0}, dataset="adult")],
    "adult loses": lambda: [sweep({5: 8.0, 10: 3.0, 40: 4.0}, dataset="adult")],
    "adult stays": lambda: [sweep({5: 8.0, 10: 4.5, 20: 4.5, 40: 2.0}, dataset="adult")],
    "adult to 10": lambda: [sweep({5: 8.0, 10: 4.5}, dataset="adult")],
    "acoustic tapers": lambda: [sweep({1: 32.0, 16: 2.4, 32: 1.3, 40: 1.29}, **ACOUSTIC)],  # type: ignore[arg-type]
    "acoustic is steeper": lambda: [sweep({1: 32.0, 16: 2.4, 32: 1.9, 40: 1.2}, **ACOUSTIC)],  # type: ignore[arg-type]
    "acoustic goes on": lambda: [sweep({1: 32.0, 16: 2.4, 32: 1.3, 40: 1.1}, **ACOUSTIC)],  # type: ignore[arg-type]
    "acoustic without 32": lambda: [sweep({1: 32.0, 16: 2.4, 40: 1.1}, **ACOUSTIC)],  # type: ignore[arg-type]
    "acoustic, few": lambda: [sweep({1: 32.0, 16: 2.4, 32: 1.3, 40: 1.2}, launches=2, dataset="acoustic")],
    "cifar, cnn modest": lambda: [
        sweep({4: 80.0, 64: 40.0}, model="cnn", dataset="cifar10"),
        sweep({4: 8.0, 64: 1.0}, dataset="cifar10"),
    ],
    "cifar, cnn better": lambda: [
        sweep({4: 80.0, 64: 6.0}, model="cnn", dataset="cifar10"),
        sweep({4: 8.0, 64: 1.0}, dataset="cifar10"),
    ],
    "cifar, cnn as good": lambda: [
        sweep({4: 80.0, 64: 10.0}, model="cnn", dataset="cifar10"),
        sweep({4: 8.0, 64: 1.0}, dataset="cifar10"),
    ],
    "cifar, cnn alone": lambda: [sweep({4: 80.0, 64: 40.0}, model="cnn", dataset="cifar10")],
    "cifar, dnn alone": lambda: [sweep({4: 80.0, 64: 40.0}, dataset="cifar10")],
    "cifar dnn to 64": lambda: [sweep({16: 33.7, 64: 10.0}, dataset="cifar10")],
    "cifar, in an hour": lambda: [sweep({2: 60.0}, change=scoring(0.56), **CIFAR)],  # type: ignore[arg-type]
    "cifar, in vain": lambda: [sweep({2: 2000.0}, change=scoring(0.50), **CIFAR)],  # type: ignore[arg-type]
    "cifar, too late": lambda: [sweep({2: 4000.0}, change=scoring(0.56), **CIFAR)],  # type: ignore[arg-type]
    "cifar, not yet": lambda: [sweep({2: 60.0}, change=scoring(0.50), **CIFAR)],  # type: ignore[arg-type]
    "cifar, few": lambda: [sweep({2: 60.0}, launches=2, change=scoring(0.56), dataset="cifar10")],
    "cifar, synthetic": lambda: [sweep({2: 60.0}, change=scoring(0.56), kind="synthetic", dataset="cifar10")],
    "cifar, on one of two": lambda: [sweep({1: 4000.0, 2: 60.0}, change=scoring(0.56), dataset="cifar10")],
    "higgs": lambda: [sweep({20: 26.0, 80: 10.0}, dataset="higgs")],
    "larger gains": lambda: [sweep({1: 2.0, 2: 1.2}), sweep({1: 8.0, 2: 4.4}, **WIDE)],  # type: ignore[arg-type]
    "larger gains less": lambda: [sweep({1: 2.0, 2: 1.2}), sweep({1: 8.0, 2: 6.5}, **WIDE)],  # type: ignore[arg-type]
    "larger at the edge": lambda: [sweep({1: 2.0, 2: 1.2}), sweep({1: 8.0, 2: 5.3}, **WIDE)],  # type: ignore[arg-type]
    "smaller": lambda: [sweep({1: 2.0, 2: 1.2}), sweep({1: 8.0, 2: 4.4}, model="mine:narrow", change=weights(1_000))],
    "reading, minor": lambda: [reading(0.1), reading(0.2, 0.2, distribution="scatter")],
    "reading, major": lambda: [reading(0.1), reading(0.2, 9.0, distribution="scatter")],
    "reading, few": lambda: [reading(0.1), reading(0.0, 0.2, distribution="scatter", launches=3)],
    "reading, busy": lambda: [busy_reading(), busy_reading(distribution="scatter")],
    "reading, alone": lambda: [reading(0.2, 0.2, distribution="scatter")],
    "exchange is the same": lambda: [sweep({2: 4.0, 4: 2.0}, change=exchanging({2: 0.02, 4: 0.021}))],
    "exchange falls": lambda: [sweep({2: 4.0, 4: 2.0}, change=exchanging({2: 0.02, 4: 0.01}))],
    "computation stays": lambda: [sweep({2: 4.0, 4: 3.5}, change=exchanging({2: 0.02, 4: 0.021}))],
    "exchange, few": lambda: [sweep({2: 4.0, 4: 2.0}, launches=2, change=exchanging({2: 0.02, 4: 0.02}))],
    "exchange each step": lambda: [sweep({2: 4.0, 4: 2.0}, sync="gradients")],
    "exchange, one and more": lambda: [
        sweep({1: 8.0, 2: 4.0}),
        sweep({1: 8.0, 2: 4.0, 4: 2.0}, change=exchanging({1: 0.001, 2: 0.02, 4: 0.021}), samples=60_000),
    ],
    "losses alike": lambda: [same_batches(0.3001)],
    "losses apart": lambda: [same_batches(0.36), same_batches(0.3, sync="gradients")],
    "losses of gradients": lambda: [same_batches(0.3, sync="gradients")],
    "losses, few": lambda: [sweep(SCALES, launches=3, change=losing({1: 0.3, 2: 0.3001}), global_batch=64)],
    "resnet": lambda: [sweep({1: 1000.0, 2: 543.0, 4: 277.0, 8: 160.0}, change=images(224), **IMAGES)],  # type: ignore[arg-type]
    "resnet, small": lambda: [sweep({1: 1000.0, 2: 543.0}, change=images(96), **IMAGES)],  # type: ignore[arg-type]
    "resnet, short": lambda: [
        sweep({1: 10.0, 2: 5.4}, change=images(224), rows=320, batch_per_rank=16, **IMAGES)  # type: ignore[arg-type]
    ],
    "resnet on GPUs": lambda: [
        sweep({1: 100.0, 2: 59.2, 4: 45.0}, change=images(224), layout={"gpus_per_rank": 1}, **IMAGES)  # type: ignore[arg-type]
    ],
}
SERVERS = {
    "slower": (20.0, 30.0),
    "faster": (110.0,),
    "alike": (98.0,),
    "one slower": (20.0, 98.0),
}

LEDGER = read_published(resource(CLAIMS_FILE))
PAPER_B = {
    "AlexNet": ([1.94, 3.40, 6.32, 10.9], [1.37, 1.93]),
    "GoogLeNet": ([1.84, 3.57, 7.25, 14.7], [1.87, 3.21]),
    "InceptionV3": ([1.87, 3.57, 7.29, 14.5], [1.70, 2.77]),
    "ResNet-50": ([1.84, 3.61, 7.60, 15.3], [1.69, 2.67]),
}


def ledger(metric: str, experiment: str = "") -> Claim:
    """Return the one claim of paper A with this metric, about this experiment."""
    (found,) = [c for c in LEDGER.of("A", experiment) if c.metric == metric and not c.erratum]
    return found


def claim(value: float | None = 1.9, **changes: Any) -> Claim:
    """Return a claim about MNIST-DNN on 2 cores over 1."""
    return replace(ledger("speedup", "mnist-dnn"), **({"value": value, "base": 1, "count": 2} | changes))


def outcome(asked: Claim, *evidence: ClaimEvidence) -> str:
    return judge_claim(asked, evidence, pd.DataFrame()).finding.outcome


@pytest.mark.parametrize(
    ("asked", "seconds", "launches", "expected"),
    [
        (claim(1.9), {1: 2.0, 2: 1.05}, 6, CONFIRMED),
        (claim(1.5), {1: 2.0, 2: 1.05}, 6, REFUTED),  # faster, by another factor
        (claim(1.9), {1: 1.0, 2: 1.2}, 6, REFUTED),  # slower
        (claim(1.9), {1: 1.0, 2: 1.0}, 6, REFUTED),  # either way, and not 1.9 times
        (claim(1.85), {1: 2.0, 2: 1.05}, 6, CONFIRMED),  # nearer than a tenth
        (claim(1.75), {1: 2.0, 2: 1.05}, 6, UNKNOWN),  # the interval has a part that is farther
        (claim(1.02), {1: 1.0, 2: 1.0}, 6, UNKNOWN),  # the interval holds 1 and 1.02
        (claim(1.9), {1: 2.0, 2: 1.05}, 2, UNKNOWN),  # a point has no direction
        (claim(None), {1: 2.0, 2: 1.05}, 6, CONFIRMED),
        (claim(11.6, count=32), {1: 2.0, 2: 1.05}, 6, UNKNOWN),
        (claim(2.97, erratum="impossible"), {1: 2.0, 2: 1.05}, 6, ERRATUM),
    ],
)
def test_a_speedup_is_judged_by_its_interval(
    asked: Claim, seconds: dict[int, float], launches: int, expected: str
) -> None:
    assert outcome(asked, sweep(seconds, launches=launches)) == expected


SCALES = {1: 2.0, 2: 1.05}


def in_turns(found: ClaimEvidence, seconds: np.ndarray) -> ClaimEvidence:
    """Return `found` with these seconds of an epoch, as if every repeat had trained in turns."""
    launches = found.launches.assign(seconds=seconds)
    steps = launches["seconds"] / launches["steps"]
    blocks = {
        repeat: make_turn_block({run: steps[row] for row, run in group.sort_values("ranks")["run"].items()})
        for repeat, group in launches.groupby("repeat")
    }
    in_blocks = launches.assign(turn_block=launches["repeat"].map(blocks), ran_seconds=launches["seconds"])
    return replace(found, launches=in_blocks)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("launches", "turns", "true", "noise", "confirmed", "refuted"),
    [
        (6, False, 1.6, 0.05, (0.0, 0.05), (0.0, 1.0)),
        (6, False, 1.6, 0.15, (0.0, 0.05), (0.0, 1.0)),  # it was confirmed in half of them
        (6, False, 1.7, 0.03, (0.0, 0.05), (0.0, 1.0)),  # just outside
        (6, False, 1.8, 0.01, (0.9, 1.0), (0.0, 0.0)),  # it was refuted always
        (6, False, 1.9, 0.03, (0.8, 1.0), (0.0, 0.0)),
        (3, True, 1.6, 0.013, (0.0, 0.0), (0.7, 1.0)),
        (3, True, 1.7, 0.013, (0.0, 0.05), (0.0, 1.0)),
        (3, True, 1.9, 0.013, (0.8, 1.0), (0.0, 0.0)),  # what blocks scatter by on 2 cores
    ],
)
def test_false_verdicts_are_rare_and_true_ones_are_not(
    launches: int,
    turns: bool,
    true: float,
    noise: float,
    confirmed: tuple[float, float],
    refuted: tuple[float, float],
) -> None:
    """A claim of 1.9 where `true` is. A launch's time scatters by `noise`, in turns a block's ratio; blocks drift."""
    found, random, outcomes = sweep(SCALES, launches=launches), np.random.default_rng(7), []
    ranks, repeats = (found.launches[name].to_numpy() for name in ("ranks", "repeat"))
    for _ in range(100):
        own = random.normal(0, noise / np.sqrt(2) if turns else noise, len(ranks)) + random.normal(0, 0.1, 9)[repeats]
        seconds = np.where(ranks == 1, 2.0, 2.0 / true) * np.exp(own)
        other = in_turns(found, seconds) if turns else replace(found, launches=found.launches.assign(seconds=seconds))
        outcomes.append(outcome(claim(1.9), other))
    assert confirmed[0] <= outcomes.count(CONFIRMED) / 100 <= confirmed[1]
    assert refuted[0] <= outcomes.count(REFUTED) / 100 <= refuted[1]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.analysis.confidence_intervals.RESAMPLES", 999)


def test_rounds_of_turns_are_of_epochs_and_of_nothing_else() -> None:
    own = sweep(SCALES, change=before(compile_s=1.0))
    turns = in_turns(own, own.launches["seconds"].to_numpy())
    said = judge_claim(ledger("speedup-of-an-epoch-beside-the-start"), [turns], pd.DataFrame()).finding.reason
    part = says(said, "an epoch gains").partition("before it ")[2]
    assert part.startswith("1.00")  # it was the epoch's ratio, for rounds have no other


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sync": "none"}, "do not train one model"),
        ({"sync": "mine:Policy"}, "not an algorithm of the papers"),
        ({"sync": "diloco:epoch"}, "not an algorithm of the papers"),
        ({"scaling": "weak", "samples": 60_000}, "weak scaling"),
        ({"model": "mine:dnn"}, "another network"),
        ({"rows": 320}, "320 of 60,000 rows"),
        ({"layout": {"threads": 2}}, "2 cores"),
    ],
)
def test_a_sweep_of_another_question_is_refused_and_changes_no_verdict(settings: dict[str, Any], reason: str) -> None:
    other = sweep({1: 1.0, 2: 1.0}, **settings)
    alone = judge_claim(claim(), [other], pd.DataFrame()).finding
    assert alone.outcome == UNKNOWN and reason in alone.reason
    own = sweep(SCALES)
    for order in ([own, other], [other, own]):
        both = judge_claim(claim(), order, pd.DataFrame())
        assert both.finding.outcome == CONFIRMED and both.finding.used == (own,)
        assert both == judge_claim(claim(), [own], pd.DataFrame())


def test_what_differs_stands_in_the_verdict() -> None:
    cut = sweep(SCALES, rows=30_000, kind="synthetic", sync="gradients", wire="bf16")
    found = judge_claim(claim(), [cut], pd.DataFrame())
    assert found.finding.outcome == CONFIRMED
    told = "; ".join(found.differences)
    for part in ("30,000 of 60,000 rows", "synthetic", "--sync gradients instead of weights:epoch", "one host", "bf16"):
        assert part in told


def test_of_several_sweeps_the_one_that_differs_least_answers() -> None:
    newer, own = sweep({1: 2.0, 2: 1.6}, sync="gradients"), sweep(SCALES)
    assert judge_claim(claim(), [newer, own], pd.DataFrame()).finding.used == (own,)
    fewer = sweep({1: 2.0})  # the paper's algorithm, and not on 2 ranks
    assert judge_claim(claim(), [fewer, newer], pd.DataFrame()).finding.used == (newer,)


def test_without_a_valid_launch_nothing_is_measured_and_the_reason_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = sweep({1: 2.0}, launches=1).runs[0]
    reason = "other processes kept 1.5 of 2 cores busy"
    write_run(tmp_path / "busy", replace(run, invalid=(reason,)))
    assert gather([tmp_path / "busy", tmp_path / "absent"]) == ()
    assert reason in caplog.text and "absent" in caplog.text
    assert outcome(claim()) == UNKNOWN


def test_benefits_on_each_configuration_are_every_step_up() -> None:
    asked = ledger("speedup-of-each-step", "adult-dnn")
    adult = {"dataset": "adult"}
    assert outcome(asked, sweep({5: 8.0, 10: 4.5, 40: 2.0}, **adult)) == CONFIRMED
    assert outcome(asked, sweep({5: 8.0, 10: 3.0, 40: 4.0}, **adult)) == REFUTED  # 40 over 5 is a gain all the same
    assert outcome(asked, sweep({5: 8.0, 10: 4.5, 20: 4.5, 40: 2.0}, **adult)) == UNKNOWN
    assert outcome(asked, sweep({5: 8.0, 10: 4.5}, **adult)) == UNKNOWN
    assert outcome(asked, sweep({5: 8.0, 40: 2.0}, sync="none", **adult)) == UNKNOWN


def test_tapering_is_a_change_of_slope_at_32_cores() -> None:
    asked = ledger("speedup-and-slope", "acoustic-dnn")
    acoustic = {"dataset": "acoustic"}
    assert outcome(asked, sweep({1: 32.0, 16: 2.4, 32: 1.3, 40: 1.29}, **acoustic)) == CONFIRMED
    assert outcome(asked, sweep({1: 32.0, 16: 2.4, 32: 1.9, 40: 1.2}, **acoustic)) == REFUTED  # steeper behind it
    assert outcome(asked, sweep({1: 32.0, 16: 2.4, 32: 1.3, 40: 1.1}, **acoustic)) == UNKNOWN
    assert outcome(asked, sweep({1: 32.0, 16: 2.4, 40: 1.1}, **acoustic)) == UNKNOWN  # nothing at 32
    assert outcome(asked, sweep({1: 32.0, 16: 2.4, 32: 1.3, 40: 1.3}, scaling="weak", samples=78_823, **acoustic)) == (
        UNKNOWN
    )


def test_modest_is_less_than_the_dnn() -> None:
    asked = ledger("speedup-beside-another", "cifar10-cnn")
    dnn = sweep({4: 8.0, 64: 1.0}, dataset="cifar10")
    cnn = {"dataset": "cifar10", "model": "cnn"}
    assert outcome(asked, sweep({4: 80.0, 64: 40.0}, **cnn), dnn) == CONFIRMED
    assert outcome(asked, sweep({4: 80.0, 64: 6.0}, **cnn), dnn) == REFUTED
    assert outcome(asked, sweep({4: 80.0, 64: 10.0}, **cnn), dnn) == UNKNOWN
    assert outcome(asked, sweep({4: 80.0, 64: 40.0}, **cnn)) == UNKNOWN  # no DNN to be unlike
    assert outcome(asked, sweep({4: 80.0, 64: 40.0}, **cnn), sweep({4: 8.0}, dataset="cifar10")) == UNKNOWN
    assert outcome(asked, sweep({4: 80.0, 64: 40.0}, sync="none", **cnn)) == UNKNOWN


def test_larger_architectures_are_wider_networks_on_the_same_rows() -> None:
    asked = ledger("speedup-of-larger-networks")
    own = sweep({1: 2.0, 2: 1.2})
    wide = {"model": "mine:wide", "change": weights(2_000_000)}
    assert outcome(asked, own, sweep({1: 8.0, 2: 4.4}, **wide)) == CONFIRMED
    assert outcome(asked, own, sweep({1: 8.0, 2: 6.5}, **wide)) == REFUTED
    assert outcome(asked, own, sweep({1: 8.0, 2: 5.3}, **wide)) == UNKNOWN
    assert outcome(asked, own) == UNKNOWN
    assert outcome(asked, own, sweep({1: 8.0, 2: 4.4}, model="mine:narrow", change=weights(1_000))) == UNKNOWN
    assert outcome(asked, sweep({1: 2.0, 2: 1.2}, sync="none")) == UNKNOWN


def test_more_epochs_gain_more_where_an_epoch_gains_more_than_what_comes_before() -> None:
    asked = ledger("speedup-of-an-epoch-beside-the-start")
    assert outcome(asked, sweep(SCALES, change=before(compile_s=1.0))) == CONFIRMED
    same = sweep({1: 1.0, 2: 1.1}, change=before(compile_s=1.0))  # an epoch loses: more of them lose more
    assert outcome(asked, same) == REFUTED
    assert outcome(asked, sweep(SCALES, launches=2)) == UNKNOWN
    assert outcome(asked, sweep({1: 2.0})) == UNKNOWN
    assert outcome(asked, sweep(SCALES, rows=320)) == UNKNOWN


def test_reading_by_rank_0_is_minor_beside_the_training() -> None:
    asked = ledger("extra-reading-of-training")
    parallel = sweep({1: 20.0, 2: 10.5}, change=before(load_s=0.1))
    minor = sweep({1: 20.0, 2: 10.5}, distribution="scatter", change=before(load_s=0.2, distribute_s=0.2))
    major = sweep({1: 20.0, 2: 10.5}, distribution="scatter", change=before(load_s=0.2, distribute_s=9.0))
    assert outcome(asked, parallel, minor) == CONFIRMED
    assert outcome(asked, parallel, major) == REFUTED
    few = sweep({1: 20.0, 2: 10.5}, launches=3, distribution="scatter", change=before(distribute_s=0.2))
    random = np.random.default_rng(1)

    def busy(run: RunRecord) -> RunRecord:  # what reading in parallel takes is not known by its median
        took = float(random.choice([0.1, 4.0]))
        return replace(run, ranks=tuple(replace(rank, load_s=took) for rank in run.ranks))

    scattered = sweep({1: 20.0, 2: 10.5}, change=busy)
    assert outcome(asked, scattered, sweep({1: 20.0, 2: 10.5}, distribution="scatter", change=busy)) == UNKNOWN
    assert outcome(asked, parallel, few) == UNKNOWN
    assert outcome(asked, parallel) == UNKNOWN
    assert outcome(asked, sweep(SCALES, distribution="scatter", rows=320)) == UNKNOWN


def test_the_exchange_is_the_same_for_all_rank_counts_and_the_work_is_not() -> None:
    asked = ledger("computation-and-exchange")
    assert outcome(asked, sweep({2: 4.0, 4: 2.0}, change=exchanging({2: 0.02, 4: 0.021}))) == CONFIRMED
    assert outcome(asked, sweep({2: 4.0, 4: 2.0}, change=exchanging({2: 0.02, 4: 0.01}))) == REFUTED
    assert outcome(asked, sweep({2: 4.0, 4: 3.5}, change=exchanging({2: 0.02, 4: 0.021}))) == REFUTED  # no m/p
    assert outcome(asked, sweep({2: 4.0, 4: 2.0}, launches=2, change=exchanging({2: 0.02, 4: 0.02}))) == UNKNOWN
    assert outcome(asked, sweep({1: 8.0, 2: 4.0})) == UNKNOWN  # one rank exchanges nothing
    assert outcome(asked, sweep({2: 4.0, 4: 2.0}, sync="gradients")) == UNKNOWN
    alone_too = sweep({1: 8.0, 2: 4.0, 4: 2.0}, change=exchanging({1: 0.0, 2: 0.02, 4: 0.021}))
    assert outcome(asked, alone_too) == CONFIRMED
    assert outcome(asked, sweep({2: 4.0, 4: 2.0}, sync="none")) == UNKNOWN


def test_an_accuracy_is_claimed_within_an_hour_on_real_rows() -> None:
    asked = ledger("launches-that-reach-an-accuracy", "cifar10-dnn")
    cifar = {"dataset": "cifar10"}
    assert outcome(asked, sweep({2: 60.0}, change=scoring(0.56), **cifar)) == CONFIRMED
    assert outcome(asked, sweep({2: 2000.0}, change=scoring(0.50), **cifar)) == REFUTED  # more than an hour, in vain
    assert outcome(asked, sweep({2: 4000.0}, change=scoring(0.56), **cifar)) == REFUTED  # too late
    assert outcome(asked, sweep({2: 60.0}, change=scoring(0.50), **cifar)) == UNKNOWN  # trained three minutes
    few = judge_claim(asked, [sweep({2: 60.0}, launches=2, change=scoring(0.56), **cifar)], pd.DataFrame()).finding
    assert few.outcome == UNKNOWN
    says(few.missing, "more launches", 4)
    assert outcome(asked, sweep({2: 60.0}, change=scoring(0.56), kind="synthetic", **cifar)) == UNKNOWN
    assert outcome(asked) == UNKNOWN


def test_a_fixed_time_is_judged_by_the_rows_trained_in_it() -> None:
    asked = ledger("rows-in-equal-time", "mnist-cnn")
    cnn = {"model": "cnn", "epochs": 20, "seconds": 60.0}
    fixed = sweep({16: 8.0, 64: 4.17}, change=lasting({16: 8, 64: 15}), **cnn)
    assert outcome(asked, fixed) == CONFIRMED
    assert outcome(asked, sweep({16: 8.0, 64: 2.5}, change=lasting({16: 8, 64: 20}), **cnn)) == REFUTED
    rows = judge_claim(asked, [sweep({16: 8.0, 64: 4.17}, model="cnn")], pd.DataFrame())
    assert rows.finding.outcome == CONFIRMED and any("equal" in said for said in rows.differences)
    assert not any("equal" in said for said in judge_claim(asked, [fixed], pd.DataFrame()).differences)
    assert outcome(asked, sweep({16: 8.0, 64: 4.17}, launches=2, model="cnn")) == UNKNOWN
    assert outcome(asked, sweep({16: 8.0, 64: 4.17}, model="cnn", sync="none")) == UNKNOWN


def test_averaging_weights_is_equivalent_only_with_equal_losses() -> None:
    asked = ledger("loss-difference")
    same = {"global_batch": 64}
    assert outcome(asked, sweep(SCALES, change=losing({1: 0.3, 2: 0.3001}), **same)) == CONFIRMED
    apart = sweep(SCALES, change=losing({1: 0.3, 2: 0.36}), **same)
    gradients = sweep(SCALES, sync="gradients", change=losing({1: 0.3, 2: 0.3}), **same)
    found = judge_claim(asked, [gradients, apart], pd.DataFrame()).finding
    assert found.outcome == REFUTED
    says(found.reason, "training loss on", "weights:epoch", "20.00", "gradients", " 0.00")
    assert outcome(asked, gradients) == UNKNOWN  # they are equivalent; the claim is about averaged weights
    assert outcome(asked, sweep(SCALES)) == UNKNOWN  # the batch grows with the ranks: nothing to compare
    assert outcome(asked, sweep(SCALES, sync="none")) == UNKNOWN


def test_parameter_servers_are_judged_by_a_bench() -> None:
    asked = ledger("rate-of-parameter-servers")

    def rates(*servers: float, rounds: int = 6) -> str:
        """`servers`: samples per second of each workload's first block, where gradients train 100."""
        blocks = [(one, k) for one in servers for k in range(rounds)]
        rows = [{"workload": f"mnist-{one}", "servers": one + k, "gradients": 100.0} for one, k in blocks]
        return judge_claim(asked, [], pd.DataFrame(rows)).finding.outcome

    assert (rates(20.0), rates(110.0), rates(98.0)) == (CONFIRMED, REFUTED, UNKNOWN)
    assert (rates(20.0, rounds=3), rates(20.0, rounds=2)) == (CONFIRMED, UNKNOWN)  # blocks in turns
    assert (rates(20.0, 30.0), rates(20.0, 98.0), rates(20.0, 110.0)) == (CONFIRMED, UNKNOWN, REFUTED)
    assert outcome(asked) == UNKNOWN


@pytest.mark.parametrize(
    ("model", "network", "size"),
    [
        ("alexnet", "AlexNet", 227),
        ("googlenet", "GoogLeNet", 224),
        ("inceptionv3", "InceptionV3", 299),
        ("resnet50", "ResNet-50", 224),
    ],
)
def test_every_value_of_paper_b_is_judged_by_sweeps_of_its_networks(model: str, network: str, size: int) -> None:
    own = {"dataset": "imagenet", "model": model, "sync": "gradients", "kind": "synthetic"}

    def images(size: int) -> Callable[[RunRecord], RunRecord]:
        return lambda run: replace(run, data=replace(run.data, features=(size, size, 3)))

    cpus, gpus = PAPER_B[network]
    on_cores = {1: 1000.0} | {2**k: 1000 / value for k, value in enumerate(cpus, start=1)}
    on_gpus = {1: 100.0} | {2**k: 100 / value for k, value in enumerate(gpus, start=1)}
    evidence = [
        sweep(on_cores, change=images(size), **own),
        sweep(on_gpus, change=images(size), layout={"gpus_per_rank": 1}, **own),
    ]
    judged = [judge_claim(claim, evidence, pd.DataFrame()) for claim in LEDGER.of("B", network)]
    assert [one.finding.outcome for one in judged] == [CONFIRMED] * 6
    says("; ".join(judged[0].differences), "instead of the real", "core", "CPU")
    assert judged[4].finding.used == (evidence[1],)
    few = {"change": images(size), "rows": 640, "batch_per_rank": 16}
    cut = judge_claim(LEDGER.of("B", network)[0], [sweep({1: 10.0, 2: 10 / cpus[0]}, **few, **own)], pd.DataFrame())
    assert cut.finding.outcome == CONFIRMED and "640 of 1,281,167 rows" in cut.differences
    small = judge_claim(LEDGER.of("B", network)[0], [sweep(on_cores, change=images(96), **own)], pd.DataFrame()).finding
    assert small.outcome == UNKNOWN and "96 pixels" in small.reason
    short = sweep({1: 10.0, 2: 10 / cpus[0]}, **(few | {"rows": 320}), **own)
    assert " 10 steps" in judge_claim(LEDGER.of("B", network)[0], [short], pd.DataFrame()).finding.reason


def images(size: int) -> Callable[[RunRecord], RunRecord]:
    return lambda run: replace(run, data=replace(run.data, features=(size, size, 3)))


def reading(load_s: float, distribute_s: float = 0.0, **settings: object) -> ClaimEvidence:
    change = before(load_s=load_s, distribute_s=distribute_s)
    return sweep({1: 20.0, 2: 10.5}, change=change, **settings)  # type: ignore[arg-type]


def busy_reading(**settings: object) -> ClaimEvidence:
    random = np.random.default_rng(1)

    def change(run: RunRecord) -> RunRecord:
        took = float(random.choice([0.1, 4.0]))
        return replace(run, ranks=tuple(replace(rank, load_s=took) for rank in run.ranks))

    return sweep({1: 20.0, 2: 10.5}, change=change, **settings)  # type: ignore[arg-type]


def same_batches(loss: float, **settings: object) -> ClaimEvidence:
    return sweep(SCALES, change=losing({1: 0.3, 2: loss}), global_batch=64, **settings)  # type: ignore[arg-type]


def said(judgement: Judgement, evidence: Sequence[ClaimEvidence]) -> dict[str, object]:
    finding = judgement.finding
    places = [number for used in finding.used for number, one in enumerate(evidence) if one is used]
    return {
        "outcome": finding.outcome,
        "reason": finding.reason,
        "missing": finding.missing,
        "used": places,
        "differences": list(judgement.differences),
    }


def verdicts(evidence: Sequence[ClaimEvidence], rates: pd.DataFrame) -> dict[str, dict[str, object]]:
    """Return what is said of every claim that something is about, by its place in the file and its words."""
    found = {}
    for number, claim in enumerate(CLAIMS, start=1):
        words = said(judge_claim(claim, evidence, rates), evidence)
        if words["reason"] and not claim.erratum:
            found[f"{number} {claim.text}"] = words
    return found


def rates_of(servers: Sequence[float], blocks: int = 6) -> pd.DataFrame:
    rows = []
    for number, rate in enumerate(servers):
        for block in range(blocks):
            rows.append({"workload": f"mnist-{number}", "servers": rate + block, "gradients": 100.0})
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def held() -> dict[str, dict[str, object]]:
    return json.loads(HELD.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_verdict_is_the_one_that_is_held(scenario: str, held: dict[str, dict[str, object]]) -> None:
    assert verdicts(SCENARIOS[scenario](), pd.DataFrame()) == held[scenario]


@pytest.mark.parametrize("scenario", SERVERS)
def test_every_verdict_of_a_bench_is_the_one_that_is_held(scenario: str, held: dict[str, dict[str, object]]) -> None:
    assert verdicts([], rates_of(SERVERS[scenario])) == held[f"servers {scenario}"]
