"""Scripts in Horovod's words: what its collectives give, refuse and train."""

import json

import numpy as np
import pytest

from tests.mpi.launch import PROGRAMS, run_ranks


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
        half_rows,
        [True, True],
        [1.5, 2],
        40 * [-56],
    ]
    assert gradient == [[3, 3]] and other["eager"][1] == [[3, 3], [3, 3]]
    assert own["graph"][:2] == own["eager"][:2] and other["graph"][:2] == other["eager"][:2]
    for rank in (own, other):
        kinds = [kind for kind, _ in rank["eager"][2]]
        assert kinds == ["FailedPreconditionError"] * 5 + ["InvalidArgumentError"]
        assert [kind for kind, _ in rank["graph"][2]] == kinds
    assert refused == other["eager"][2]
    assert refused[0][1] == "allreduce 'lengths': the shape is (3,) on rank 0 and (4,) on rank 1"
    assert own["drawn"][0] != other["drawn"][0] and own["drawn"][1] != other["drawn"][1]
    assert own["object"] == {"from": 1} == other["object"]
    assert own["session"] == 12 == other["session"]
    assert own["taped"] == [1, 4] == other["taped"]
    assert own["kept"] == [1, 2] == other["kept"]
    assert own["last"] == 1 == other["last"]


@pytest.mark.mpi  # exchanges of two ranks are counted
def test_sums_that_do_not_wait_for_each_other_are_made_in_one_exchange_with_the_same_bits(tmp_path):
    finished = run_ranks(2, "-m", "harness.transparent", PROGRAMS / "fused_sums.py", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr[-3000:]
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("FOUND")]
    for found in json.loads(line.partition(" ")[2]):
        exchanges = {name: value[0] for name, value in found.items() if name != "misfit"}
        assert exchanges == {
            "independent": 1,
            "averaged": 1,
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
    assert divided["class"] == "keras.src.optimizers.sgd.SGD" and divided["again"] == "SGD"
    assert divided["variables"] == 6 and divided["rate"] == pytest.approx(0.1)
    for spelling in ("optimizer.variables()", "experimental_run_tf_function", "Optimizer(lr=)"):
        assert finished.stderr.count(f"Keras 2 spelling {spelling}") <= 1
        assert spelling in finished.stderr
