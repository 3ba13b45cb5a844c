"""Which settings a probe recommends, and what a tuned sweep does with them."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.probe import tuning
from harness.probe.measuring_ranks import MessageSeries
from harness.probe.message_fit import fit_launches
from harness.probe.probe_store import write_probe
from harness.probe.tuning import fastest_allreduce, tuned_settings
from harness.schema.claim import EXPERIMENTS
from harness.schema.layout import Layout
from harness.schema.message_cost import (
    ALLREDUCE,
    NODE,
    Estimate,
    MessageCost,
    MessageCosts,
    MessageTime,
    Probe,
    Setting,
)
from harness.schema.record import decode, encode
from harness.schema.sweep import Sweep
from harness.sweep.job_plan import Job
from harness.sweep.job_script import write_job
from harness.sweep.schedulers import open_scheduler
from harness.sweep.submission_settings import Submission
from tests.labs.factories import make_provenance, make_workload
from tests.labs.probes import make_probe
from tests.labs.sentences import refuses, says


def test_the_faster_setting_is_chosen_where_it_is_faster() -> None:
    probe = make_probe({"default": (1e-6, 4e-10), "other": (1e-5, 1e-10)}).probe
    large, small = fastest_allreduce(probe, EXPERIMENTS["cifar10-cnn"].weights_bytes), fastest_allreduce(probe, 1024)
    assert large.environment == {"OMPI_MCA_pml": "other", "HARNESS_REDUCTION": "native"}
    assert large.usual_s / large.seconds == pytest.approx(4, rel=0.1)
    assert small.environment == {} and "=" not in str(small)


EQUAL, TRIALS = 10, 300


def in_blocks(ratios: np.ndarray) -> MessageCost:
    """Return a setting's cost whose log ratios to the default are `ratios`, one a block."""
    seconds = Estimate(value=1e-4)
    times = MessageTime(bytes=1024, launches=(1e-4,) * len(ratios), seconds=seconds, ratios=tuple(ratios.tolist()))
    return MessageCost(
        operation="reduction:native",
        level=NODE,
        ranks=2,
        alpha_s=seconds,
        beta_s_per_byte=Estimate(value=0.0),
        worst_error=0.0,
        worst_bytes=1024,
        sizes=(times,),
    )


@pytest.mark.parametrize(("factor", "least", "most"), [(1.0, 0.0, 0.05), (0.93, 0.8, 1.0)])
def test_of_equal_settings_the_default_stays_and_a_fast_one_is_found(factor: float, least: float, most: float) -> None:
    """In 300 probes of ten settings: all equal (5 %, and two standard errors), or one that takes 7 % less time.

    Every start of the ranks has a speed of its own, the default's is in all ratios of its block.
    """
    probe, generator, chosen = make_probe({"default": (1e-6, 1e-10)}).probe, np.random.default_rng(7), 0
    for _ in range(TRIALS):
        starts = generator.normal(0, 0.01, (EQUAL, 6))
        by_setting = tuple(
            MessageCosts(
                setting=Setting(name=str(number), mca={"coll": str(number)} if number else {}),
                costs=(in_blocks(starts[number] - starts[0] + np.log(factor if number == 1 else 1.0)),),
            )
            for number in range(EQUAL)
        )
        best = fastest_allreduce(replace(probe, by_setting=by_setting), 1024)
        chosen += best.environment != {}
        assert (best.gain is None) == (best.environment == {}) and (best.gain is None or best.gain.interval.high < 1)
    assert least <= chosen / TRIALS <= most


def test_ratios_are_of_samples_in_turns_of_one_round() -> None:
    """The machine is ten times as slow in every other turn, the first sample of each is cold: 20 % faster is found."""
    turns = np.repeat(np.arange(1, 21), 5)
    slow = np.where(turns % 2, 1e-3, 1e-4)
    cold = np.tile([50.0, 1, 1, 1, 1], 20)
    marks = tuple(np.where(cold > 1, 0, turns).tolist())

    def launch(factor: float, behind: int = 0) -> list[MessageSeries]:
        seconds = tuple((factor * slow * (cold if factor == 1 else 1))[behind:].tolist())
        return [
            MessageSeries(operation=operation, level=NODE, ranks=2, bytes=8, seconds=seconds, turns=marks[behind:])
            for operation in (ALLREDUCE, "reduction:native", "point-to-point")
        ]

    (plain, native, single) = fit_launches([launch(0.8)] * 3, [launch(1.0)] * 3)
    assert plain.sizes[0].ratios == pytest.approx([np.log(0.8)] * 3) == native.sizes[0].ratios
    assert single.sizes[0].ratios == ()
    # Samples that were made in turns of different rounds do not compare, those of launches without turns do.
    shifted = fit_launches([launch(0.8, behind=3)] * 3, [launch(1.0)] * 3)
    assert shifted[0].sizes[0].ratios == pytest.approx([np.log(0.8)] * 3)
    # Launches that are all in turns, but never in the same one, as a slow one falls behind, are still compared.
    late = [[replace(one, turns=tuple(np.array(one.turns) + 100 * np.sign(one.turns))) for one in launch(0.8)]]
    assert fit_launches(late, [launch(1.0)])[0].sizes[0].ratios == pytest.approx([np.log(0.8)], abs=0.01)
    alone = [[replace(one, turns=()) for one in launch(0.8)]]
    assert fit_launches(alone, [launch(1.0)])[0].sizes[0].ratios == pytest.approx([np.log(0.8)], abs=0.01)


def test_a_probe_without_blocks_recommends_the_defaults() -> None:
    """Older probes launched settings one after the other: they are read, and say nothing about which is faster."""
    old = make_probe({"default": (1e-6, 4e-10), "other": (1e-5, 1e-10)}).probe
    by_setting = tuple(
        replace(
            one,
            costs=tuple(replace(cost, sizes=tuple(replace(s, ratios=()) for s in cost.sizes)) for cost in one.costs),
        )
        for one in old.by_setting
    )
    text = re.sub(rb',\s*"ratios": \[\]', b"", encode(replace(old, by_setting=by_setting)))
    assert b"ratios" not in text
    kept = decode(text, Probe, Path("probe.json"))
    assert fastest_allreduce(kept, EXPERIMENTS["cifar10-cnn"].weights_bytes).environment == {}


def test_a_size_beyond_the_probe_is_refused() -> None:
    with refuses("more than the probe's", "67,108,864", "--largest", "70000000"):
        fastest_allreduce(make_probe({"default": (1e-6, 1e-10)}).probe, 70_000_000)


def test_a_tuned_sweep_exports_what_the_probe_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "describe_machine", lambda gpus: make_provenance().machine)
    write_probe(make_probe({"default": (1e-6, 4e-10), "other": (1e-5, 1e-10)}), tmp_path)
    settings, sentence = tuned_settings(make_workload(), tmp_path)
    assert settings == (("HARNESS_REDUCTION", "native"), ("OMPI_MCA_pml", "other"))
    says(sentence, "2 ranks", "HARNESS_REDUCTION=native", "pml=other")
    assert sentence.count(" us ") == 2
    usual = Sweep(workload=make_workload(), layouts=(Layout(nodes=2),))
    better = replace(usual, settings=settings)
    assert better.name != usual.name and better.points()[0].key != usual.points()[0].key
    job = Job(folder=tmp_path, mode="jobs", points=better.points()[:1])
    write_job(job, open_scheduler("local", oversubscribe=True), Submission())
    assert "OMPI_MCA_pml=other" in job.script.read_text().split()
    with refuses("--tuned"):
        tuned_settings(make_workload(dataset="file"), tmp_path)
