"""Records made by hand for tests: deterministic, whole, and written as the harness writes them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.schema.data_record import DataRecord
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import (
    SCHEMA,
    EpochRecord,
    Failure,
    Machine,
    Provenance,
    RankRecord,
    RunRecord,
    WeightsRecord,
    encode,
)
from harness.schema.sweep import Skipped, Study, Sweep
from harness.schema.sweep_folder import RUN_FILE, STEPS_FILE, STUDY_FILE, SweepFolder
from harness.schema.workload import Workload
from harness.sweep.job_plan import Job

if TYPE_CHECKING:  # tests of the schema load neither tables nor statistics
    import pandas as pd

    from harness.analysis.turn_blocks import BlockTimes

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def make_workload(**changes: Any) -> Workload:
    """Return MNIST-DNN with batch 64 per rank, changed as asked."""
    settings: dict[str, Any] = {"dataset": "mnist", "model": "dnn", "batch_per_rank": 64, "epochs": 3}
    if "global_batch" in changes:
        settings.pop("batch_per_rank")
    return Workload(**(settings | changes))


def make_point(ranks: int = 1, repeat: int = 0, scaling: str = "strong", **changes: Any) -> Point:
    """Return the point of `make_workload(**changes)` on `ranks` nodes of one rank each."""
    return Point(workload=make_workload(**changes), layout=Layout(nodes=ranks), repeat=repeat, scaling=scaling)


def make_job(folder: Path, script: str, repeat: int = 0) -> Job:
    """Return a job of one launch in `folder`, whose script has these lines."""
    job = Job(folder=folder, mode="jobs", points=(make_point(repeat=repeat),))
    for file in (job.script, job.log):
        file.parent.mkdir(exist_ok=True)
    job.script.write_text(script)
    return job


def make_provenance(*, commit: str = "0123456789abcdef", hostname: str = "node1", dirty: bool = False) -> Provenance:
    """Return plausible versions of everything."""
    machine = Machine(
        hostname=hostname,
        cpu="Example CPU 2.5 GHz",
        cores=8,
        memory_bytes=16 * 2**30,
        gpus=(),
        os="Linux 6.1",
        fingerprint=f"f-{hostname}",
    )
    return Provenance(
        harness="0.1.0",
        commit=commit,
        dirty=dirty,
        python="3.11.7",
        tensorflow="2.21.0",
        keras="3.15.1",
        numpy="2.4.6",
        mpi4py="4.1.2",
        mpi_library="Open MPI v5.0.11",
        launcher="mpirun",
        reduction="numpy_function",
        machine=machine,
        load_before=0.1,
        other_load=0.05,
        environment={"OMP_NUM_THREADS": "1"},
    )


def make_data(*, rows: int = 6400, **changes: Any) -> DataRecord:
    """Return real MNIST, cut to `rows` training rows."""
    facts: dict[str, Any] = {
        "name": "mnist",
        "kind": "real",
        "sha256": "ab" * 32,
        "train_rows": rows,
        "test_rows": 1000,
        "features": (28, 28, 1),
        "classes": 10,
    }
    return DataRecord(**(facts | changes))


def make_ranks(ranks: int, rows: int, batch: int) -> tuple[RankRecord, ...]:
    """Return one record per rank, rows dealt as equally as they go."""
    return tuple(
        RankRecord(
            rank=rank,
            host="node1",
            pid=100 + rank,
            cores=(rank,),
            threads=1,
            rows=rows // ranks + (rank < rows % ranks),
            batch=batch,
            import_s=2.0 + rank / 10,
            load_s=0.25,
            distribute_s=0.0,
            compile_s=1.5,
            evaluate_s=0.5,
            peak_memory_bytes=600 * 2**20,
        )
        for rank in range(ranks)
    )


def make_epochs(seconds: Sequence[Sequence[float]], sync: float = 0.1, steps: int = 100) -> tuple[EpochRecord, ...]:
    """Return one epoch for each entry of `seconds` (one time per rank); `sync` is the synchronised fraction."""
    return tuple(
        EpochRecord(
            epoch=number,
            steps=steps,
            seconds=tuple(times),
            sync_seconds=tuple(time * sync for time in times),
            input_seconds=tuple(0.0 for _ in times),
            skew_seconds=tuple(time * sync / 4 for time in times),
            wire_seconds=tuple(time * sync * 3 / 4 for time in times),
            train_loss=1.0 / (number + 1),
            test_loss=1.1 / (number + 1),
            test_accuracy=1 - 0.2 / (number + 1),
        )
        for number, times in enumerate(seconds)
    )


def make_run(
    point: Point | None = None,
    *,
    seconds: Sequence[Sequence[float]] | None = None,
    rows: int = 6400,
    sync: float = 0.1,
    data: DataRecord | None = None,
    provenance: Provenance | None = None,
    **changes: Any,
) -> RunRecord:
    """Return a valid record of `point`; `seconds` has one entry per epoch of one time per rank."""
    point = point or make_point()
    ranks, batch = point.layout.ranks, point.workload.batch(point.layout.ranks)
    steps = rows // batch if point.workload.drop_remainder else -(-rows // batch)
    times = seconds or [[1.0 / ranks] * ranks] * 3
    started = changes.get("started", START + timedelta(minutes=point.repeat))
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "point": point,
        "started": started,
        "ended": started + timedelta(seconds=30),
        "global_batch": batch,
        "steps_per_epoch": steps,
        "data": data or make_data(rows=rows),
        "provenance": provenance or make_provenance(),
        "ranks": make_ranks(ranks, rows, batch // ranks),
        "epochs": make_epochs(times, sync, steps),
        "weights": WeightsRecord(parameters=178110, bytes=712440, sha256="cd" * 32, identical=True),
    }
    return RunRecord(**(facts | changes))


def make_launch(ranks: int, repeat: int, seconds: float, **changes: Any) -> RunRecord:
    """Return a run of three epochs whose launch time is exactly `seconds`; the slow rank is the last one."""
    times = [[seconds * factor] * (ranks - 1) + [seconds * factor] for factor in (0.9, 1.0, 1.3)]
    return make_run(make_point(ranks, repeat), seconds=times, **changes)


def write_run(sweep: Path, run: RunRecord) -> Path:
    """Write `run` into its folder under `sweep`, with an empty table of steps."""
    folder = sweep / run.point.folder
    folder.mkdir(parents=True)
    (folder / RUN_FILE).write_bytes(encode(run))
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"epoch": pa.int32(), "step": pa.int32(), "rank": pa.int32(), "entry_s": pa.float64()}
    schema = pa.schema(columns | {"exit_s": pa.float64()})
    pq.write_table(schema.empty_table(), folder / STEPS_FILE)
    return folder


def write_study(
    sweep: Path, *, skipped: tuple[Skipped, ...] = (), ranks: Sequence[int] = (1, 2), **changes: Any
) -> Study:
    """Write the study file of `make_workload(**changes)` into `sweep`."""
    asked = Sweep(workload=make_workload(**changes), layouts=tuple(Layout(nodes=count) for count in ranks))
    study = Study(schema=1, sweep=asked, skipped=skipped)
    sweep.mkdir(parents=True, exist_ok=True)
    (sweep / STUDY_FILE).write_bytes(encode(study))
    return study


def write_failure(sweep: Path, point: Point, reason: str, exit_code: int = 1) -> Failure:
    """Write the failure of `point` into `sweep`."""
    failure = Failure(point=point, ended=START, exit_code=exit_code, reason=reason, tail=f"Traceback\n{reason}")
    path = SweepFolder(sweep).failure(point.folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(failure))
    return failure


def write_report(folder: Path, reports: Path, **options: Any) -> Path:
    """Draw the report of the sweep in `folder` and return the path of its page."""
    from harness.report.sweep_answer import report_sweep

    page = report_sweep(folder, reports, **options).page
    assert page is not None
    return page


def epoch_frame(runs: Sequence[RunRecord]) -> "pd.DataFrame":
    """Return the frame of the epochs that `runs` have."""
    from harness.analysis import launch_frames

    return launch_frames.epoch_frame(
        runs, [launch_frames.epoch_columns(run, launch_frames.epoch_times(run)) for run in runs]
    )


def make_turn_block(launches: Mapping[str, float]) -> "BlockTimes":
    """Return a block whose `launches`, by their folders' names, take so many seconds a step, the base's first."""
    from harness.analysis.turn_blocks import BlockTimes

    return BlockTimes(
        base=next(iter(launches)),
        as_it_ran=launches,
        undisturbed=launches,
        left_out=0.0,
        is_short=False,
        slowest_core=None,
    )


def launch_frame(runs: Sequence[RunRecord]) -> "pd.DataFrame":
    """Return the frame of launches that have their epochs."""
    from harness.analysis import launch_frames

    return launch_frames.launch_frame(runs, epoch_frame(runs))
