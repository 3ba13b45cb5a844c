"""The record of a launch on rank 0, from what every rank knows when training has ended, and its table of steps.

A rank's wait for others is its skew, the rest of a call the wire.
"""

import math
import os
import platform
import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import psutil
import tensorflow as tf

from harness.base import __version__
from harness.base.cpu_contention import MET, CpuUsage, Delays, delayed, other_loads, overloads
from harness.base.files import folder_atomic
from harness.base.provenance import describe_machine, describe_system, git_commit, package_version, relevant_environment
from harness.base.turns import BLOCK
from harness.comm.gpus import Gpu, gpu_peak_bytes
from harness.comm.placement import HostClock, RankPlace, misplacements
from harness.comm.world import needs_sync
from harness.schema.record import (
    SCHEMA,
    EpochRecord,
    FailedRank,
    Provenance,
    RankRecord,
    RunRecord,
    Segment,
    Stretch,
    WeightsRecord,
    encode,
)
from harness.schema.sweep import Layout
from harness.schema.sweep_folder import LaunchFolder
from harness.train.replica import Replica

Columns = dict[str, npt.NDArray[Any]]


def per_step(calls: npt.NDArray[np.float64], steps: int) -> npt.NDArray[np.float64]:
    """Return the seconds inside `calls` [calls, 2] of each of `steps` steps, which made equally many each."""
    inside: npt.NDArray[np.float64] = (calls[:, 1] - calls[:, 0]).reshape(steps, -1).sum(axis=1)
    return inside


def step_columns(
    *,
    rank: int,
    epoch: int,
    begin: float,
    losses: npt.NDArray[np.float32],
    calls: npt.NDArray[np.float64],
    period: int | None,
) -> Columns:
    """Return one rank's and epoch's rows of steps.parquet.

    `begin` is the epoch's start in seconds on the rank's clock; `losses` float32 [steps], the rank's summed row
    losses; `calls` float64 [calls, 2], entry and exit in seconds since the epoch's start; `period` as in `SyncPolicy`:
    under gradients (0) every step has its call. Of several sums in one synchronisation the call is as long as all, up
    to the end of the last: what is computed between them is computation. Steps without a call have NaN times.
    """
    steps = len(losses)
    times = np.full((steps, 2), np.nan)
    if len(calls):
        due = steps if period == 0 else -(-steps // (period or steps))
        if len(calls) > due:
            ends = calls.reshape(due, -1, 2)[:, -1, 1]
            calls = np.column_stack([ends - per_step(calls, due), ends])
        numbers = np.arange(len(calls))
        times[numbers if period == 0 else np.minimum((numbers + 1) * (period or steps), steps) - 1] = calls
    return {
        "epoch": np.full(steps, epoch, np.int32),
        "step": np.arange(steps, dtype=np.int32),
        "rank": np.full(steps, rank, np.int32),
        "begin_s": np.full(steps, begin),
        "entry_s": times[:, 0],
        "exit_s": times[:, 1],
        "loss_sum": losses,
    }


def on_one_clock(steps: Sequence[Sequence[Columns]], clocks: Sequence[HostClock]) -> list[list[Columns]]:
    """Return the columns of all ranks, [rank][epoch], with times on rank 0's clock and the parts of every call.

    Taken: begin_s (the rank's clock), entry_s and exit_s (since begin_s). Returned: all three in seconds since rank 0
    began the epoch, and per step skew_s = the last rank's entry less the own, wire_s = exit less the last rank's
    entry. Both are NaN for a step without a call; together they are exactly exit_s - entry_s.
    """
    epochs = len(steps[0])
    converted: list[list[Columns]] = [[] for _ in steps]
    for epoch in range(epochs):
        zero = float(clocks[0].common(steps[0][epoch]["begin_s"][:1]).sum())  # of one value, or of none without steps
        parts = [_shifted(own[epoch], clock, zero) for own, clock in zip(steps, clocks, strict=True)]
        last = np.max([part["entry_s"] for part in parts], axis=0)
        for rank, part in enumerate(parts):
            converted[rank].append(part | {"skew_s": last - part["entry_s"], "wire_s": part["exit_s"] - last})
    return converted


def _shifted(columns: Columns, clock: HostClock, zero: float) -> Columns:
    begin = columns["begin_s"]
    return columns | {
        "begin_s": clock.common(begin) - zero,
        "entry_s": clock.common(begin + columns["entry_s"]) - zero,
        "exit_s": clock.common(begin + columns["exit_s"]) - zero,
    }


def with_parts(epochs: Sequence[EpochRecord], steps: Sequence[Sequence[Columns]]) -> tuple[EpochRecord, ...]:
    """Return `epochs` with the sums of every rank's skew and wire; `steps` [rank][epoch] from `on_one_clock`.

    Epochs without columns stay as they are: those in which a rank failed.
    """
    places = {int(columns["epoch"][0]): place for place, columns in enumerate(steps[0]) if len(columns["epoch"])}
    return tuple(
        replace(
            record,
            skew_seconds=tuple(float(np.nansum(own[places[record.epoch]]["skew_s"])) for own in steps),
            wire_seconds=tuple(float(np.nansum(own[places[record.epoch]]["wire_s"])) for own in steps),
        )
        if record.epoch in places
        else record
        for record in epochs
    )


def write_run(folder: Path, record: RunRecord, steps: list[Columns]) -> None:
    """Write run.json and steps.parquet into `folder`.

    Columns of steps.parquet: epoch, step, rank (int32); begin_s (the rank's start of the epoch), entry_s, exit_s
    (float64, seconds since rank 0 began the epoch, on rank 0's clock, NaN for a step without synchronisation), skew_s
    and wire_s (float64, the parts of exit_s - entry_s, `on_one_clock`), loss_sum (float32); where batch
    normalisation is synchronised statistics_s (float64, seconds inside its calls), where images are in files
    input_s (float64, seconds waited for the batch), of a launch in turns turn (int32: the number of the turn in which
    the step was timed, 0 for the first steps of turns, which are not). Where sums overlap with the backward pass,
    entry_s is when the rank has all its gradients.

    Raises:
        UserError: the folder cannot be written or the disk is full; nothing is left behind.
    """
    import pyarrow as pa  # which no other rank needs
    import pyarrow.parquet as pq

    table = pa.table({name: np.concatenate([part[name] for part in steps]) for name in steps[0]})
    with folder_atomic(folder) as staging:
        pq.write_table(table, LaunchFolder(staging).steps, compression="zstd")
        LaunchFolder(staging).record.write_bytes(encode(record))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOutcome:
    """What one rank knows when training has ended.

    `place` was taken down before the epochs, `usage` at the first and at the last moment of them. `segments` are the
    attempts of a launch that did not run in one piece, on rank 0; `notes` tell of its checkpoints.
    """

    started: datetime
    replica: Replica
    weights_sha256: str
    identical: bool
    epochs: tuple[EpochRecord, ...]
    steps: tuple[Columns, ...]
    compile_s: float
    evaluate_s: float
    usage: tuple[CpuUsage, CpuUsage]
    place: RankPlace
    clock: HostClock
    segments: tuple[Segment, ...] = ()
    notes: tuple[str, ...] = ()
    losses: tuple[FailedRank, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    core_ns: tuple[float, ...] = ()


def collect(outcome: TrainingOutcome, *, import_s: float, load_before: float) -> tuple[RunRecord, list[Columns]] | None:
    """Return the launch's record and the step columns of all ranks on rank 0, None elsewhere.

    `import_s` is this rank's seconds until TensorFlow was imported, `load_before` the load average at the start.
    """
    replica, place = outcome.replica, outcome.place
    comm, shards, variables = replica.world.comm, replica.data.shards, replica.state.model.trainable_variables
    own = rank_record(
        place,
        outcome.clock,
        outcome.usage,
        replica.point.layout.threads,
        replica.gpu,
        rank=replica.world.rank,
        rows=len(shards.own_rows(replica.world.rank)),
        batch=len(shards.lanes(replica.world.rank)),
        import_s=import_s,
        load_s=replica.data.load_s,
        distribute_s=replica.data.distribute_s,
        compile_s=outcome.compile_s,
        evaluate_s=outcome.evaluate_s,
        step_without_input_s=replica.step_without_input_s,
        predicted_memory_bytes=replica.predicted_memory_bytes,
    )
    gathered = comm.gather((own, list(outcome.steps), outcome.clock), root=0)
    places = comm.allgather((place, psutil.cpu_count() or 1))
    loads = other_loads(comm, [where.host for where, _ in places], *outcome.usage)
    if gathered is None:
        return None
    ranks, own_steps, clocks = zip(*gathered, strict=True)
    steps = on_one_clock(own_steps, clocks)
    reduction = replica.reduction.name + (", staged through host memory" if replica.gpu else "")
    drifted = "" if outcome.identical else "ranks were not synchronised: weights differ on purpose"
    attempts, failures = len(outcome.segments), tuple(map(str, outcome.losses))
    # A batch system placed the ranks where there is one: a node is a node, and not a core of one machine.
    by_nodes = os.environ.get("HARNESS_SCHEDULER", "local") != "local"
    invalid, met = disturbances(replica.point.layout, places, ranks, loads, failures, by_nodes=by_nodes)
    tensors = tuple(int(np.asarray(variable.numpy()).nbytes) for variable in variables)
    record = RunRecord(
        schema=SCHEMA,
        point=replica.point,
        started=outcome.started,
        ended=datetime.now(UTC),
        global_batch=shards.batch,
        steps_per_epoch=outcome.epochs[0].steps,
        data=replica.data.record,
        provenance=provenance(
            reduction if needs_sync(replica.world.size) else "none",
            gpus=[rank.gpu for rank in ranks if rank.host == place.host],
            load_before=load_before,
            other_load=max(loads.values()),
        ),
        ranks=ranks,
        epochs=with_parts(outcome.epochs, steps),
        weights=WeightsRecord(
            parameters=sum(int(np.prod(variable.shape)) for variable in variables),
            bytes=sum(tensors),
            sha256=outcome.weights_sha256,
            identical=outcome.identical,
            tensors=tensors,
            shapes=tuple(tuple(variable.shape) for variable in variables),
        ),
        losses=outcome.losses,
        stretches=outcome.stretches,
        invalid=(f"it was stopped and resumed from a checkpoint: {attempts} attempts",) if attempts else invalid,
        block=os.environ.get(BLOCK, ""),
        core_ns=outcome.core_ns,
        notes=tuple(note for note in (replica.reduction.note, drifted, *met, *outcome.notes) if note),
        seed=replica.point.seed,
        segments=outcome.segments,
    )
    return record, [columns for part in steps for columns in part]


def rank_record(
    place: RankPlace, clock: HostClock, usage: tuple[CpuUsage, CpuUsage], threads: int, gpu: Gpu | None, **known: Any
) -> RankRecord:
    """Return this rank's record: `known` fields and what its process can see; `usage` around the timed epochs."""
    delays = Delays.between(*usage, threads=threads)
    return RankRecord(
        host=place.host,
        pid=os.getpid(),
        cores=place.cores,
        node=place.node,
        core=place.core,
        threads=threads,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        peak_gpu_memory_bytes=gpu_peak_bytes(),
        clock_offset_s=clock.begin.offset_s,
        clock_drift=clock.drift,
        clock_error_s=clock.error_s,
        gpu=str(gpu or ""),
        device=gpu.uuid if gpu else "",
        queued_share=delays.queued,
        stolen_share=delays.stolen,
        preempted=delays.preempted,
        **known,
    )


def disturbances(
    layout: Layout,
    places: Sequence[tuple[RankPlace, int]],
    ranks: Sequence[RankRecord],
    loads: Mapping[str, float],
    failures: tuple[str, ...] = (),
    *,
    by_nodes: bool = False,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return why times are not valid, and notes: ranks that failed or were misplaced, else what other work there was.

    `places` with each host's cores. Other work does not make a launch in turns invalid: the turns that it met are left
    out of all that is compared.
    """
    misplaced = failures + misplacements(layout, [where for where, _ in places], by_nodes=by_nodes)
    if misplaced:
        return misplaced, ()
    needed = {host: count * layout.threads for host, count in Counter(where.host for where, _ in places).items()}
    others = overloads(loads, needed, {where.host: cores for where, cores in places}) or delayed(
        [rank.host for rank in ranks], [rank.queued_share for rank in ranks], loads
    )
    if not os.environ.get(BLOCK):
        return others, ()
    return (), tuple(f"{reason}{MET}" for reason in others)


def finite(value: float | None) -> float | None:
    """Return `value` as records have it: None where it is infinite or not a number."""
    return value if value is not None and math.isfinite(value) else None


def provenance(reduction: str, *, load_before: float, other_load: float, gpus: Sequence[str] = ()) -> Provenance:
    """Return versions, machine and settings of this process.

    `reduction` as it calls itself, loads in cores, `gpus` one entry for each rank of this host, empty without one.
    """
    from mpi4py import MPI  # which it starts

    commit, dirty = git_commit()
    return Provenance(
        harness=__version__,
        commit=commit,
        dirty=dirty,
        python=platform.python_version(),
        tensorflow=tf.__version__,
        keras=keras.__version__,
        numpy=np.__version__,
        mpi4py=package_version("mpi4py"),
        mpi_library=MPI.Get_library_version().split("\0")[0].split("\n")[0].strip(),
        launcher=os.environ.get("HARNESS_LAUNCHER", ""),
        reduction=reduction,
        machine=describe_machine(gpus=tuple(gpu for gpu in gpus if gpu)),
        load_before=load_before,
        other_load=other_load,
        environment=relevant_environment(),
        system=describe_system(),
    )
