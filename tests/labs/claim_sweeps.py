"""Sweeps made up for judging claims: how long an epoch takes at each rank count, and what else launches recorded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import datasets
from harness.analysis.read_results import Loaded
from harness.claims.claim_evidence import ClaimEvidence, evidence_of
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import RunRecord
from harness.schema.workload import Workload
from tests.labs.factories import epoch_frame, make_data, make_run

Change = Callable[[RunRecord], RunRecord]


def sweep(
    epoch_s: dict[int, float],
    *,
    launches: int = 6,
    change: Callable[[RunRecord], RunRecord] = lambda run: run,
    scaling: str = "strong",
    kind: str = "real",
    rows: int | None = None,
    layout: dict[str, int] | None = None,
    **settings: Any,
) -> ClaimEvidence:
    """Return a made-up sweep: `epoch_s` seconds of an epoch at each rank count, launches up to 5 % slower."""
    usual = {"dataset": "mnist", "model": "dnn", "sync": "weights:epoch", "batch_per_rank": 64, "epochs": 3}
    if "global_batch" in settings:
        usual.pop("batch_per_rank")
    workload = Workload(**(usual | settings))
    info = datasets.dataset_info(workload.dataset)
    data = make_data(rows=rows or info.train_rows, name=info.name, kind=kind, features=info.features)
    runs = []
    for number, (ranks, second) in enumerate(epoch_s.items()):
        for repeat in range(launches):
            place = Layout(nodes=ranks, **(layout or {}))
            point = Point(workload=workload, layout=place, repeat=repeat, scaling=scaling)
            drift = 1 + (repeat + 2 * number) % launches / 100  # not alike, or no ratio would spread
            times = [[second * drift] * ranks] * workload.epochs
            runs.append(change(make_run(point, seconds=times, rows=data.train_rows, data=data)))
    loaded = Loaded(
        folder=Path("results/made-up"),
        study=None,
        runs=tuple(runs),
        epochs=epoch_frame(runs),
        slow=(),
        damaged=(),
        failures=(),
    )
    (found,) = evidence_of(loaded)
    return found


def weights(parameters: int) -> Callable[[RunRecord], RunRecord]:
    return lambda run: replace(run, weights=replace(run.weights, parameters=parameters))


def before(**seconds: float) -> Callable[[RunRecord], RunRecord]:
    """Change what a launch does before it trains, in seconds."""

    def change(run: RunRecord) -> RunRecord:
        drift = 1 + run.point.repeat / 1000
        parts = {name: value * drift for name, value in seconds.items()}
        return replace(run, ranks=tuple(replace(rank, import_s=2.0, **parts) for rank in run.ranks))

    return change


def exchanging(wire: dict[int, float]) -> Callable[[RunRecord], RunRecord]:
    """Change the seconds that an epoch's exchange takes on each rank count; the rest of the epoch computes."""

    def change(run: RunRecord) -> RunRecord:
        ranks = run.point.layout.ranks
        took = wire.get(ranks, 0.0) * (1 + run.point.repeat / 1000)
        epochs = tuple(replace(e, sync_seconds=(took,) * ranks, skew_seconds=(0.0,) * ranks) for e in run.epochs)
        return replace(run, epochs=epochs)

    return change


def lasting(epochs: dict[int, int]) -> Callable[[RunRecord], RunRecord]:
    return lambda run: replace(run, epochs=run.epochs[: epochs[run.point.layout.ranks]])


def losing(loss: dict[int, float]) -> Callable[[RunRecord], RunRecord]:
    def change(run: RunRecord) -> RunRecord:
        return replace(run, epochs=tuple(replace(e, train_loss=loss[run.point.layout.ranks]) for e in run.epochs))

    return change


def scoring(accuracy: float) -> Callable[[RunRecord], RunRecord]:
    return lambda run: replace(run, epochs=tuple(replace(e, test_accuracy=accuracy) for e in run.epochs))
