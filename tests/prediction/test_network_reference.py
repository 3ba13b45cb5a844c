"""The reference by the probed network: by hand, inside a host, in the report, and absent without a probe."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.analysis.frames import launch_frame
from harness.analysis.read_results import load_sweep
from harness.analysis.scaling import scale
from harness.base.provenance import Machine
from harness.prediction.network_cost import BEST, Levels, Link, allreduce_seconds, read_links
from harness.prediction.network_reference import network_reference
from harness.probe.message_fit import fit_cost
from harness.schema.message_cost import ALLREDUCE, NETWORK, NODE, POINT_TO_POINT, MessageCosts, Probe, Setting
from harness.schema.record import encode
from tests.labs.factories import make_launch, make_provenance, write_report, write_run, write_study

ALPHA, BETA = 2e-6, 1e-9
BYTES = 712_440  # of MNIST-DNN's weights, as the factories' records have them


def write_probe(
    results: Path, machine: Machine, *, between: float = 0, asking: float = 0, both_ways: float = 0
) -> None:
    """Write a probe of one host, and of links between hosts that cost `between` times as much.

    Messages above 64 kB take `asking` seconds more, and all `both_ways` times as long in an allreduce.
    """
    sizes = [2**power for power in range(3, 21)]
    times = {size: [ALPHA + BETA * size + asking * (size > 2**16)] * 6 for size in sizes}
    costs = [fit_cost(POINT_TO_POINT, NODE, 2, times)]
    if both_ways:
        longer = {2 * size: [2 * both_ways * one for one in own] for size, own in times.items()}
        costs.append(fit_cost(ALLREDUCE, NODE, 2, longer))
    if between:
        costs.append(fit_cost(POINT_TO_POINT, NETWORK, 2, {n: [between * (ALPHA + BETA * n)] * 6 for n in sizes}))
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


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Return a sweep on 1, 2 and 4 ranks: 100 steps of 10 ms on one rank, batch per rank fixed."""
    folder = tmp_path / "results" / "study"
    write_study(folder, ranks=(1, 2, 4))
    for ranks, seconds in ((1, 1.0), (2, 0.6), (4, 0.4)):
        write_run(folder, make_launch(ranks, 0, seconds, sync=0.0 if ranks == 1 else 0.1))
    return folder


def test_the_bound_by_hand(sweep: Path) -> None:
    write_probe(sweep.parent, make_provenance().machine)
    loaded = load_sweep(sweep)
    for base in (1, 2):
        scaling = scale(launch_frame(loaded.runs, loaded.epochs), base_ranks=base)
        assert scaling is not None
        reference = network_reference(loaded, scaling)
        assert reference is not None and "inside one host, which stands for the network too" in reference.network
        for one, ranks in zip(reference.points, (1, 2, 4), strict=True):
            rounds = {1: 0, 2: 1, 4: 2}[ranks]
            share = 2 * (ranks - 1) / ranks * BYTES * BETA
            allreduce = min(2 * rounds * ALPHA + share, rounds * (ALPHA + BYTES * BETA))
            assert one.compute_s == pytest.approx(0.01) and one.straggler_s == 0  # no steps, no distribution
            assert one.allreduce_s == pytest.approx(allreduce, rel=1e-3)
            steps = 100 / ranks
            assert one.speedup == pytest.approx(scaling.base.seconds / (steps * (0.01 + allreduce)), rel=1e-4)
            assert one.point.step_seconds >= one.step_s * (1 - 1e-9)


def test_ranks_of_one_host_are_not_charged_the_network(sweep: Path) -> None:
    """Nodes of a local sweep are cores of one host: its links, and not those between hosts, carry the sums."""
    write_probe(sweep.parent, make_provenance().machine, between=10)
    loaded = load_sweep(sweep)
    scaling = scale(launch_frame(loaded.runs, loaded.epochs))
    assert scaling is not None
    reference = network_reference(loaded, scaling)
    assert reference is not None
    inside = [
        allreduce_seconds(BEST, [p], BYTES, Levels(network=Link(alpha_s=ALPHA, beta_s_per_byte=BETA)))[0]
        for p in (1, 2, 4)
    ]
    assert [one.allreduce_s for one in reference.points] == pytest.approx(inside, rel=1e-3)


def test_a_message_takes_what_the_probe_measured_of_its_size(tmp_path: Path) -> None:
    """Above 64 kB the library asks first, for 20 us; no straight line says so of 32 kB and of 256."""
    write_probe(tmp_path, make_provenance().machine, asking=20e-6)
    network, _ = read_links(str(tmp_path / "probes/1x2/probe.json"), None, 1)
    short, long = ALPHA + BETA * 2**15, ALPHA + BETA * 2**18 + 20e-6
    halves = 2 * (long + ALPHA + BETA * 2**17 + 20e-6)
    by_hand = {"recursive-doubling": (2**18, 2 * long), "rabenseifner": (2**19, halves), "ring": (2**17, 6 * short)}
    for algorithm, (size, seconds) in by_hand.items():
        assert allreduce_seconds(algorithm, [4], size, network.value)[0] == pytest.approx(seconds, rel=1e-6), algorithm
    shutil.rmtree(tmp_path / "probes")
    write_probe(tmp_path, make_provenance().machine, asking=20e-6, both_ways=1.5)
    network, said = read_links(str(tmp_path / "probes/1x2/probe.json"), None, 1)
    assert allreduce_seconds("rabenseifner", [4], 2**19, network.value)[0] == pytest.approx(1.5 * halves, rel=1e-6)
    assert "both ways at once" in said


@pytest.mark.slow
def test_the_report_shows_it_where_there_is_a_probe_of_the_machine(sweep: Path, tmp_path: Path) -> None:
    other = replace(make_provenance().machine, fingerprint="another")
    write_probe(sweep.parent, other)
    assert 'aria-label="Reference by this machine' not in write_report(sweep, tmp_path / "reports").read_text()
    shutil.rmtree(sweep.parent / "probes")
    write_probe(sweep.parent, make_provenance().machine)
    page = write_report(sweep, tmp_path / "reports")
    assert (
        'aria-label="Reference by this machine' in page.read_text() and "Dotted: the reference by" in page.read_text()
    )
    assert "reference" in (page.parent / "laws.csv").read_text()
