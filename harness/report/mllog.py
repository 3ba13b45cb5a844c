"""A launch as the ``:::MLLOG`` lines that MLPerf's tools read (github.com/mlcommons/logging, training rules)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from harness.base import __version__
from harness.base.errors import UserError
from harness.schema.record import RunRecord
from harness.schema.workload import is_script

_START, _END, _POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"
_MLPERF = {"imagenet-resnet50": "resnet"}  # workloads that are a benchmark of MLPerf's, by its name there


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitter:
    """Who submits, and the test accuracy at which training is done (None: after its epochs)."""

    organisation: str
    platform: str = ""
    target: float | None = None


def mllog(run: RunRecord, by: Submitter) -> str:
    """Return the lines of `run`, in the open division, one event a line.

    A record has when a launch began and how long its parts took: the times between are these added up. Caches are not
    cleared before a launch, and the line says so. ``run_stop`` is ``success`` where the target was reached.

    Raises:
        UserError: the launch is invalid, no epoch was evaluated, or it is of a script of the user's own.
    """
    if run.invalid:
        raise UserError(f"'{run.point.folder}' is no result: {run.invalid[0]}")
    if is_script(run.point.workload) or not any(epoch.test_accuracy is not None for epoch in run.epochs):
        raise UserError(f"'{run.point.folder}' has no test accuracy, which MLPerf asks for")
    return "".join(f":::MLLOG {json.dumps(event)}\n" for event in _events(run, by))


def _events(run: RunRecord, by: Submitter) -> Iterator[dict[str, object]]:
    """Yield the events in order of time; the clock is moved on from one to the next."""
    at = run.started

    def event(kind: str, key: str, value: object = None, **metadata: object) -> dict[str, object]:
        told = {"file": f"harness {__version__}", "lineno": 0, **metadata}
        time_ms = round(at.timestamp() * 1000)
        return {"namespace": "", "time_ms": time_ms, "event_type": kind, "key": key, "value": value, "metadata": told}

    for key, value in _facts(run, by):
        yield event(_POINT, key, value)
    yield event(_START, "init_start")
    at += timedelta(seconds=max(rank.load_s + rank.distribute_s + rank.compile_s for rank in run.ranks))
    yield event(_END, "init_stop")
    yield event(_START, "run_start")
    evaluated = [epoch.epoch for epoch in run.epochs if epoch.test_accuracy is not None]
    each = timedelta(seconds=max(rank.evaluate_s for rank in run.ranks) / len(evaluated))
    reached = False
    for epoch in run.epochs:
        number = {"epoch_num": epoch.epoch + 1}
        yield event(_START, "epoch_start", **number)
        at += timedelta(seconds=max(epoch.seconds))
        yield event(_END, "epoch_stop", **number)
        if epoch.test_accuracy is None:
            continue
        yield event(_START, "eval_start", **number)
        at += each
        yield event(_POINT, "eval_accuracy", epoch.test_accuracy, **number)
        yield event(_END, "eval_stop", **number)
        reached = by.target is None or epoch.test_accuracy >= by.target
        if by.target is not None and reached:
            break
    yield event(_END, "run_stop", status="success" if reached else "aborted")


def _facts(run: RunRecord, by: Submitter) -> Iterator[tuple[str, object]]:
    workload, machine = run.point.workload, run.provenance.machine
    yield "cache_clear", False
    yield "submission_benchmark", _MLPERF.get(workload.name, workload.name)
    yield "submission_org", by.organisation
    yield "submission_division", "open"
    yield "submission_status", "research"
    yield "submission_platform", by.platform or f"{run.point.layout.nodes} x {machine.cpu}"
    if run.seed is not None:
        yield "seed", run.seed
    yield "global_batch_size", run.global_batch
    yield "gradient_accumulation_steps", 1
    yield "train_samples", sum(rank.rows for rank in run.ranks)
    yield "eval_samples", run.data.test_rows
    yield "opt_name", workload.optimizer
    yield "opt_base_learning_rate", workload.learning_rate
    yield "number_of_ranks", run.point.layout.ranks
