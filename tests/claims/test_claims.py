"""The ledger of the papers' claims: each has a rule, and no rule says more than comparable launches show."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.base.errors import UserError
from harness.base.files import resource
from harness.claims.claim_evidence import ClaimEvidence, gather
from harness.claims.claim_studies import StudyPlanner
from harness.claims.judgement import CONFIRMED, ERRATUM, REFUTED, UNKNOWN, judge_claim
from harness.report.answer import Cell
from harness.report.claims_answer import claims_answer, ledger_row, published_words
from harness.report.html_pages import write_page
from harness.schema.claim import CLAIMS_FILE, Claim, ClaimMetric, read_published
from harness.schema.record import RunRecord
from tests.labs.claim_sweeps import before, exchanging, lasting, losing, scoring, sweep, weights
from tests.labs.factories import make_turn_block, write_run
from tests.labs.page_text import Text
from tests.labs.sentences import refuses, says

LEDGER = read_published(resource(CLAIMS_FILE))

# (experiment, rule, base, count, value): what paper A prints, and what it only shows as a chart (None).
FIGURES = [
    ("mnist-dnn", "speedup", 1, 32, 11.6),
    ("mnist-cnn", "rows-in-equal-time", 16, 64, 1.92),
    ("adult-dnn", "speedup-of-each-step", 5, 40, None),
    ("acoustic-dnn", "speedup-and-slope", 1, 40, None),
    ("cifar10-dnn", "speedup", 16, 64, 3.37),
    ("cifar10-dnn", "speedup", 16, 16, 2.97),
    ("cifar10-dnn", "launches-that-reach-an-accuracy", 0, 0, 0.55),
    ("cifar10-cnn", "speedup-beside-another", 4, 64, None),
    ("higgs-dnn", "speedup", 20, 80, 2.6),
]
TEXTS = [
    "speedup-of-larger-networks",
    "speedup-of-an-epoch-beside-the-start",
    "extra-reading-of-training",
    "computation-and-exchange",
    "loss-difference",
    "rate-of-parameter-servers",
]
PAPER_B = {
    "AlexNet": ([1.94, 3.40, 6.32, 10.9], [1.37, 1.93]),
    "GoogLeNet": ([1.84, 3.57, 7.25, 14.7], [1.87, 3.21]),
    "InceptionV3": ([1.87, 3.57, 7.29, 14.5], [1.70, 2.77]),
    "ResNet-50": ([1.84, 3.61, 7.60, 15.3], [1.69, 2.67]),
}


def test_the_ledger_holds_every_claim_of_paper_a() -> None:
    found = LEDGER.of("A")
    assert [(c.experiment, c.metric, c.base, c.count, c.value) for c in found[: len(FIGURES)]] == FIGURES
    assert [c.metric for c in found[len(FIGURES) :]] == TEXTS
    assert [c.figure for c in found[: len(FIGURES)]] == ["1", "2", "3", "4", "5", "5", "5", "6", ""]
    assert {c.figure for c in found if c.kind == "chart"} == {"3", "4", "6"}  # no numbers: none are invented
    assert [round(100 * c.efficiency) for c in found if c.efficiency and not c.erratum] == [36, 48, 84, 65]
    assert [c.value for c in found if c.erratum] == [2.97]
    assert {c.metric for c in LEDGER.claims} == set(ClaimMetric)


def test_the_ledger_holds_every_number_of_paper_b() -> None:
    for network, (cpus, gpus) in PAPER_B.items():
        for units, counts, values in (("CPUs", (2, 4, 8, 16), cpus), ("GPUs", (2, 4), gpus)):
            found = [c for c in LEDGER.of("B", network) if c.units == units]
            assert [(c.count, c.value) for c in found] == list(zip(counts, values, strict=True))
            assert all(c.kind == "chart" and c.base == 1 and c.reading == 0.03 for c in found)


def test_the_ledger_says_where_and_how_the_papers_measured() -> None:
    ours, other = LEDGER.papers
    facts = ("Haswell", "64 GB", "InfiniBand", "Open MPI 1.8.3")
    assert [fact for fact in facts if fact not in ours.testbed] == []
    assert "K40" in other.testbed
    assert {c.sync for c in LEDGER.of("A")} == {"weights:epoch"} and {c.sync for c in LEDGER.of("B")} == {"gradients"}
    (higgs,) = LEDGER.of("A", "higgs-dnn")
    assert higgs.rows == 10_900_000


def test_a_damaged_ledger_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "published.toml"
    path.write_text("[[claim]]\npaper = 'A'\n")
    with pytest.raises(UserError, match="damaged"):
        read_published(path)
    with refuses("directory"):
        read_published(tmp_path / "absent.toml")


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
        (claim(1.9), {1: 2.0, 2: 1.05}, 5, UNKNOWN),  # a point has no direction
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
    for part in ("30,000 of 60,000 rows", "synthetic", "SYNC=gradients instead of weights:epoch", "one host", "bf16"):
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
    assert outcome(asked, sweep(SCALES, launches=3)) == UNKNOWN
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
    assert outcome(asked, sweep({2: 4.0, 4: 2.0}, launches=3, change=exchanging({2: 0.02, 4: 0.02}))) == UNKNOWN
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
    assert outcome(asked, sweep({16: 8.0, 64: 4.17}, launches=3, model="cnn")) == UNKNOWN
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
        """`servers`: rows per second of each workload's first block, where gradients train 100."""
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


def test_studies_are_what_this_machine_can_judge() -> None:
    two = {one.title: one for one in StudyPlanner(LEDGER.claims, 2, None).studies()}
    networks = ["alexnet", "googlenet", "inceptionv3", "resnet50"]
    servers = "parameter servers"
    assert list(two) == ["mnist-dnn", "adult-dnn", servers, *networks, "accuracy"]
    assert sum(len(one.claims) for one in two.values()) == 10
    assert sum(one.minutes for one in two.values() if one.title != "accuracy") <= 50
    assert {layout.ranks for one in two.values() for each in one.sweeps for layout in each.layouts} == {1, 2}
    assert "DATA_DIR" in two["accuracy"].lacks and not two["mnist-dnn"].lacks
    assert {one.repeats for one in two["alexnet"].sweeps} == {4}
    assert "core" in StudyPlanner(LEDGER.claims, 1, None).studies()[0].lacks
    many = [claim for one in StudyPlanner(LEDGER.claims, 64, None).studies() for claim in one.claims]
    assert ledger("computation-and-exchange") in many and ledger("rows-in-equal-time", "mnist-cnn") in many
    assert not any(claim.units == "GPUs" for claim in many)
    left = two["mnist-dnn"].left(
        [judge_claim(ledger("speedup-of-an-epoch-beside-the-start"), [sweep(SCALES, change=before())], pd.DataFrame())]
    )
    assert left == 2


def test_words_of_claims() -> None:
    assert published_words(claim(11.6, count=32)).replace("\u00a0", " ") == "11.6 (36 %)"
    says(published_words(ledger("speedup-of-each-step", "adult-dnn")), "chart without numbers")
    judgement = judge_claim(claim(11.6, count=32), [sweep(SCALES)], pd.DataFrame())
    _, _, value, verdict, ours, _ = ledger_row(judgement, Path("reports/claims"))
    assert isinstance(value, Cell) and value.note.split() == ["32", "cores", "over", "1"]
    assert isinstance(verdict, Cell) and verdict.tone == ""
    assert verdict.text.startswith(UNKNOWN)
    says(verdict.text, "measured on", "1, 2")
    says(verdict.text, "launches on", "32")
    assert str(ours).replace("\u00a0", " ").startswith("1.90 (95 % interval")
    few = judge_claim(
        ledger("speedup-of-an-epoch-beside-the-start"),
        [sweep(SCALES, launches=3, change=before(compile_s=1.0))],
        pd.DataFrame(),
    )
    assert "(–)" not in few.finding.reason and " 1.00; a " in few.finding.reason


def test_the_page_sets_published_beside_ours_and_invents_nothing(tmp_path: Path) -> None:
    own = sweep({1: 2.0, 2: 1.25}, launches=3)
    off = sweep({1: 2.0, 2: 1.0}, launches=3, sync="none")
    for one in (own, off):
        for run in one.runs:
            write_run(tmp_path / run.point.workload.sync.replace(":", "-"), run)
    folders = [tmp_path / "none", tmp_path / "weights-epoch"]
    evidence = gather(folders)
    judgements = [judge_claim(one, evidence, pd.DataFrame()) for one in LEDGER.claims]
    path = write_page(claims_answer(judgements, evidence, (), LEDGER, tmp_path / "reports"), tmp_path / "reports").page
    assert path is not None
    page = Text(path.read_text())
    text = str(page)
    assert page.loads == [] and len(page.ids) == len(set(page.ids))
    says(text, "became of the papers", "None", 39, f"38 {UNKNOWN}")
    says(text, "measured on", "1, 2", "32")
    says(text, "SYNC=none")
    assert "1.60 on 2 ranks" in text
    for entry in LEDGER.claims:
        assert entry.text in text
    for paper in LEDGER.papers:
        assert paper.testbed in text
    assert all((path.parent / link).is_dir() for link in page.links if "n2x1x1" in link)
