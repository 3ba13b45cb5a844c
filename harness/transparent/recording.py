"""A run of a user's script as a run record, like any other."""

import math
import os
import resource
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from harness.base.cpu_contention import Delays, delayed, other_loads, overloads
from harness.base.errors import SharedError, UserError
from harness.comm.clocks import HostClock, Offset, read_offset
from harness.comm.gpus import Gpu
from harness.comm.placement import RankPlace, misplacements, observe
from harness.comm.world import World
from harness.schema.identity import script_id
from harness.schema.record import SCHEMA, DataRecord, EpochRecord, RankRecord, RunRecord, WeightsRecord
from harness.schema.sweep import Point
from harness.schema.workload import script_command
from harness.train.collect import on_one_clock, provenance
from harness.train.devices import gpu_peak_bytes
from harness.train.record import Columns, step_columns, write_run
from harness.transparent.clock import ScriptEpoch

_ONE_EPOCH = "the only epoch includes compilation: train at least 2"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptObservations:
    """What one rank has seen of the script. `rows` are the training rows of an epoch over all ranks, 0 if unknown;
    `global_batch` rows of a step; `sizes` parameters and bytes of the trainable weights; `gpu` what it trained on.
    Times in seconds."""

    started: datetime
    epochs: tuple[ScriptEpoch, ...]
    rows: int
    global_batch: int
    sizes: tuple[int, int]
    sha256: str
    reduction: str
    notes: tuple[str, ...]
    import_s: float
    load_before: float
    gpu: Gpu | None = None


def write_record(world: World, point: Point, seen: ScriptObservations, folder: Path) -> None:
    """Gather what all ranks have seen and write the record into `folder`; all ranks together.

    The first epoch, which includes compilation, is not among the record's when there are more.

    Raises:
        SharedError: a UserError, on every rank: the script never called `fit`, or `folder` cannot be written.
    """
    if not seen.epochs:
        raise SharedError(UserError("a record is of the epochs of Keras's fit, which the script never calls"))
    timed = seen.epochs[1:] or seen.epochs
    place = observe()
    parts = world.comm.gather([(epoch.seconds, _inside(epoch)) for epoch in timed], root=0)
    steps = world.comm.gather([_columns(world.rank, number, epoch) for number, epoch in enumerate(timed)], root=0)
    places = world.comm.allgather((place, psutil.cpu_count() or 1))
    hosts = [where.host for where, _ in places]
    loads = other_loads(world.comm, hosts, timed[0].begin, timed[-1].end)
    offset = read_offset(world, hosts)
    ranks = world.comm.gather(_rank(world, point, seen, place, timed, offset), root=0)
    clocks = world.comm.gather(HostClock(begin=offset, end=offset), root=0)
    invalid = _doubts(point, places, loads, seen)

    def write() -> None:
        assert ranks is not None and parts is not None and steps is not None and clocks is not None
        columns = on_one_clock(steps, clocks)
        epochs = [
            _epoch(number, epoch, [part[number] for part in parts], timed[0].start)
            for number, epoch in enumerate(timed)
        ]
        record = RunRecord(
            schema=SCHEMA,
            point=point,
            started=seen.started,
            ended=datetime.now(UTC),
            global_batch=seen.global_batch,
            steps_per_epoch=timed[0].steps,
            data=_data(point, seen),
            provenance=provenance(
                seen.reduction,
                gpus=[rank.gpu for rank in ranks if rank.host == place.host],
                load_before=seen.load_before,
                other_load=max(loads.values()),
            ),
            ranks=tuple(ranks),
            epochs=tuple(epochs),
            weights=WeightsRecord(parameters=seen.sizes[0], bytes=seen.sizes[1], sha256=seen.sha256, identical=True),
            invalid=invalid or delayed(hosts, [rank.queued_share for rank in ranks], loads),
            notes=seen.notes,
        )
        write_run(folder, record, [epoch for part in columns for epoch in part])

    world.on_root(write)


def _doubts(point: Point, places: Sequence[Any], loads: dict[str, float], seen: ScriptObservations) -> tuple[str, ...]:
    needed = Counter(where.host for where, _ in places)
    threads = {host: count * point.layout.threads for host, count in needed.items()}
    misplaced = misplacements(point.layout, [where for where, _ in places])
    loaded = overloads(loads, threads, {where.host: cores for where, cores in places})
    return (*(misplaced or loaded), *(() if len(seen.epochs) > 1 else (_ONE_EPOCH,)))


def _data(point: Point, seen: ScriptObservations) -> DataRecord:
    return DataRecord(
        name=point.workload.name,
        kind="real",
        sha256=script_id(script_command(point.workload)[0]),
        train_rows=seen.rows,
        test_rows=0,
        features=(),
        classes=0,
        note="the script brings its own data; the hash is of the script",
    )


def _rank(
    world: World, point: Point, seen: ScriptObservations, place: RankPlace, timed: Sequence[ScriptEpoch], offset: Offset
) -> RankRecord:
    delays = Delays.between(timed[0].begin, timed[-1].end, threads=point.layout.threads)
    share = seen.rows // world.size + (world.rank < seen.rows % world.size)
    first = seen.epochs[0].seconds - float(np.median([epoch.seconds for epoch in timed]))
    return RankRecord(
        rank=world.rank,
        host=place.host,
        pid=os.getpid(),
        cores=place.cores,
        threads=point.layout.threads,
        rows=share,
        batch=seen.global_batch // world.size,
        import_s=seen.import_s,
        load_s=0.0,
        distribute_s=0.0,
        compile_s=max(0.0, first),
        evaluate_s=sum(epoch.evaluate_s for epoch in seen.epochs),
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        peak_gpu_memory_bytes=gpu_peak_bytes(),
        clock_offset_s=offset.offset_s,
        clock_error_s=offset.error_s,
        gpu=str(seen.gpu or ""),
        device=seen.gpu.uuid if seen.gpu else "",
        queued_share=delays.queued,
        stolen_share=delays.stolen,
        preempted=delays.preempted,
    )


def _epoch(number: int, epoch: ScriptEpoch, parts: Sequence[tuple[float, float]], first: float) -> EpochRecord:
    logs = epoch.logs
    return EpochRecord(
        epoch=number,
        steps=epoch.steps,
        seconds=tuple(part[0] for part in parts),
        sync_seconds=tuple(part[1] for part in parts),
        train_loss=_finite(logs.get("loss")),
        test_loss=_finite(logs.get("val_loss")),
        test_accuracy=_finite(logs.get("val_accuracy")),
        test_auc=_finite(logs.get("val_auc")),
        begin_s=epoch.start - first,
    )


def _inside(epoch: ScriptEpoch) -> float:
    return float(np.sum(epoch.calls[:, 1] - epoch.calls[:, 0]))


def _columns(rank: int, number: int, epoch: ScriptEpoch) -> Columns:
    """Return the epoch's rows of steps.parquet; the loss of single steps is not known, nor is it where calls differ."""
    losses = np.full(epoch.steps, np.nan, np.float32)
    calls = epoch.calls if len(epoch.calls) == epoch.steps else np.empty((0, 2))
    return step_columns(
        rank=rank, epoch=number, begin=epoch.start, losses=losses, calls=calls, period=0 if len(calls) else None
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
