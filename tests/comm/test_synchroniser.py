"""Sync policies beside references in NumPy, with several ranks simulated by threads, and what their sums cost."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from harness.base.errors import UserError
from harness.schema.own_code import find_policy
from harness.schema.sync_policies import DiLoCo, Mean, PowerSGD, SyncPolicy
from harness.transparent.run_settings import RunSettings
from tests.labs.factories import make_workload
from tests.labs.sentences import refuses

RANKS, STEPS = 3, 4
SHAPES = ((3, 3, 4, 10), (10,), (40, 20), ())


def simulated(policy: SyncPolicy, step: Callable[[int, Mean, list[Any]], list[Any]], weights: Sequence[Any]) -> Any:
    """Return what `step` returns on each of RANKS threads; their sums meet as those of ranks do."""
    meeting, told = threading.Barrier(RANKS, timeout=120), [list[Any]() for _ in range(RANKS)]

    def run(rank: int) -> list[Any]:
        def total(values: Sequence[Any], label: str) -> list[Any]:
            told[rank] = [tf.convert_to_tensor(value) for value in values]
            meeting.wait()
            found = [tf.add_n(each) for each in zip(*told, strict=True)]
            meeting.wait()
            return found

        return step(rank, total, [tf.Variable(value) for value in policy.state(weights)])

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(run, range(RANKS)))


def drawn(*size: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=(*size, *shape)) for shape in SHAPES]


def test_diloco_makes_nesterovs_steps_with_the_mean_change_for_a_gradient() -> None:
    """Reference: SGD with Nesterov's momentum as PyTorch documents it, of algorithm 1's outer gradient."""
    weights, changes = drawn(), drawn(STEPS, RANKS, seed=1)
    policy = DiLoCo(period=1)

    def train(rank: int, total: Mean, state: list[Any]) -> list[Any]:
        values = [tf.constant(value) for value in weights]
        for number in range(STEPS):
            local = [value + change[number, rank] for value, change in zip(values, changes, strict=True)]
            values = policy.weights(local, lambda own, label: total([one / RANKS for one in own], label), state)
        return values

    found = simulated(policy, train, weights)
    for place, value in enumerate(weights):
        outer, buffer = value.copy(), 0.0
        for number in range(STEPS):
            gradient = -changes[place][number].mean(axis=0)
            buffer = 0.9 * buffer + gradient
            outer -= 0.7 * (gradient + 0.9 * buffer)
        for own in found:
            np.testing.assert_allclose(own[place], outer, rtol=1e-12)


def gram_schmidt(matrix: np.ndarray) -> np.ndarray:
    columns: list[np.ndarray] = []
    for column in matrix.T:
        rest = column - sum((other * (other @ column) for other in columns), np.zeros_like(column))
        columns.append(rest / np.linalg.norm(rest))
    return np.stack(columns, axis=1)


def test_powersgd_is_the_papers_algorithm_with_errors_fed_back_and_a_warm_start() -> None:
    """Reference: algorithms 1 and 2 with gradients of every worker's own mean, as the paper has them."""
    gradients, policy = drawn(STEPS, RANKS), PowerSGD(rank=2)
    weights = [np.zeros(shape) for shape in SHAPES]

    def train(rank: int, total: Mean, state: list[Any]) -> list[Any]:
        return [
            policy.gradients([tf.constant(one[number, rank] / RANKS) for one in gradients], total, state)
            for number in range(STEPS)
        ]

    found = simulated(policy, train, weights)
    first = dict(zip((0, 2), policy.state(weights)[2:], strict=True))
    for place, shape in enumerate(SHAPES):
        errors, factor = np.zeros((RANKS, *shape)), first.get(place)
        for number in range(STEPS):
            own = gradients[place][number] + errors
            applied = own.mean(axis=0)
            if factor is not None:
                matrices = own.reshape(RANKS, -1, shape[-1])
                left = gram_schmidt((matrices @ factor).mean(axis=0))
                rights = np.stack([matrix.T @ left for matrix in matrices])
                factor = rights.mean(axis=0)
                errors = own - (left @ rights.transpose(0, 2, 1)).reshape(own.shape)
                applied = (left @ factor.T).reshape(shape)
                assert np.linalg.matrix_rank(applied.reshape(-1, shape[-1])) == 2
            for one in found:
                np.testing.assert_allclose(one[number][place], applied, rtol=1e-9, atol=1e-12)


def test_a_gradient_of_the_rank_is_exact_and_nothing_is_left_out() -> None:
    random = np.random.default_rng(3)
    exact = random.normal(size=(40, 2)) @ random.normal(size=(2, 20))
    policy = PowerSGD(rank=2)
    state = [tf.Variable(value) for value in policy.state([exact])]
    (found,) = policy.gradients([tf.constant(exact)], lambda own, label: list(own), state)
    np.testing.assert_allclose(found, exact, rtol=1e-9)
    np.testing.assert_allclose(state[0], 0, atol=1e-12)
    (zero,) = policy.gradients([tf.zeros_like(found)], lambda own, label: list(own), state)
    np.testing.assert_allclose(zero, 0, atol=1e-12)


def test_sums_of_a_synchronisation() -> None:
    assert find_policy("diloco:5").sums(SHAPES) == [[360, 10, 800, 1]]
    assert find_policy("powersgd:2").sums(SHAPES) == [[36 * 2, 10, 40 * 2, 1], [10 * 2, 20 * 2]]
    assert find_policy("powersgd:99").sums(SHAPES) == [[360, 10, 800, 1]]


def test_what_a_policy_cannot_do_is_refused() -> None:
    with pytest.raises(UserError, match="--precision mixed_bfloat16"):
        make_workload(sync="powersgd:2", precision="mixed_float16")
    with refuses("--wire bf16", "--sync gradients"):
        make_workload(sync="powersgd:2", wire="bf16")
    for text in ("diloco:5", "powersgd:2"):
        with refuses("--sync", text):
            RunSettings(sync=text)
