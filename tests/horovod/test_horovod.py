"""Scripts in Horovod's words: what its collectives give, refuse and train."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest

from tests.mpi.launch import PROGRAMS, rank_environment, run_ranks


def found(ranks, folder, script, *words):
    finished = run_ranks(ranks, "-m", "harness.transparent", PROGRAMS / script, *words, cwd=folder)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert ("sha256" in finished.stdout) == (ranks > 1)
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("FOUND")]
    return json.loads(line.partition(" ")[2]), finished


@pytest.mark.mpi
def test_collectives_give_and_refuse_the_same_in_and_outside_of_graphs(tmp_path):
    own, _ = found(2, tmp_path, "horovod_script.py")
    other = json.loads((tmp_path / "found-1.json").read_text())
    values, gradient, refused = own["eager"]
    half_rows = [[0, 1], [10, 11], [12, 13]]
    assert values == [
        [3, 10],
        [1, 1],
        2,
        3,
        6,
        [10],
        half_rows,
        [0, 10],
        [1, 1],
        [[0, 2], [4, 6]],
        [True, True],
        [1.5, 2],
        40 * [-56],
    ]
    assert gradient == [[3, 3]] and other["eager"][1] == [[3, 3], [3, 3]]
    assert other["eager"][0][7:10] == [[1, 2, 11, 12], [2, 2], [[8, 10]]]
    assert own["graph"][:2] == own["eager"][:2] and other["graph"][:2] == other["eager"][:2]
    for rank in (own, other):
        kinds = [kind for kind, _ in rank["eager"][2]]
        assert kinds == ["FailedPreconditionError"] * 5 + ["InvalidArgumentError"]
        assert [kind for kind, _ in rank["graph"][2]] == kinds
    assert refused == other["eager"][2]
    assert refused[0][1] == "allreduce 'lengths': the shape is (3,) on rank 0 and (4,) on rank 1"
    assert own["drawn"][0] != other["drawn"][0] and own["drawn"][1] != other["drawn"][1]
    assert own["objects"] == [{"from": 1}, [0, 1]] == other["objects"]
    assert own["even"] == [1, 0, 1] and "even" not in other
    assert own["again"][0] == "ValueError"
    assert own["session"] == 12 == other["session"]
    assert own["taped"] == [1, 4] == other["taped"]
    assert own["kept"] == [1, 2] == other["kept"]
    assert own["joined"] == [2, 2] and other["joined"] == [2, 2, 1, 1]
    assert own["last"] == [1, 1] == other["last"]
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert {event["name"] for event in events} >= {"broadcast", "NEGOTIATE_BROADCAST"}


@pytest.mark.mpi  # exchanges of two ranks are counted
def test_sums_that_do_not_wait_for_each_other_are_made_in_one_exchange_with_the_same_bits(tmp_path):
    finished = run_ranks(2, "-m", "harness.transparent", PROGRAMS / "fused_sums.py", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr[-3000:]
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("FOUND")]
    for found in json.loads(line.partition(" ")[2]):
        exchanges = {name: value[0] for name, value in found.items() if name != "misfit"}
        assert exchanges == {
            "independent": 1,
            "scaled": 1,
            "chained": 2,
            "branch taken": 2,
            "branch left": 1,
            "looped": 4,
            "session": 1,
            "fetched alone": 1,
            "some fetched": 1,
            "after it": 1,
        }
        assert all(value[1] for name, value in found.items() if name != "misfit")
        assert "'second'" in found["misfit"] and "[2,3], rank 1 for" in found["misfit"]
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["allreduce"]
    assert "AutoGraph" not in finished.stderr


@pytest.fixture
def rows(tmp_path):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(16, 3))
    weights = {"w": generator.normal(size=(3, 4)), "v": generator.normal(size=(4, 1))}
    np.savez(tmp_path / "rows.npz", x=x, y=x[:, :1] ** 2, **weights)
    return tmp_path / "rows.npz"


@pytest.mark.mpi
def test_two_ranks_train_as_one_on_the_same_global_batch(tmp_path, rows):
    (alone, _), (divided, finished) = (found(ranks, tmp_path, "horovod_training.py", rows, 1) for ranks in (1, 2))
    for one, both in zip(alone["weights"], divided["weights"], strict=True):
        assert np.asarray(both) == pytest.approx(np.asarray(one), rel=1e-4, abs=1e-6)
    assert divided["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert divided["class"] == "keras.src.optimizers.sgd.SGD" and divided["marked"]
    assert divided["variables"] == 6 and divided["rate"] == pytest.approx(0.1)
    for spelling in ("optimizer.variables()", "experimental_run_tf_function", "Optimizer(lr=)"):
        assert finished.stderr.count(f"Keras 2 spelling {spelling}") <= 1
        assert spelling in finished.stderr


def outlive(folder, ranks, killed, seconds):
    """Train on ranks of which one kills itself; return what each of the others has come to, which must be equal."""
    command = [sys.executable, "-m", "harness", "run", "-n", ranks, PROGRAMS / "elastic_script.py", killed, seconds]
    finished = subprocess.run(
        list(map(str, command)),
        env=rank_environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    left = {rank: folder / f"left-{rank}.json" for rank in range(ranks)}
    found = {rank: json.loads(path.read_text()) for rank, path in left.items() if path.exists()}
    assert len({each["sha256"] for each in found.values()}) == 1
    assert all(each["batch"] == 40 and each["steps"] == 41 for each in found.values())
    return found, finished


@pytest.mark.mpi
def test_a_killed_rank_costs_an_elastic_training_what_is_done_since_the_last_commit(tmp_path):
    """Rank 0 dies before its eighth step: the others begin again from the fifth, in functions compiled before."""
    found, finished = outlive(tmp_path, 3, 0, 0)
    assert list(found) == [1, 2]
    for each in found.values():
        assert each["ranks"] == [3, 2] and each["begun"] == [0, 5] and each["resets"] == [2]
        assert each["losses"][1] < each["losses"][0]
    assert "rank 0 (process" in finished.stderr and "2 go on from the last commit" in finished.stderr
    assert "ended with 2" in finished.stdout and "sha256" in finished.stdout


@pytest.mark.mpi
@pytest.mark.campaign
@pytest.mark.parametrize("number", range(20))
def test_an_elastic_training_outlives_a_rank_that_is_killed_at_any_moment(tmp_path, number):
    chance = random.Random(number)
    found, _ = outlive(tmp_path, 3, number % 3, chance.uniform(0.01, 2))
    assert len(found) >= 2
