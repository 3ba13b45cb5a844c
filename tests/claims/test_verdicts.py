"""The verdict on every claim by planted records, word for word, as a function for each of the former rules gave it.

The records are made up here; `tests/data/claim-verdicts.json` has what is said of them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.base.files import resource
from harness.claims.claim_evidence import ClaimEvidence
from harness.claims.judgement import Judgement, judge_claim
from harness.schema.claim import CLAIMS_FILE, read_published
from harness.schema.record import RunRecord
from tests.labs.claim_sweeps import before, exchanging, lasting, losing, scoring, sweep, weights

HELD = Path(__file__).parents[1] / "data/claim-verdicts.json"
CLAIMS = read_published(resource(CLAIMS_FILE)).claims
SCALES = {1: 2.0, 2: 1.05}
WIDE = {"model": "mine:wide", "change": weights(2_000_000)}
CIFAR = {"dataset": "cifar10"}
ACOUSTIC = {"dataset": "acoustic"}
IMAGES = {"dataset": "imagenet", "model": "resnet50", "sync": "gradients", "kind": "synthetic"}


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


SCENARIOS: dict[str, Callable[[], Sequence[ClaimEvidence]]] = {
    "nothing": lambda: [],
    "mnist to 32": lambda: [sweep({1: 23.2, 2: 12.0, 32: 2.0})],
    "mnist to 32, less": lambda: [sweep({1: 20.0, 2: 12.0, 32: 4.0})],
    "mnist to 32, slower": lambda: [sweep({1: 20.0, 2: 12.0, 32: 24.0})],
    "mnist to 32, at the edge": lambda: [sweep({1: 20.9, 32: 2.0})],
    "mnist to 32, few": lambda: [sweep({1: 23.2, 32: 2.0}, launches=3)],
    "mnist of 2": lambda: [sweep(SCALES, change=before(compile_s=1.0))],
    "mnist of 1": lambda: [sweep({1: 2.0})],
    "mnist, an epoch loses": lambda: [sweep({1: 1.0, 2: 1.1}, change=before(compile_s=1.0))],
    "mnist, few": lambda: [sweep(SCALES, launches=3, change=before(compile_s=1.0))],
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
    "exchange, few": lambda: [sweep({2: 4.0, 4: 2.0}, launches=3, change=exchanging({2: 0.02, 4: 0.02}))],
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


if __name__ == "__main__":
    every = {name: verdicts(evidence(), pd.DataFrame()) for name, evidence in SCENARIOS.items()}
    every |= {f"servers {name}": verdicts([], rates_of(rates)) for name, rates in SERVERS.items()}
    HELD.write_text(json.dumps(every, indent=1, ensure_ascii=False) + "\n")
