"""Counterfactual launches: which are worth making, what is expected of each, and how the outcome is judged."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.__main__ import run as command
from harness.base.errors import RunError, UserError
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
from harness.schema.sweep import ROUNDS, STUDY_FILE, Layout, Point, Study, Sweep
from harness.why.explanation import Explanation, explain_sweep
from harness.why.proof import (
    AS_IT_IS,
    BASE,
    CANNOT_TELL,
    CONFIRMED,
    FOLDER,
    LAUNCHES,
    PLAN_FILE,
    PROOF_FILE,
    REFUTED,
    Change,
    Counterfactual,
    Expected,
    as_it_is,
    counterfactuals,
    judge_change,
    newest_proofs,
    prove_overheads,
)
from tests.labs.factories import START, make_point, make_provenance, make_ranks
from tests.labs.planted import BATCHES, write_planted

STEPS = BATCHES // 2
WORKLOAD = {"dataset": "adult", "samples": 6400, "epochs": 2, "data": "synthetic"}


def plant(
    results: Path, *, wire: float, slower: float = 0.0, lag: float = 0.0, shares=None, launches=6, epochs=2
) -> Explanation:
    """Write a sweep of one and two ranks whose step is 1 ms; seconds of a step are planted on two."""
    layout, asked = Layout(nodes=2, shares=shares), WORKLOAD | {"epochs": epochs}
    workload = make_point(1, **asked).workload
    sweep = Sweep(workload=workload, layouts=(Layout(nodes=1), layout), repeats=launches)
    folder = results / sweep.name
    folder.mkdir(parents=True)
    (folder / STUDY_FILE).write_bytes(encode(Study(schema=1, sweep=sweep, skipped=())))
    machine = replace(make_provenance(), reduction="native operation, shared memory", algorithm="native")

    def steps_of(*seconds: float):
        return lambda rng, steps: np.tile(seconds, (steps, 1)) * (1 + 1e-3 * rng.standard_normal())

    one, two = steps_of(1e-3), steps_of(1e-3 + slower, 1e-3 + slower + lag)
    batch = (64, 64) if shares is None else (60, 68)
    for repeat in range(launches):
        points = make_point(1, repeat, **asked), replace(make_point(2, repeat, **asked), layout=layout)
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
    assert tried["half the bytes"].vague.startswith("a probe on as many ranks")
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
        operation=f"{REDUCTION}native",
        level=NODE,
        ranks=2,
        alpha_s=Estimate(value=alpha),
        beta_s_per_byte=Estimate(value=beta),
        worst_error=0.0,
        worst_bytes=8,
        sizes=sizes,
    )
    messages = replace(cost, operation=f"{REDUCTION}messages")
    costs = MessageCosts(setting=Setting(name="default", mca={}), costs=(cost, messages))
    return Probe(
        schema=1,
        measured=START,
        machine=make_provenance().machine,
        mpi_library="",
        launcher="",
        hosts=("a", "a"),
        by_setting=(costs,),
    )


def test_a_probe_tells_latency_from_bandwidth(tmp_path: Path) -> None:
    """Records are of 712,440 bytes: 40 us + 40 us of them at 56 ps a byte; 20 us of a sum are neither."""
    file = tmp_path / PROBES / "one" / PROBE_FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(encode(probe_of(4e-5, 4e-5 / 712440)))
    found = plant(tmp_path, wire=1e-4)
    assert found.main and found.network.startswith("Latency and bandwidth of the allreduce are those of the probe of")
    items = {item.cause.column: item.seconds / STEPS for item in found.main.items}
    assert items["latency_seconds"] == pytest.approx(4e-5, rel=1e-4) == items["bandwidth_seconds"]
    assert items["sum_seconds"] == pytest.approx(2e-5, rel=1e-4)
    tried = chosen(found)
    assert tried["half the bytes"].expected.value == pytest.approx(2e-5 / 1.1e-3, rel=0.01)
    assert not tried["half the bytes"].vague
    assert tried["messages"].sweep.settings == (("HARNESS_REDUCTION", "messages"),)


def change(expected: float, **changes: object) -> Change:
    low, high = expected - 0.03, expected + 0.03
    return Change(name="x", removes="y", how="z", expected=Expected(value=expected, low=low, high=high), **changes)


NOISE = np.array([-0.01, 0.01, 0.0, -0.004, 0.004, 0.0])  # of a block: over six of them the interval is +-0.7 points


@pytest.mark.parametrize(
    ("gain", "expected", "scale", "verdict", "missing"),
    [
        (0.10, 0.10, 1.0, CONFIRMED, ""),
        (0.075, 0.10, 1.0, CONFIRMED, ""),
        (0.053, 0.10, 1.0, CANNOT_TELL, "blocks in all"),  # the band begins at 5 points
        (0.03, 0.10, 1.0, REFUTED, ""),
        (-0.10, 0.10, 1.0, REFUTED, ""),
        (0.10, 0.10, 9.0, CANNOT_TELL, "about 10 blocks in all"),  # 6.4 points against 5
        (0.012, 0.012, 0.5, CONFIRMED, ""),  # the band is 1 point
        (0.0, 0.009, 0.1, CANNOT_TELL, ""),  # within the band, and nothing
        (-0.0005, 0.009, 0.1, CANNOT_TELL, "a gain"),
    ],
)
def test_a_gain_is_judged_by_its_distance_from_what_its_blocks_let_expect(
    gain: float, expected: float, scale: float, verdict: str, missing: str
) -> None:
    own = expected + 0.01 * np.arange(6)  # the state of the machine moves both
    proof = judge_change(change(expected), list(zip(gain + 0.01 * np.arange(6) + scale * NOISE, own, strict=True)))
    drift = 0.025
    if gain == 0.10 and scale == 1.0:
        assert (proof.verdict, proof.launches) == (CONFIRMED, 6)
        assert proof.measured == pytest.approx(gain + drift) == proof.own
        assert proof.interval and proof.interval.low < gain + drift < proof.interval.high
    steady = judge_change(change(expected), [(gain + scale * one, expected) for one in NOISE])
    assert steady.verdict == verdict and missing in steady.missing
    assert bool(steady.missing) == (verdict == CANNOT_TELL)


def test_what_no_block_or_no_expectation_decides_says_what_is_missing() -> None:
    few = judge_change(change(0.1), [(0.1, 0.1), (0.1, 0.1)])
    assert (few.verdict, few.interval, few.missing) == (CANNOT_TELL, None, "blocks with both launches: 2 of 3")
    nothing = judge_change(change(0.1), [])
    assert (nothing.measured, nothing.own, nothing.verdict) == (None, None, CANNOT_TELL)
    vague = judge_change(change(0.1, vague="a probe"), [(0.1, 0.1)] * 6)
    assert (vague.verdict, vague.missing, vague.measured) == (CANNOT_TELL, "a probe", pytest.approx(0.1))


@pytest.mark.parametrize("blocks", [4, 6])
@pytest.mark.parametrize("expected", [0.02, 0.05, 0.15])
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_what_is_not_there_or_half_of_it_is_not_confirmed(part: float, expected: float, blocks: int) -> None:
    """In 400 proofs of a machine whose blocks differ by 0.3 to 1.3 points: at most 5 %, and the truth never refuted.

    What the sweep let expect holds 0, and what a block lets expect scatters with its gain, by a tenth.
    """
    rng, verdicts = np.random.default_rng(11), []
    for _ in range(400):
        state = 1 + rng.normal(0, 0.1, blocks)
        gains = part * expected * state + rng.normal(0, rng.uniform(0.003, 0.013), blocks)
        verdicts.append(judge_change(change(expected), list(zip(gains, expected * state, strict=True))).verdict)
    if part < 1:
        assert verdicts.count(CONFIRMED) / len(verdicts) <= 0.05
    else:
        assert verdicts.count(REFUTED) / len(verdicts) <= 0.05
        assert expected < 0.15 or verdicts.count(CONFIRMED) / len(verdicts) >= 0.9


def test_nothing_to_prove_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(tmp_path / "results", wire=1e-6)
    places = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    assert command(["explain", "--prove", *places]) == 1
    assert "no cause that a launch can take away costs 1 % of the epoch" in capsys.readouterr().err
    assert not (tmp_path / "results" / FOLDER).exists()


def test_other_data_is_refused_before_anything_is_launched(tmp_path: Path) -> None:
    """It trained on originals, and the same command without their folder would train on a stand-in."""
    found, data_id = plant(tmp_path / "results", wire=1e-4), "adult-0123456789abcdef"
    runs = tuple(replace(run, point=replace(run.point, data_id=data_id)) for run in found.loaded.runs)
    there = replace(found, loaded=replace(found.loaded, runs=runs))
    with pytest.raises(UserError, match=f"to train on {data_id}, the data here is synthetic-adult.*DATA_DIR="):
        prove_overheads(there, blocks=1, data_dir=None, results=tmp_path / "results", say=print)
    assert not (tmp_path / "results" / FOLDER).exists()


# Seconds of a step by side. The machine is 30 % slower than on the day of the sweep, and so is what blocks let expect.
SLOW = 1.3
STEP = {AS_IT_IS: 1.3e-3, "no allreduce": 1.1e-3, "half the bytes": 1.25e-3, "a rank alone": 1.0e-3, BASE: 1.0e-3}


def trained(blocks: Sequence[Mapping[str, Point]], *, folder: Path, **_: object) -> None:
    """Stand in for `run_blocks`: records of the planted steps, and turns in which all of a round share its drift."""
    rng = np.random.default_rng(3)
    for number, block in enumerate(blocks):
        rows = []
        for name, point in block.items():
            ranks, named = point.layout.ranks, {"block": f"b{number}"}
            wire = 0.2e-3 * SLOW if name == AS_IT_IS else 0.0

            def steps_of(rng, steps, ranks=ranks, seconds=SLOW * STEP[name] - wire):
                return np.full((steps, ranks), seconds)

            write_planted(folder, ranks, point.repeat, steps_of, wire=wire, point=point, **named)
            bound = ";".join(map(str, range(ranks)))
            for turn in range(30):
                seconds = 50 * SLOW * STEP[name] * (1 + 0.002 * rng.normal())
                rows.append((turn, point.folder, 0, 50, seconds, 0.99, 0.1 * turn, bound))
        table = pd.DataFrame(rows, columns=["round", "launch", "place", "steps", "seconds", "cores", "at_s", "bound"])
        table["seconds"] *= np.exp(0.2 * np.sin(table["round"]))
        (folder / ROUNDS).mkdir(exist_ok=True)
        table.to_parquet(folder / ROUNDS / f"b{number}.parquet")


def test_what_turns_gave_stands_beside_what_was_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.why.proof.run_blocks", trained)
    found = plant(tmp_path / "results", wire=1e-4, slower=1e-4)
    places = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    assert command(["explain", "--prove", *places, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    proofs = {one["name"]: one for one in document["proofs"]["proofs"]}
    sums, half, alone = (proofs[name] for name in ("no allreduce", "half the bytes", "a rank alone"))
    assert (sums["launches"], sums["verdict"], sums["missing"]) == (6, CONFIRMED, "")
    assert sums["measured"] == pytest.approx(0.2 / 1.3, abs=0.003) == sums["own"]
    assert sums["expected"]["value"] == pytest.approx(0.1 / 1.2, abs=0.002)  # of another day: it does not decide
    assert (half["verdict"], half["measured"]) == (CANNOT_TELL, pytest.approx(0.05 / 1.3, abs=0.003))
    # A step computes 1.1 ms; of the base's, which are twice as many, 1.0.
    assert (alone["verdict"], alone["against"]) == (CONFIRMED, "no allreduce")
    assert alone["measured"] == pytest.approx(0.1 / 1.3, abs=0.003) == alone["own"]
    kept = newest_proofs(tmp_path / "results", found.loaded.folder.name)
    assert kept and [one.verdict for one in kept.proofs] == [CONFIRMED, CANNOT_TELL, CONFIRMED]
    page = Path(document["page"]).read_text()
    assert "Counterfactuals confirm 2 of 3 expectations and refute 0." in page
    assert "Proof" in page and "half of the allreduce&#39;s bandwidth term (WIRE=bf16)" in page


def test_what_cannot_wait_for_a_turn_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks take 1 GB each; four are free: the launch as it is and the one without sums, no more."""
    monkeypatch.setattr("harness.why.proof.run_blocks", trained)
    monkeypatch.setattr("harness.why.proof.memory_limit", lambda: 4 * 2**30 + 1)
    found, said = plant(tmp_path / "results", wire=1e-4), list[str]()
    ranks = tuple(replace(rank, peak_memory_bytes=2**30) for rank in make_ranks(2, 6400, 64))
    runs = tuple(replace(run, ranks=ranks) if len(run.ranks) == 2 else run for run in found.loaded.runs)
    large = replace(found, loaded=replace(found.loaded, runs=runs))
    proofs = prove_overheads(large, blocks=3, data_dir=None, results=tmp_path / "results", say=said.append)
    assert [one.name for one in proofs.proofs] == ["no allreduce"]
    assert (
        "not launched: half the bytes: it cannot wait for a turn: its 2 ranks need 2.0 GB of memory, 0.0 are free"
        in said
    )
    own = tuple(replace(run, point=replace(run.point, oversubscribe=True)) for run in found.loaded.runs)
    with pytest.raises(RunError, match="no counterfactual can train in turns"):
        prove_overheads(
            replace(found, loaded=replace(found.loaded, runs=own)),
            blocks=3,
            data_dir=None,
            results=tmp_path / "other",
            say=said.append,
        )
    assert any(line.startswith("not launched: as it is: it cannot wait for a turn: GPUs, images") for line in said)
    assert not (tmp_path / "other").exists()


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.alone
@pytest.mark.usefixtures("warm")
def test_counterfactuals_train_in_turns(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plant(tmp_path / "results", wire=12e-6, epochs=12)
    name = found.loaded.folder.name
    places = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    assert command(["explain", "--prove", "--repeats", "1", *places]) == 0
    said = capsys.readouterr().out
    assert said.index("expected: no allreduce (SYNC=none) gives 1.2 %") < said.index(
        "block 1 of 1, in turns: as it is, no allreduce"
    )
    assert "Counterfactuals confirm 0 of 1 expectations and refute 0." in " ".join(said.split())  # one block: nothing
    (place,) = (tmp_path / "results" / FOLDER / name).iterdir()
    assert {file.name for file in place.iterdir()} == {PLAN_FILE, PROOF_FILE, LAUNCHES}
    kept = newest_proofs(tmp_path / "results", name)
    assert kept and [(one.verdict, one.launches) for one in kept.proofs] == [(CANNOT_TELL, 1)]
    assert kept.proofs[0].measured is not None and kept.proofs[0].own is not None
    records = [json.loads(record.read_text()) for record in place.glob("launches/*/run.json")]
    assert {told["point"]["workload"]["sync"] for told in records} == {"none", "gradients"}
    assert len({told["block"] for told in records}) == 1 and all(told["ranks"][1] for told in records)
    assert "What is expected was written down before" in Path(said.splitlines()[-1]).read_text()
