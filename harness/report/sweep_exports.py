"""What a sweep has for other tools' formats: its points' values, its launches as tests, as lines and as samples."""

from collections.abc import Iterator, Sequence

import pandas as pd

from harness.analysis.device_use import energy_of
from harness.analysis.read_results import Loaded
from harness.analysis.report_times import has_report_time, report_time
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.time_parts import EPOCH_PARTS
from harness.report.exports import BenchmarkLine, CaseOutcome, CaseResult, Exports, Reading, ScalingPoint, Unit
from harness.schema.job_usage import Account
from harness.schema.launch_failure import Failure
from harness.schema.point import Point
from harness.schema.record import RunRecord
from harness.schema.sweep import Study

_REGIONS = {"seconds": "epoch"} | {part: f"epoch->{part.removesuffix('_seconds')}" for part in EPOCH_PARTS}
_JOULES = 3600.0  # in a watt-hour


def sweep_exports(loaded: Loaded, launches: pd.DataFrame | None, scaling: Scaling | None) -> Exports:
    """Return what `loaded` has for other formats; `launches` is its frame (`launch_frame`), None without one."""
    cases = [_case_of_run(run) for run in loaded.runs]
    cases += [_case_of_failure(failure) for failure in loaded.failures]
    cases += _skipped(loaded.study)
    for sentence in loaded.damaged:
        cases.append(CaseResult(group=loaded.folder.name, name=sentence, outcome=CaseOutcome.ERROR, reason=sentence))
    return Exports(
        name=loaded.folder.resolve().name,
        readings=_readings(loaded.valid, scaling) if scaling else (),
        cases=cases,
        lines=_lines(loaded, launches) if launches is not None else (),
        points=_points(launches, scaling) if launches is not None and scaling else (),
    )


def _readings(runs: Sequence[RunRecord], scaling: Scaling) -> list[Reading]:
    """Return the values of every point of the scaling table."""
    readings: list[Reading] = []
    for point in scaling.points:
        of_layout = [run for run in runs if str(run.point.layout) == point.layout]
        readings += _readings_of(point, of_layout)
    return readings


def _readings_of(point: PointScaling, runs: Sequence[RunRecord]) -> list[Reading]:
    """Return the values of one `point`, whose valid launches are `runs`; a ratio is there where it has a base."""
    workload = runs[0].point.workload
    when = max(run.ended for run in runs)
    labels = {
        "workload": workload.name,
        "layout": point.layout,
        "ranks": str(point.ranks),
        "commit": runs[0].provenance.commit[:12],
        "machine": runs[0].provenance.machine.fingerprint,
    }
    measured = [
        ("epoch time", Unit.SECONDS, point.seconds, point.seconds_interval),
        ("step time", Unit.SECONDS, point.step_seconds, point.step_interval),
        ("throughput", Unit.ROWS_PER_SECOND, point.rows_per_second, point.rows_interval),
        ("speedup", Unit.RATIO, point.speedup, point.speedup_interval),
        ("efficiency", Unit.RATIO, point.efficiency, point.efficiency_interval),
    ]
    if has_report_time(workload):
        time = report_time(point)
        measured.append(("time to report", Unit.SECONDS, time.seconds, time.interval))
    return [
        Reading(
            subject=f"{workload.name}, {point.layout}",
            quantity=quantity,
            unit=unit,
            value=value,
            interval=interval,
            smaller_is_better=unit is Unit.SECONDS,
            labels=labels,
            when=when,
        )
        for quantity, unit, value, interval in measured
        if value is not None
    ]


def _case_of_run(run: RunRecord) -> CaseResult:
    return CaseResult(
        group=run.point.workload.name,
        name=_launch_name(run.point),
        outcome=CaseOutcome.SKIPPED if run.invalid else CaseOutcome.PASSED,
        seconds=(run.ended - run.started).total_seconds(),
        reason=f"its times do not count: {'; '.join(run.invalid)}" if run.invalid else "",
        output=run.point.folder,
    )


def _case_of_failure(failure: Failure) -> CaseResult:
    return CaseResult(
        group=failure.point.workload.name,
        name=_launch_name(failure.point),
        outcome=CaseOutcome.FAILED,
        seconds=failure.seconds,
        reason=f"exit code {failure.exit_code}: {failure.reason}",
        output=failure.tail,
    )


def _launch_name(point: Point) -> str:
    return f"{point.layout}, launch {point.repeat + 1}"


def _skipped(study: Study | None) -> Iterator[CaseResult]:
    if study is None:
        return
    for skipped in study.skipped:
        yield CaseResult(
            group=study.sweep.workload.name,
            name=str(skipped.layout),
            outcome=CaseOutcome.SKIPPED,
            reason=skipped.reason,
        )


def _lines(loaded: Loaded, launches: pd.DataFrame) -> list[BenchmarkLine]:
    """Return a line for every valid launch."""
    rates = launches.set_index("run")["rows_per_second"]
    accounts = {account.launch: account for account in loaded.accounts}
    lines = []
    for run in loaded.valid:
        rate = float(rates[run.point.folder])
        lines.append(_line(run, rate, accounts.get(run.point.folder)))
    return lines


def _line(run: RunRecord, rows_per_second: float, account: Account | None) -> BenchmarkLine:
    layout = run.point.layout
    machine = run.provenance.machine
    devices = layout.ranks * max(layout.gpus_per_rank, 1)
    joules = _joules(run, account)
    return BenchmarkLine(
        job=account.job if account else run.point.folder,
        system=machine.gpus[0] if layout.gpus_per_rank and machine.gpus else machine.cpu,
        version=f"TensorFlow {run.provenance.tensorflow}",
        queue=account.scheduler if account else "local",
        runtime_s=(run.ended - run.started).total_seconds(),
        model=run.point.workload.model,
        dataset=f"{run.point.workload.dataset}{'(synthetic)' if run.data.kind == 'synthetic' else ''}",
        nodes=layout.nodes,
        devices=devices,
        tasks_per_node=layout.ranks_per_node,
        threads_per_task=layout.threads,
        global_batch=run.global_batch,
        batch_per_device=run.global_batch // devices,
        rows_per_second=rows_per_second,
        energy_wh=None if joules is None else joules / _JOULES / devices,
    )


def _joules(run: RunRecord, account: Account | None) -> float | None:
    """Return the energy of a launch: of its GPUs while it trained, else what the scheduler says of its job."""
    gpus = energy_of([device for device in run.energy if device.is_gpu])
    if gpus is not None:
        return gpus.joules
    return account.usage.energy_j if account and account.usage else None


def _points(launches: pd.DataFrame, scaling: Scaling) -> list[ScalingPoint]:
    """Return the samples of every point, fewest ranks first."""
    valid = launches[launches["valid"]]
    points = []
    for point in scaling.points:
        group = valid[valid["layout"] == point.layout]
        seconds = {}
        for column, region in _REGIONS.items():
            seconds[region] = tuple(map(float, group[column]))
        points.append(
            ScalingPoint(layout=point.layout, ranks=int(point.ranks), threads=int(point.threads), seconds=seconds)
        )
    return points
