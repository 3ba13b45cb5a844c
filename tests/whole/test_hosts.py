"""Two hosts that are not there: the same training as on one, sums by every way, and the wire growing with the delay."""

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.probe.measuring_ranks import ProbePlan, ProbeResult
from harness.probe.message_fit import fit_launches
from harness.schema.message_cost import ALLREDUCE, NETWORK, OVERLAPPED
from harness.schema.record import decode, encode, read_run
from harness.schema.record_notes import NoteCode
from tests.hosts.lab import Lab, hosts, missing
from tests.hosts.predictions import GBIT, Measured, emulated, score
from tests.labs.caches import own_cache
from tests.links import Links
from tests.mpi.launch import PROGRAMS, end_warm, result, serve_warm

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(bool(missing()), reason=f"emulated hosts: {missing()}"),
]

ADULT_BYTES = 180_408


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with hosts(2, tmp_path_factory.mktemp("lab")) as found:
        yield found


@pytest.fixture(scope="module")
def python(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return `warm_python` of both hosts; launches whose ranks are looked at or cut off have their own Python."""
    program, servers = serve_warm(tmp_path_factory.mktemp("warm"), {name: lab.enter(name) for name in lab.pids})
    yield program
    end_warm(servers)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, session_environment: pytest.MonkeyPatch) -> None:
    session_environment.setenv("HARNESS_CACHE_DIR", own_cache(tmp_path_factory.mktemp("cache")))


def run(lab: Lab, python: str, ranks_per_host: int, *words: object) -> "subprocess.CompletedProcess[str]":
    """Run a rank program, which must succeed, on both hosts."""
    finished = lab.run([*lab.launcher(ranks_per_host), python, *words], timeout=480)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished


def told(lab: Lab, python: str, ranks_per_host: int, *words: object) -> Any:
    """Return what rank 0 printed behind RESULT."""
    finished = run(lab, python, ranks_per_host, *words)
    (line,) = (line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def test_two_hosts_train_as_one_does(lab: Lab, python: str) -> None:
    """2 hosts x 2 ranks: 50 steps of the same losses as one rank, and equal replicas."""
    lab.network()
    apart = told(lab, python, 2, PROGRAMS / "invariance.py", "adult-dnn")["adult-dnn"]
    together = result(1, "invariance.py", "adult-dnn")["adult-dnn"]
    assert apart["losses"] == pytest.approx(together["losses"], rel=1e-5)
    assert len(apart["sha256"]) == 64  # the program fails unless all ranks have it


def test_every_way_sums_exactly_over_two_hosts(lab: Lab, python: str) -> None:
    lab.network()
    found = told(lab, python, 2, PROGRAMS / "reductions.py", "adam")
    assert "node-aware" in found["node-aware"]["name"] and found["node-aware"]["notes"] == []
    assert "MPI_Allreduce" in found["messages"]["name"]
    assert found["native"]["notes"] == [NoteCode.ALGORITHM_TRIED]
    assert found["no room"]["notes"] == [NoteCode.NO_SHARED_MEMORY] and "MPI_Allreduce" in found["no room"]["name"]
    for choice, outcome in found.items():
        assert outcome["error"] < 1e-5 and outcome["error of float64"] < 1e-13, choice
        assert outcome["one NaN"], choice
        assert (outcome["calls"], outcome["ordered"]) == (80 if choice == "native" else 12, True), choice


def test_between_hosts_a_second_thread_sums_beside_the_backward_pass(lab: Lab, python: str, tmp_path: Path) -> None:
    """2 hosts: as without, bit for bit. tests/comm/test_reduction_choice.py has what else chooses it."""
    lab.network()
    options = ["--dataset", "mnist", "--model", "cnn", "--threads", "2"]
    options += ["--data-kind", "synthetic", "--samples", "1280", "--epochs", "2", "--record"]
    words = [
        ["HARNESS_OVERLAP=", *options, str(tmp_path / "chosen")],
        ["HARNESS_OVERLAP=0", *options, str(tmp_path / "behind")],
    ]
    run(lab, python, 1, PROGRAMS / "trainings.py", json.dumps(words), "[]")
    found = {name: read_run(tmp_path / name) for name in ("chosen", "behind")}
    beside = {name for name, record in found.items() if OVERLAPPED in record.provenance.reduction}
    assert beside == {"chosen"}
    assert found["chosen"].weights.sha256 == found["behind"].weights.sha256
    steps = pd.read_parquet(tmp_path / "chosen/steps.parquet")
    assert len(steps) == 2 * 2 * 10 and (steps["wire_s"] >= 0).all() and (steps["skew_s"] >= 0).all()


def test_a_cut_network_that_heals_is_outlived_and_one_that_stays_ends_all(
    lab: Lab, python: str, tmp_path: Path
) -> None:
    """More of them by hand, also with ON_FAILURE=shrink: python -m tests.links."""
    lab.network()
    links = Links(lab=lab, folder=tmp_path, python=python)
    links.whole()
    for number, kind in enumerate(("heals", "abort")):
        assert links.cut(number, kind, random.Random(number)) == [], kind


@pytest.mark.alone
def test_the_wire_grows_with_the_delay_as_alpha_and_beta_predict(lab: Lab, python: str, tmp_path: Path) -> None:
    wires = {}
    for delay_s in (0.001, 0.004):
        lab.network(delay_s=delay_s)
        predicted = probed(lab, python, tmp_path).line(ADULT_BYTES)
        folder = tmp_path / f"run-{delay_s}"
        options = ["--dataset", "adult", "--data-kind", "synthetic", "--samples", "2560", "--epochs", "2"]
        words = ["-m", "harness", "train", *options, "--record", str(folder)]
        finished = lab.run([*lab.launcher(1), python, *words], timeout=480)
        assert finished.returncode == 0, finished.stderr[-3000:]
        record, steps = read_run(folder), pd.read_parquet(folder / "steps.parquet")
        wires[delay_s] = float(steps.groupby(["epoch", "step"])["wire_s"].mean().median())
        assert wires[delay_s] == pytest.approx(predicted, rel=0.5)
        assert {rank.host for rank in record.ranks} == {"n1", "n2"}
        # Both hosts' clocks are really this machine's one: what was estimated must be 0 within its stated error.
        other = record.ranks[1]
        assert 0 < other.clock_error_s < 3 * delay_s + 0.002
        assert abs(other.clock_offset_s) <= other.clock_error_s
        sums = np.add(record.epochs[1].skew_seconds, record.epochs[1].wire_seconds)
        # The parts are on the common clock, whose estimated drift is a little more or less than none.
        assert sums == pytest.approx(record.epochs[1].sync_seconds, rel=1e-3)
    assert wires[0.004] - wires[0.001] > 0.003  # at least one message more or less stands in the way of every sum


@pytest.mark.alone
@pytest.mark.campaign
def test_predictions_hold_for_ranks_that_the_machine_has_no_cores_for(tmp_path: Path) -> None:
    """More ranks, workloads and networks: python -m tests.hosts.predictions."""
    measured, counts = [Measured("higgs-dnn", tmp_path)], (4, 8)
    kept = emulated(measured, counts, GBIT, 50e-6, 5.0, tmp_path / "kept.json")
    rows = score(measured, counts, kept)
    assert [row[1] for row in rows] == [4, 8] and emulated(measured, counts, 0, 0, 0, tmp_path / "kept.json") == kept
    for _, _, steps, line in rows:
        assert steps.step_s == pytest.approx(steps.compute_s + steps.wait_s + steps.sum_s, rel=0.02)
        assert steps.idle > 0.5, "time must pass slower: the cores limit what is to be the network's"
        assert line.covers(steps)


def probed(lab: Lab, python: str, folder: Path) -> Any:
    """Return the cost of an allreduce between the hosts."""
    plan = ProbePlan(sizes=(8, 1024, 32_768, ADULT_BYTES), samples=7, budget_s=2.0, reductions=())
    (folder / "plan.json").write_bytes(encode(plan))
    answer_file = folder / "answer.json"
    words = ["-m", "harness.probe.measuring_ranks", folder / "plan.json", answer_file]
    finished = lab.run([*lab.launcher(1), python, *words], timeout=120)
    assert answer_file.exists(), finished.stderr[-3000:]
    answer = decode(answer_file.read_bytes(), ProbeResult, answer_file)
    answer_file.unlink()
    assert answer.hosts == ("n1", "n2")
    (cost,) = (cost for cost in fit_launches([answer.series]) if (cost.operation, cost.level) == (ALLREDUCE, NETWORK))
    return cost
