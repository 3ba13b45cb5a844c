"""The record of a launch on rank 0, from what every rank knows when training has ended."""

import hashlib
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
import psutil
import tensorflow as tf

from harness.base import __version__
from harness.base.cores import host_cores
from harness.base.cpu_contention import CpuUsage, Delays, delayed, other_loads, overloads
from harness.base.files import folder_atomic
from harness.base.provenance import describe_machine, describe_system, git_commit, package_version, relevant_environment
from harness.base.turns import APART, BLOCK
from harness.comm.gpu_software import gpu_software
from harness.comm.gpus import Gpu, gpu_peak_bytes, processes_beside
from harness.comm.harness_variables import forked_process, launcher_words, scheduler_name
from harness.comm.host_clock import HostClock
from harness.comm.placement_check import RankPlace, misplacements, occupied_gpus, shared_gpus, throttled_hosts
from harness.comm.reduction import Reduction
from harness.comm.world import needs_sync
from harness.schema.layout import Layout
from harness.schema.message_cost import Algorithm
from harness.schema.record import (
    SCHEMA,
    DeviceEnergy,
    EpochRecord,
    FailedRank,
    Provenance,
    RankRecord,
    RunRecord,
    Segment,
    Stretch,
    WeightsRecord,
    encode,
    timed_epochs,
)
from harness.schema.record_notes import Note, NoteCode
from harness.schema.sweep_folder import LaunchFolder
from harness.train.replica import Replica
from harness.train.step_table import Columns, on_one_clock, with_parts


def write_run(folder: Path, record: RunRecord, steps: list[Columns]) -> None:
    """Write run.json and steps.parquet into `folder`; the record has the table's hash.

    Columns of steps.parquet, one row for each step of each rank:

    - epoch, step, rank (int32);
    - begin_s (float64): the rank's start of the epoch, as entry_s and exit_s in seconds since rank 0 began the epoch,
      on rank 0's clock;
    - entry_s, exit_s (float64): of the synchronisation call, NaN for a step without one. Where sums overlap with the
      backward pass, entry_s is when the rank has all its gradients;
    - skew_s, wire_s (float64): the parts of exit_s - entry_s (`on_one_clock`);
    - loss_sum (float32);
    - statistics_s (float64), where batch normalisation is synchronised: seconds inside its calls;
    - input_s (float64), where images are in files: seconds waited for the batch;
    - turn (int32), of a launch in turns: the number of the turn in which the step was timed, 0 for the first steps of
      turns, which are not timed.

    Raises:
        UserError: the folder cannot be written or the disk is full; nothing is left.
    """
    import pyarrow as pa  # which no other rank needs
    import pyarrow.parquet as pq

    columns = {}
    for name in steps[0]:
        columns[name] = np.concatenate([part[name] for part in steps])
    table = pa.table(columns)
    with folder_atomic(folder, "record") as staging:
        files = LaunchFolder(staging)
        pq.write_table(table, files.steps, compression="zstd")
        sha256 = hashlib.sha256(files.steps.read_bytes()).hexdigest()
        files.record.write_bytes(encode(replace(record, steps_sha256=sha256)))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOutcome:
    """What one rank knows when training has ended.

    `place` was taken down before the epochs, `usage` at the first and at the last moment of them. `segments` are the
    attempts of a launch that did not run in one piece, on rank 0; `notes` tell of its checkpoints and counters.
    `energy` is of all devices, on rank 0.
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
    notes: tuple[Note, ...] = ()
    losses: tuple[FailedRank, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    core_ns: tuple[float, ...] = ()
    energy: tuple[DeviceEnergy, ...] = ()


def collect(outcome: TrainingOutcome, *, import_s: float, load_before: float) -> tuple[RunRecord, list[Columns]] | None:
    """Return the launch's record and the step columns of all ranks on rank 0, None elsewhere.

    `import_s` is this rank's seconds until TensorFlow was imported, `load_before` the load average at the start.
    """
    replica = outcome.replica
    comm = replica.world.comm
    own_record = _own_record(outcome, import_s)
    gathered = comm.gather((own_record, list(outcome.steps), outcome.clock), root=0)
    places = comm.allgather((outcome.place, host_cores()))
    loads = other_loads(comm, [place.host for place, _ in places], *outcome.usage)
    if gathered is None:
        return None
    ranks, rank_steps, clocks = zip(*gathered, strict=True)
    steps = on_one_clock(rank_steps, clocks)
    invalid, met = validity(outcome, places, ranks, loads)
    flops = replica.state.flops
    record = RunRecord(
        schema=SCHEMA,
        point=replica.point,
        started=outcome.started,
        ended=datetime.now(UTC),
        global_batch=replica.data.shards.batch,
        steps_per_epoch=outcome.epochs[0].steps,
        data=replica.data.record,
        provenance=launch_provenance(
            replica.reduction if needs_sync(replica.world.size) else None,
            gpu=replica.gpu,
            gpus=[rank.gpu for rank in ranks if rank.host == outcome.place.host],
            load_before=load_before,
            other_load=max(loads.values()),
        ),
        ranks=ranks,
        epochs=with_parts(outcome.epochs, steps),
        weights=_weights_record(outcome),
        losses=outcome.losses,
        stretches=outcome.stretches,
        invalid=invalid,
        block=os.environ.get(BLOCK, ""),
        core_ns=outcome.core_ns,
        energy=outcome.energy,
        flops_per_row=None if flops.uncounted or not flops.per_row else flops.per_row,
        notes=(*_replica_notes(outcome), *met, *outcome.notes),
        seed=replica.point.seed,
        segments=outcome.segments,
        forked=forked_process() is not None,
    )
    return record, [columns for epochs in steps for columns in epochs]


def _replica_notes(outcome: TrainingOutcome) -> list[Note]:
    """Return what to know of how the rank has trained."""
    notes = [*outcome.replica.reduction.notes, *apart()]
    if not outcome.identical:
        notes.append(Note(code=NoteCode.NOT_SYNCHRONISED))
    uncounted = outcome.replica.state.flops.uncounted
    if uncounted:
        notes.append(Note(code=NoteCode.FLOPS_NOT_COUNTED, values={"operations": ", ".join(uncounted)}))
    return notes


def _own_record(outcome: TrainingOutcome, import_s: float) -> RankRecord:
    replica = outcome.replica
    rank = replica.world.rank
    shards = replica.data.shards
    return rank_record(
        outcome.place,
        outcome.clock,
        outcome.usage,
        replica.point.layout.threads,
        replica.gpu,
        rank=rank,
        rows=len(shards.own_rows(rank)),
        batch=len(shards.lanes(rank)),
        import_s=import_s,
        load_s=replica.data.load_s,
        distribute_s=replica.data.distribute_s,
        compile_s=outcome.compile_s,
        evaluate_s=outcome.evaluate_s,
        step_without_input_s=replica.step_without_input_s,
        predicted_memory_bytes=replica.predicted_memory_bytes,
    )


def _weights_record(outcome: TrainingOutcome) -> WeightsRecord:
    variables = outcome.replica.state.model.trainable_variables
    tensors = tuple(int(np.asarray(variable.numpy()).nbytes) for variable in variables)
    return WeightsRecord(
        parameters=sum(int(np.prod(variable.shape)) for variable in variables),
        bytes=sum(tensors),
        sha256=outcome.weights_sha256,
        identical=outcome.identical,
        tensors=tensors,
        shapes=tuple(tuple(variable.shape) for variable in variables),
    )


def validity(
    outcome: TrainingOutcome,
    places: Sequence[tuple[RankPlace, int]],
    ranks: Sequence[RankRecord],
    loads: Mapping[str, float],
) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    """Return why the launch's times are not valid, and notes, as `disturbances`."""
    failures = tuple(map(str, outcome.losses))
    # A batch system placed the ranks where there is one: a node is a node, and not a core of one machine.
    by_nodes = scheduler_name() != "local"
    invalid, met = disturbances(outcome.replica.point.layout, places, ranks, loads, failures, by_nodes=by_nodes)
    if not timed_epochs(outcome.epochs, outcome.segments):
        reason = (
            "it was resumed from a checkpoint in its last epoch, and no whole epoch after that is timed: give it more "
            "time (WALLTIME) or more epochs"
        )
        return (*invalid, reason), met
    return invalid, met


def rank_record(
    place: RankPlace, clock: HostClock, usage: tuple[CpuUsage, CpuUsage], threads: int, gpu: Gpu | None, **fields: Any
) -> RankRecord:
    """Return this rank's record: `fields` and what its process can see; `usage` around the timed epochs."""
    delays = Delays.between(*usage, threads=threads)
    return RankRecord(
        host=place.host,
        pid=os.getpid(),
        cores=place.cores,
        node=place.node,
        core=place.core,
        threads=threads,
        peak_memory_bytes=_peak_memory_bytes(),
        peak_gpu_memory_bytes=gpu_peak_bytes(),
        clock_offset_s=clock.begin.offset_s,
        clock_drift=clock.drift,
        clock_error_s=clock.error_s,
        gpu=str(gpu or ""),
        device=gpu.uuid if gpu else "",
        queued_share=delays.queued,
        stolen_share=delays.stolen,
        preempted=delays.preempted,
        throttled_cpus=delays.throttled,
        gpu_processes=tuple(sorted({*place.gpu_processes, *processes_beside(gpu)})),
        **fields,
    )


def _peak_memory_bytes() -> int:
    """Return the most memory that this process had; with the pages of libraries that it shares with its server."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    forked = forked_process()
    if forked is None:
        return peak
    own_library_bytes: int = psutil.Process().memory_info().shared
    return peak + max(0, forked.library_bytes - own_library_bytes)


def disturbances(
    layout: Layout,
    places: Sequence[tuple[RankPlace, int]],
    ranks: Sequence[RankRecord],
    loads: Mapping[str, float],
    failures: tuple[str, ...] = (),
    *,
    by_nodes: bool = False,
) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    """Return why times are not valid, and notes: ranks that failed or were misplaced, else what other work there was.

    `places` with each host's cores. Misplaced are also ranks that a CPU quota held back, or whose GPU others use. Other
    work does not make a launch in turns invalid: the turns that it met are left out of all that is compared.
    """
    rank_places = [place for place, _ in places]
    misplaced = failures + misplacements(layout, rank_places, by_nodes=by_nodes)
    misplaced += shared_gpus(ranks) + occupied_gpus(ranks) + throttled_hosts(layout, rank_places, ranks)
    if misplaced:
        return misplaced, ()
    host_ranks = Counter(place.host for place, _ in places)
    needed = {host: count * layout.threads for host, count in host_ranks.items()}
    others = overloads(loads, needed, {place.host: cores for place, cores in places}) or delayed(
        [rank.host for rank in ranks], [rank.queued_share for rank in ranks], loads
    )
    if not os.environ.get(BLOCK):
        return others, ()
    return (), tuple(Note(code=NoteCode.OTHER_WORK, values={"reason": reason}) for reason in others)


def apart() -> tuple[Note, ...]:
    """Return the note of a launch that was to take turns and had no room for that; none of others."""
    launches = os.environ.get(APART)
    return (Note(code=NoteCode.NOT_IN_TURNS, values={"launches": int(launches)}),) if launches else ()


def finite(value: float | None) -> float | None:
    """Return `value` as records have it: None where it is infinite or not a number."""
    return value if value is not None and math.isfinite(value) else None


def launch_provenance(
    reduction: Reduction | None, *, gpu: Gpu | None, load_before: float, other_load: float, gpus: Sequence[str] = ()
) -> Provenance:
    """Return versions, machine and settings of this process.

    `reduction` is None where nothing is summed, `gpu` is what this rank trains on. Loads in cores, `gpus` one entry for
    each rank of this host, empty without one.
    """
    from mpi4py import MPI  # which it starts

    commit, dirty = git_commit()
    name = "none"
    algorithm = ""
    if reduction:
        algorithm = reduction.algorithm
        staged = gpu is not None and reduction.algorithm is not Algorithm.NCCL
        name = f"{reduction.name}, staged through host memory" if staged else reduction.name
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
        launcher=launcher_words(),
        reduction=name,
        algorithm=algorithm,
        overlapped=bool(reduction and reduction.overlapped),
        machine=describe_machine(gpus=tuple(gpu for gpu in gpus if gpu)),
        load_before=load_before,
        other_load=other_load,
        environment=relevant_environment(),
        system=describe_system(),
        gpu_software=gpu_software(gpu, algorithm),
    )
