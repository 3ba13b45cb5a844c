"""The studies that answer claims."""

from dataclasses import replace
from typing import Any

import pandas as pd

from harness.base.files import resource
from harness.claims.claim_studies import StudyPlanner
from harness.claims.judgement import judge_claim
from harness.schema.claim import CLAIMS_FILE, Claim, read_published
from tests.labs.claim_sweeps import before, sweep

LEDGER = read_published(resource(CLAIMS_FILE))


def ledger(metric: str, experiment: str = "") -> Claim:
    """Return the one claim of paper A with this metric, about this experiment."""
    (found,) = [c for c in LEDGER.of("A", experiment) if c.metric == metric and not c.erratum]
    return found


def claim(value: float | None = 1.9, **changes: Any) -> Claim:
    """Return a claim about MNIST-DNN on 2 cores over 1."""
    return replace(ledger("speedup", "mnist-dnn"), **({"value": value, "base": 1, "count": 2} | changes))


SCALES = {1: 2.0, 2: 1.05}


def test_studies_are_what_this_machine_can_judge() -> None:
    two = {one.title: one for one in StudyPlanner(LEDGER.claims, 2, None).studies()}
    networks = ["alexnet", "googlenet", "inceptionv3", "resnet50"]
    servers = "parameter servers"
    assert list(two) == ["mnist-dnn", "adult-dnn", servers, *networks, "accuracy"]
    assert sum(len(one.claims) for one in two.values()) == 10
    assert sum(one.minutes for one in two.values() if one.title != "accuracy") <= 50
    assert {layout.ranks for one in two.values() for each in one.sweeps for layout in each.layouts} == {1, 2}
    assert "--data-dir" in two["accuracy"].lacks and not two["mnist-dnn"].lacks
    assert {one.repeats for one in two["alexnet"].sweeps} == {4}
    assert "core" in StudyPlanner(LEDGER.claims, 1, None).studies()[0].lacks
    many = [claim for one in StudyPlanner(LEDGER.claims, 64, None).studies() for claim in one.claims]
    assert ledger("computation-and-exchange") in many and ledger("rows-in-equal-time", "mnist-cnn") in many
    assert not any(claim.units == "GPUs" for claim in many)
    left = two["mnist-dnn"].left(
        [judge_claim(ledger("speedup-of-an-epoch-beside-the-start"), [sweep(SCALES, change=before())], pd.DataFrame())]
    )
    assert left == 2
