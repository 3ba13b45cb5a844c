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
from harness.prediction.forecast import network_reference
from harness.prediction.network_cost import BEST, Levels, Link, allreduce_seconds
from harness.probe.fit_costs import fit_cost
from harness.schema.message_cost import NETWORK, NODE, POINT_TO_POINT, MessageCosts, Probe, Setting
from harness.schema.record import encode
from tests.factories import make_launch, make_provenance, write_report, write_run, write_study

ALPHA, BETA = 2e-6, 1e-9
BYTES = 712_440  # of MNIST-DNN's weights, as the factories' records have them


def write_probe(results: Path, machine: Machine, *, between: float = 0) -> None:
    """Write a probe of one host, and of links between hosts that cost `between` times as much."""
    sizes = (8, 65_536, 1_048_576)
    costs = [fit_cost(POINT_TO_POINT, NODE, 2, {size: [ALPHA + BETA * size] * 6 for size in sizes})]
    if between:
        costs.append(fit_cost(POINT_TO_POINT, NETWORK, 2, {n: [between * (ALPHA + BETA * n)] * 6 for n in sizes}))
    probe = Probe(
        schema=1,
        measured=datetime(2026, 1, 5, tzinfo=UTC),
        machine=machine,
        mpi_library="Open MPI v5.0.11",
        launcher="mpirun -n 2",
        hosts=("node1", "node1"),
        by_setting=(
            MessageCosts(
                setting=Setting(name="default", mca={}), costs=tuple(costs)
            ),
        ),
    )  # fmt: skip
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
    inside = [allreduce_seconds(BEST, [p], BYTES, Levels(network=Link(alpha_s=ALPHA, beta_s_per_byte=BETA)))[0]
              for p in (1, 2, 4)]  # fmt: skip
    assert [one.allreduce_s for one in reference.points] == pytest.approx(inside, rel=1e-3)


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
