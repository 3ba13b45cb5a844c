"""The cost of messages and sums on a probed network, by hand."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.base.provenance import Machine
from harness.prediction.network_cost import allreduce_seconds, read_links
from harness.probe.message_fit import fit_cost
from harness.schema.message_cost import ALLREDUCE, NODE, POINT_TO_POINT, MessageCosts, Probe, Setting
from harness.schema.record import encode
from tests.labs.code_sentences import worded
from tests.labs.factories import make_provenance

ALPHA, BETA = 2e-6, 1e-9


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


def test_a_message_takes_what_the_probe_measured_of_its_size(tmp_path: Path) -> None:
    """Above 64 kB the library asks first, for 20 us; no straight line says so of 32 kB and of 256."""
    write_probe(tmp_path, make_provenance().machine, asking=20e-6)
    network, _ = read_links(str(tmp_path / "probes/1x2/probe.json"), None, 1)
    short, long = ALPHA + BETA * 2**15, ALPHA + BETA * 2**18 + 20e-6
    halves = 2 * (long + ALPHA + BETA * 2**17 + 20e-6)
    by_hand = {"recursive-doubling": (2**18, 2 * long), "rabenseifner": (2**19, halves), "ring": (2**17, 6 * short)}
    for algorithm, (size, seconds) in by_hand.items():
        levels = replace(network.value, algorithm=algorithm)
        assert allreduce_seconds([4], size, levels)[0] == pytest.approx(seconds, rel=1e-6), algorithm
    shutil.rmtree(tmp_path / "probes")
    write_probe(tmp_path, make_provenance().machine, asking=20e-6, both_ways=1.5)
    network, said = read_links(str(tmp_path / "probes/1x2/probe.json"), None, 1)
    levels = replace(network.value, algorithm="rabenseifner")
    assert allreduce_seconds([4], 2**19, levels)[0] == pytest.approx(1.5 * halves, rel=1e-6)
    assert worded(said, "prediction.network_cost.probe_links").count("both") == 1
