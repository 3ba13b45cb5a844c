"""The cost of messages and sums: the formulas by hand, a probed network, and SimGrid's simulator."""

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.base.provenance import Machine
from harness.prediction.extrapolation import measured_factor
from harness.prediction.network_cost import (
    Link,
    allreduce_seconds,
    rabenseifner,
    read_links,
    recursive_doubling,
    ring,
)
from harness.probe.message_fit import fit_cost
from harness.schema.message_cost import ALLREDUCE, NODE, POINT_TO_POINT, MessageCosts, Probe, Setting
from harness.schema.record import encode
from tests.labs.factories import make_provenance
from tests.labs.sentences import says
from tests.labs.simgrid import simulate_step

ALPHA, BETA = 2e-6, 1e-9
LINK = Link(alpha_s=2e-6, beta_s_per_byte=1e-10)
FORMULAS = {"ring": ring, "rabenseifner": rabenseifner, "recursive-doubling": recursive_doubling}
# The bytes of a workload's float32 weights, and a step's computation of a core of some years ago, in seconds.
ACOUSTIC_DNN, CIFAR10_CNN = (122_412, 140e-6), (17_198_120, 40e-3)


def write_probe(results: Path, machine: Machine, *, asking: float = 0, both_ways: float = 0) -> None:
    """Write a probe of one host.

    Messages above 64 kB take `asking` seconds more, and all `both_ways` times as long in an allreduce.
    """
    sizes = [2**power for power in range(3, 21)]
    times = {size: [ALPHA + BETA * size + asking * (size > 2**16)] * 6 for size in sizes}
    costs = [fit_cost(POINT_TO_POINT, NODE, 2, times)]
    if both_ways:
        longer = {2 * size: [2 * both_ways * seconds for seconds in sample] for size, sample in times.items()}
        costs.append(fit_cost(ALLREDUCE, NODE, 2, longer))
    probe = Probe(
        schema=1,
        measured=datetime(2026, 1, 5, tzinfo=UTC),
        machine=machine,
        mpi_library="Open MPI v5.0.11",
        launcher="mpirun -n 2",
        hosts=("node1", "node1"),
        by_setting=(MessageCosts(setting=Setting(name="default", mca={}), costs=tuple(costs)),),
    )
    (results / "probes" / "1x2").mkdir(parents=True)
    (results / "probes" / "1x2" / "probe.json").write_bytes(encode(probe))


@pytest.mark.parametrize(
    ("algorithm", "by_hand"),
    [
        ("ring", 2 * 7 * 2e-6 + 2 * 7 / 8 * 1e6 * 1e-10),
        ("rabenseifner", 2 * 3 * 2e-6 + 2 * 7 / 8 * 1e6 * 1e-10),
        ("recursive-doubling", 3 * (2e-6 + 1e6 * 1e-10)),
    ],
)
def test_allreduce_formulas_by_hand(algorithm: str, by_hand: float) -> None:
    assert FORMULAS[algorithm](np.array([1.0, 8.0]), 1e6, LINK) == pytest.approx([0, by_hand])


@pytest.mark.parametrize(
    ("algorithm", "by_hand"),
    [
        ("ring", 2 * 5 * 2e-6 + 2 * 5 / 6 * 1e6 * 1e-10),
        ("rabenseifner", 2 * 2 * 2e-6 + 2 * 3 / 4 * 1e6 * 1e-10 + 2 * 102e-6),
        ("recursive-doubling", 2 * 102e-6 + 2 * 102e-6),
    ],
)
def test_six_ranks_pay_for_being_no_power_of_two(algorithm: str, by_hand: float) -> None:
    assert FORMULAS[algorithm](np.array([1.0, 6.0]), 1e6, LINK) == pytest.approx([0, by_hand])


def test_the_cheapest_allreduce_is_taken_of_each_count() -> None:
    counts = np.array([2.0, 6.0, 8.0, 100.0])
    least = np.min([formula(counts, 1e6, LINK) for formula in FORMULAS.values()], axis=0)
    assert allreduce_seconds(counts, 1e6, LINK) == pytest.approx(least)


def test_100_000_rank_counts_are_finite_and_take_no_loop_over_ranks() -> None:
    counts = np.arange(1, 100_001)
    jitter = np.random.default_rng(0).lognormal(0, 0.05, 2000)
    start = time.process_time()
    for size in (ACOUSTIC_DNN[0], CIFAR10_CNN[0]):
        assert np.isfinite(allreduce_seconds(counts, size, LINK)).all()
    assert np.isfinite(measured_factor(jitter, counts)).all()
    assert time.process_time() - start < 20  # about one here; a loop over ranks takes minutes


def test_a_message_takes_what_the_probe_measured_of_its_size(tmp_path: Path) -> None:
    """Above 64 kB the library asks first, for 20 us; no straight line says so of 32 kB and of 256."""
    write_probe(tmp_path, make_provenance().machine, asking=20e-6)
    network, _ = read_links(str(tmp_path / "probes/1x2/probe.json"))
    short, long = ALPHA + BETA * 2**15, ALPHA + BETA * 2**18 + 20e-6
    halves = 2 * (long + ALPHA + BETA * 2**17 + 20e-6)
    by_hand = {"recursive-doubling": (2**18, 2 * long), "rabenseifner": (2**19, halves), "ring": (2**17, 6 * short)}
    four = np.array([4.0])
    for algorithm, (size, seconds) in by_hand.items():
        assert FORMULAS[algorithm](four, size, network.value)[0] == pytest.approx(seconds, rel=1e-6), algorithm
    shutil.rmtree(tmp_path / "probes")
    write_probe(tmp_path, make_provenance().machine, asking=20e-6, both_ways=1.5)
    network, words = read_links(str(tmp_path / "probes/1x2/probe.json"))
    assert rabenseifner(four, 2**19, network.value)[0] == pytest.approx(1.5 * halves, rel=1e-6)
    assert says(words, "inside one host, which stands").count("both") == 1


@pytest.mark.parametrize("text", ["fast", "1e-6", "-1e-6,1e-9", "1e-6,1e,9", "nan,1e-9", "1,2,3"])
def test_a_network_that_is_none_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"--network.* is "):
        read_links(text)


@pytest.mark.skipif(shutil.which("smpirun") is None, reason="SimGrid is not installed (libsimgrid-dev)")
@pytest.mark.parametrize("algorithm", FORMULAS)
def test_simgrid_agrees_with_the_closed_form(algorithm: str) -> None:
    counts = [2, 4, 16, 64, 256]
    for size, compute_s in (ACOUSTIC_DNN, CIFAR10_CNN):
        for ranks in counts[:4] if algorithm == "ring" else counts:
            step_s = compute_s + float(FORMULAS[algorithm](np.array([float(ranks)]), size, LINK)[0])
            simulated = simulate_step(ranks=ranks, size=size, compute_s=compute_s, link=LINK, algorithm=algorithm)
            # The simulator adds 5 % of traffic for acknowledgements, and a ring's neighbours share links a little.
            assert 0.99 < simulated / step_s < 1.07, (size, ranks)


@pytest.mark.skipif(shutil.which("smpirun") is None, reason="SimGrid is not installed (libsimgrid-dev)")
def test_simulated_ranks_wait_for_the_slowest() -> None:
    jitter = tuple(np.random.default_rng(0).lognormal(0, 0.1, 2000))
    size, compute_s = 712_440, 300e-6
    sums = rabenseifner(np.array([32.0]), size, LINK)[0]
    step_s = compute_s * measured_factor(jitter, [32])[0] + sums
    simulated = simulate_step(
        ranks=32, size=size, compute_s=compute_s, link=LINK, algorithm="rabenseifner", jitter=jitter
    )
    assert simulated == pytest.approx(step_s, rel=0.05)
