"""Records of probes."""

from datetime import UTC, datetime

import numpy as np

from harness.probe.measuring_ranks import MessageSeries
from harness.probe.message_fit import fit_launches
from harness.probe.probe_runner import ProbeSamples, message_sizes
from harness.schema.message_cost import (
    ALLREDUCE,
    NODE,
    MessageCosts,
    Probe,
    Setting,
)
from tests.labs.factories import make_provenance

SIZES = message_sizes()


def noisy(
    alpha: float, beta: float, *, noise: float = 0.03, launches: int = 25, seed: int = 1
) -> dict[int, list[float]]:
    """Return launches' medians of alpha + beta * bytes with lognormal noise, which is what timings have."""
    generator = np.random.default_rng(seed)
    return {size: list((alpha + beta * size) * generator.lognormal(0, noise, launches)) for size in SIZES}


def make_probe(ways: dict[str, tuple[float, float]], *, noise: float = 0.03, **changes: object) -> ProbeSamples:
    """Return a probe whose settings (by name) reduce natively with these alpha and beta; the first is the default."""
    series = {
        name: [
            tuple(
                MessageSeries(operation=operation, level=NODE, ranks=2, bytes=size, seconds=(seconds[launch],))
                for operation in ("reduction:native", ALLREDUCE)
                for size, seconds in noisy(*costs, noise=noise, launches=6, seed=number).items()
            )
            for launch in range(6)
        ]
        for number, (name, costs) in enumerate(ways.items())
    }
    probe = Probe(
        schema=1,
        measured=datetime(2026, 1, 5, tzinfo=UTC),
        machine=make_provenance().machine,
        mpi_library="Open MPI v5.0.11",
        launcher="mpirun -n 2",
        hosts=("node1", "node1"),
        by_setting=tuple(
            MessageCosts(
                setting=Setting(name=name, mca={} if number == 0 else {"pml": name}),
                costs=fit_launches(found, next(iter(series.values()))),
            )
            for number, (name, found) in enumerate(series.items())
        ),
        **changes,  # type: ignore[arg-type]
    )
    return ProbeSamples(
        probe=probe,
        samples=tuple(
            (name, launch, one) for name, found in series.items() for launch, part in enumerate(found) for one in part
        ),
    )
