"""Counterfactual launches: which are worth making, what is expected of each, and how the outcome is judged."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from harness.__main__ import run as command
from harness.analysis.frames import launch_frame
from harness.base.errors import UserError
from harness.schema.layout import Layout
from harness.schema.message_cost import (
    NODE,
    PROBE_FILE,
    PROBES,
    REDUCTION,
    Estimate,
    MessageCost,
    MessageCosts,
    MessageTime,
    Probe,
    Setting,
)
from harness.schema.record import encode
from harness.schema.sweep import STUDY_FILE, Study, Sweep
from harness.why.explanation import Explanation, explain_sweep
from harness.why.proof import (
    CONFIRMED,
    FOLDER,
    OPEN,
    PLAN_FILE,
    PROOF_FILE,
    REFUTED,
    Counterfactual,
    Expected,
    as_it_is,
    counterfactuals,
    judge_change,
    newest_proofs,
    prove_overheads,
)
from tests.factories import START, make_launch, make_point, make_provenance
from tests.planted import BATCHES, write_planted

STEPS = BATCHES // 2
WORKLOAD = {"dataset": "adult", "samples": 6400, "epochs": 2, "data": "synthetic"}


def plant(results: Path, *, wire: float, slower: float = 0.0, lag: float = 0.0, shares=None, launches=6) -> Explanation:
    """Write a sweep of one and two ranks whose step is 1 ms; seconds of a step are planted on two."""
    layout = Layout(nodes=2, shares=shares)
    workload = make_point(1, **WORKLOAD).workload
    sweep = Sweep(workload=workload, layouts=(Layout(nodes=1), layout), repeats=launches)
    folder = results / sweep.name
    folder.mkdir(parents=True)
    (folder / STUDY_FILE).write_bytes(encode(Study(schema=1, sweep=sweep, skipped=())))
    machine = replace(make_provenance(), reduction="native operation, shared memory")

    def steps_of(*seconds: float):
        return lambda rng, steps: np.tile(seconds, (steps, 1)) * (1 + 1e-3 * rng.standard_normal())

    one, two = steps_of(1e-3), steps_of(1e-3 + slower, 1e-3 + slower + lag)
    batch = (64, 64) if shares is None else (60, 68)
    for repeat in range(launches):
        points = make_point(1, repeat, **WORKLOAD), replace(make_point(2, repeat, **WORKLOAD), layout=layout)
        write_planted(folder, 1, repeat, one, point=points[0], provenance=machine)
        write_planted(folder, 2, repeat, two, wire=wire, batch=batch, point=points[1], provenance=machine)
    return explain_sweep(folder)


def chosen(found: Explanation) -> dict[str, Counterfactual]:
    assert found.main
    return {one.name: one for one in counterfactuals(found, found.main.layout)}


def test_what_gives_less_than_one_percent_is_not_tried(tmp_path: Path) -> None:
    assert chosen(plant(tmp_path / "a", wire=1e-6)) == {}
    (only,) = chosen(plant(tmp_path / "b", wire=12e-6)).values()
    assert (only.name, only.sweep.workload.sync) == ("no allreduce", "none")
    assert only.expected.value == pytest.approx(12e-6 / (1e-3 + 12e-6), rel=0.01)
    assert only.expected.low < only.expected.value < only.expected.high


def test_each_lacks_exactly_one_cause(tmp_path: Path) -> None:
    found = plant(tmp_path, wire=1e-4, slower=1e-4)
    tried = chosen(found)
    assert set(tried) == {"no allreduce", "half the bytes", "a rank alone"}
    itself = as_it_is(found.loaded.valid[-1]).workload
    assert replace(tried["half the bytes"].sweep.workload, wire="float32") == itself
    assert replace(tried["no allreduce"].sweep.workload, sync="gradients") == itself
    half = tried["half the bytes"].expected  # of latency and bandwidth, which nothing tells apart
    assert half.low == 0 and half.high == pytest.approx(1e-4 / 2 / 1.2e-3, rel=0.01)
    alone = tried["a rank alone"]
    assert alone.against == "no allreduce" and alone.sweep.layouts[0].ranks == 1
    assert (alone.sweep.workload.samples, alone.sweep.workload.batch_per_rank) == (64 * STEPS, 64)
    assert alone.expected.value == pytest.approx(1e-4 / 1.2e-3, rel=0.01)


def test_what_another_is_compared_with_is_launched_too(tmp_path: Path) -> None:
    tried = chosen(plant(tmp_path, wire=1e-6, slower=1e-4))
    assert set(tried) == {"no allreduce", "a rank alone"} and tried["no allreduce"].expected.high < 0.01


def test_unequal_rows_are_made_equal(tmp_path: Path) -> None:
    tried = chosen(plant(tmp_path, wire=1e-6, lag=1e-4, shares=(60, 68)))
    equal = tried["equal rows"]
    assert equal.sweep.layouts[0].shares is None
    assert equal.expected.value == pytest.approx(5e-5 / 1.1e-3, rel=0.02)


def probe_of(alpha: float, beta: float) -> Probe:
    sizes = tuple(
        MessageTime(bytes=size, launches=(1.0,), seconds=Estimate(value=alpha + beta * size)) for size in (8, 2**26)
    )
    cost = MessageCost(
        operation=f"{REDUCTION}native", level=NODE, ranks=2, alpha_s=Estimate(value=alpha),
        beta_s_per_byte=Estimate(value=beta), worst_error=0.0, worst_bytes=8, sizes=sizes,
    )  # fmt: skip
    messages = replace(cost, operation=f"{REDUCTION}messages")
    costs = MessageCosts(setting=Setting(name="default", mca={}), costs=(cost, messages))
    return Probe(
        schema=1, measured=START, machine=make_provenance().machine, mpi_library="", launcher="", hosts=("a", "a"),
        by_setting=(costs,),
    )  # fmt: skip


def test_a_probe_tells_latency_from_bandwidth(tmp_path: Path) -> None:
    """Records are of 712,440 bytes: 40 us + 40 us of them at 56 ps a byte; 20 us of a sum are neither."""
    file = tmp_path / PROBES / "one" / PROBE_FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(encode(probe_of(4e-5, 4e-5 / 712440)))
    found = plant(tmp_path, wire=1e-4)
    assert found.main and found.network.startswith("Latency and bandwidth of the allreduce are those of the probe of")
    items = {item.cause.column: item.seconds / STEPS for item in found.main.items}
    assert items["latency_seconds"] == pytest.approx(4e-5) == items["bandwidth_seconds"]
    assert items["sum_seconds"] == pytest.approx(2e-5)
    tried = chosen(found)
    assert tried["half the bytes"].expected.value == pytest.approx(2e-5 / 1.1e-3, rel=0.01)
    assert tried["messages"].sweep.settings == (("HARNESS_REDUCTION", "messages"),)


def frame(seconds: float, launches: int = 6):
    return launch_frame([make_launch(2, repeat, seconds * (1 + repeat / 1000)) for repeat in range(launches)])


@pytest.mark.parametrize(
    ("without", "launches", "verdict"), [(0.9, 6, CONFIRMED), (0.99, 6, REFUTED), (1.1, 6, REFUTED), (0.9, 5, OPEN)]
)
def test_a_gain_is_confirmed_where_the_intervals_meet(without: float, launches: int, verdict: str) -> None:
    workload = make_point(2).workload
    sweep = Sweep(workload=workload, layouts=(Layout(nodes=2),), repeats=1)
    expected = Expected(value=0.1, low=0.09, high=0.11)
    one = Counterfactual(name="x", removes="y", how="z", sweep=sweep, expected=expected)
    proof = judge_change(one, frame(1.0, launches), frame(without, launches))
    assert (proof.verdict, proof.launches) == (verdict, launches)
    assert proof.measured == pytest.approx(1 - without)
    if verdict == CONFIRMED:  # the same times, but from launch to launch they scatter by more than the gain
        wild = frame(without, launches).assign(seconds=[0.5, 0.7, 0.89, 0.91, 1.2, 1.5])
        assert judge_change(one, frame(1.0, launches), wild).verdict == OPEN
        small = replace(one, expected=Expected(value=0.03, low=0.0, high=0.06))  # nothing could refute that one
        assert judge_change(small, frame(1.0, launches), wild).verdict == OPEN
    nothing = judge_change(one, frame(1.0), frame(1.0).iloc[:0])
    assert (nothing.measured, nothing.verdict) == (None, OPEN)


def test_nothing_to_prove_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(tmp_path / "results", wire=1e-6)
    places = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    assert command(["explain", "--prove", *places]) == 1
    assert "no cause that a launch can take away costs 1 % of the epoch" in capsys.readouterr().err
    assert not (tmp_path / "results" / FOLDER).exists()


def test_other_data_is_refused_before_anything_is_launched(tmp_path: Path) -> None:
    """It trained on originals, and the same command without their folder would train on their twin."""
    found, data_id = plant(tmp_path / "results", wire=1e-4), "adult-0123456789abcdef"
    runs = tuple(replace(run, point=replace(run.point, data_id=data_id)) for run in found.loaded.runs)
    there = replace(found, loaded=replace(found.loaded, runs=runs))
    with pytest.raises(UserError, match=f"to train on {data_id}, the data here is synthetic-adult.*DATA_DIR="):
        prove_overheads(there, blocks=1, data_dir=None, results=tmp_path / "results", say=print)
    assert not (tmp_path / "results" / FOLDER).exists()


def launched(sweep: Sweep, *, results: Path, **_: object) -> Path:
    """Stand in for `run_sweep`: without sums a step loses the 0.1 ms of the sum, with half the bytes nothing."""
    wire = 0.0 if sweep.workload.sync == "none" else 1e-4
    for point in sweep.points():
        if not (results / sweep.name / point.folder).exists():
            steps_of = partial(scattered, ranks=2)
            write_planted(results / sweep.name, 2, point.repeat, steps_of, wire=wire, point=point)
    return results / sweep.name


def scattered(rng: np.random.Generator, steps: int, ranks: int) -> np.ndarray:
    return np.full((steps, ranks), 1e-3 * (1 + 1e-3 * rng.standard_normal()))


def test_what_launches_gave_stands_beside_what_was_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.why.proof.run_sweep", launched)
    found = plant(tmp_path / "results", wire=1e-4)
    places = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    assert command(["explain", "--prove", *places, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    sums, half = document["proofs"]["proofs"]
    assert (sums["name"], sums["launches"], sums["verdict"]) == ("no allreduce", 6, CONFIRMED)
    assert sums["measured"] == pytest.approx(1e-4 / 1.1e-3, abs=0.002) == sums["expected"]["value"]
    assert (half["name"], half["verdict"]) == ("half the bytes", CONFIRMED)  # nothing was in what was expected
    kept = newest_proofs(tmp_path / "results", found.loaded.folder.name)
    assert kept and [one.verdict for one in kept.proofs] == [CONFIRMED, CONFIRMED]
    page = Path(document["page"]).read_text()
    assert "Proof" in page and "half of the allreduce&#39;s bandwidth term (WIRE=bf16)" in page


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.usefixtures("warm")
def test_counterfactuals_are_launched_in_turn(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plant(tmp_path / "results", wire=12e-6)
    name = found.loaded.folder.name
    places = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    assert command(["explain", "--prove", "--repeats", "1", *places]) == 0
    said = capsys.readouterr().out
    assert said.index("expected: no allreduce (SYNC=none) gives 1.2 %") < said.index(
        "block 1 of 1: as it is, no allreduce"
    )
    assert "Counterfactual launches confirm 0 of 1 expectations." in " ".join(said.split())  # one launch tells nothing
    (place,) = (tmp_path / "results" / FOLDER / name).iterdir()
    assert {file.name for file in place.iterdir()} == {PLAN_FILE, PROOF_FILE, "as-it-is", "no-allreduce"}
    kept = newest_proofs(tmp_path / "results", name)
    assert kept and [one.verdict for one in kept.proofs] == [OPEN]
    (record,) = place.glob("no-allreduce/*/*/run.json")
    told = json.loads(record.read_text())
    assert told["point"]["workload"]["sync"] == "none" and told["point"]["layout"]["nodes"] == 2
    assert "What is expected was written down before" in Path(said.splitlines()[-1]).read_text()
