"""What is said of base, rows and sessions where numbers cannot be compared."""

import math
from dataclasses import replace

from harness.report.sweep_facts import machine_facts
from harness.report.sweep_warnings import doubts, mixtures
from tests.labs.factories import (
    launch_frame,
    make_point,
    make_provenance,
    make_run,
)


def test_a_loss_that_is_no_longer_finite_is_not_hidden_by_an_earlier_one() -> None:
    run = make_run()
    epochs = list(run.epochs)
    epochs[-1] = type(epochs[-1])(epoch=2, steps=1, seconds=(1.0,), sync_seconds=(0.0,), train_loss=None)
    diverged = make_run(epochs=tuple(epochs))
    assert math.isnan(launch_frame([diverged]).iloc[0]["train_loss"])
    assert "not finite" in doubts([diverged], launch_frame([diverged]))[0]


def test_mixed_commits_and_machines_are_named() -> None:
    runs = [make_run(), make_run(provenance=make_provenance(commit="fedcba9876543210", hostname="node2"))]
    sentences = mixtures(runs)
    assert len(sentences) == 2 and "commit (0123456789ab, fedcba987654)" in sentences[0] and "node2" in sentences[1]
    assert mixtures(runs[:1]) == ()
    alone = make_run(provenance=replace(make_provenance(), reduction="none"))
    assert mixtures([alone, make_run(make_point(2))]) == ()  # one rank reduces nothing
    dirty = [make_run(provenance=make_provenance(dirty=True))]
    assert "uncommitted" in doubts(dirty, launch_frame(dirty))[0]


def test_launches_whose_cores_came_nearer_or_went_apart_say_so():
    pairs = ((130.4, 480.0), (480.0, 130.0), (120.0, 140.0), (0.0, 130.0), ())
    runs = [make_run(make_point(2, repeat), core_ns=core_ns) for repeat, core_ns in enumerate(pairs)]
    assert [run.moved for run in runs] == [True, True, False, False, False]
    assert "2 of 5 launches had ranks whose cores moved" in doubts(runs, launch_frame(runs))[0]
    (fact,) = (fact for fact in machine_facts(runs) if fact.name == "Core to core")
    assert fact.value == "120 to 480 ns there and back, before launches and behind them"
