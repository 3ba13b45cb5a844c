"""Gather what all ranks observed into one record on rank 0, with each rank's waiting (skew) and summing (wire)."""

import os
import platform
import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import keras
import numpy as np
import psutil
import tensorflow as tf

from harness.base import __version__
from harness.base.cpu_contention import Delays, delayed, other_loads, overloads
from harness.base.provenance import describe_machine, describe_system, git_commit, package_version, relevant_environment
from harness.comm.clocks import HostClock
from harness.comm.placement import RankPlace, describe, misplacements, scheduled
from harness.comm.world import needs_sync
from harness.schema.record import SCHEMA, EpochRecord, Provenance, RankRecord, RunRecord, WeightsRecord
from harness.train.devices import gpu_peak_bytes
from harness.train.record import Columns
from harness.train.replica import Replica
from harness.train.run import TrainingOutcome


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

    Epochs without columns stay as they are: those in which a rank was lost.
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


def collect(outcome: TrainingOutcome, *, import_s: float, load_before: float) -> tuple[RunRecord, list[Columns]] | None:
    """Return the launch's record and the step columns of all ranks on rank 0, None elsewhere.

    `import_s` is this rank's seconds until TensorFlow was imported, `load_before` the load average at the start.
    """
    replica = outcome.replica
    comm = replica.world.comm
    place = outcome.place
    ranks = comm.gather(_rank_record(outcome, place, import_s), root=0)
    steps = comm.gather(list(outcome.steps), root=0)
    clocks = comm.gather(outcome.clock, root=0)
    places = comm.allgather((place, psutil.cpu_count() or 1))
    loads = other_loads(comm, [where.host for where, _ in places], *outcome.usage)
    if ranks is None or steps is None or clocks is None:
        return None
    steps = on_one_clock(steps, clocks)
    record = RunRecord(
        schema=SCHEMA,
        point=replica.point,
        started=outcome.started,
        ended=datetime.now(UTC),
        global_batch=replica.data.shards.batch,
        steps_per_epoch=outcome.epochs[0].steps,
        data=replica.data.record,
        provenance=provenance(
            _reduction(replica),
            gpus=[rank.gpu for rank in ranks if rank.host == place.host],
            load_before=load_before,
            other_load=max(loads.values()),
        ),
        ranks=tuple(ranks),
        epochs=with_parts(outcome.epochs, steps),
        weights=_weights(outcome),
        losses=outcome.losses,
        stretches=outcome.stretches,
        invalid=_pieces(outcome) or _disturbances(outcome, ranks, places, loads),
        notes=_notes(outcome),
        seed=replica.point.seed,
        segments=outcome.segments,
    )
    return record, [columns for part in steps for columns in part]


def describe_ranks(ranks: Sequence[RankRecord]) -> tuple[str, ...]:
    """Return one line for each rank of a record: where it was and which cores it might use."""
    return describe([RankPlace(host=rank.host, node=rank.node, cores=rank.cores, core=rank.core) for rank in ranks])


def _notes(outcome: TrainingOutcome) -> tuple[str, ...]:
    drifted = "" if outcome.identical else "ranks were not synchronised: weights differ on purpose"
    return tuple(note for note in (outcome.replica.reduction.note, drifted, *outcome.notes) if note)


def _pieces(outcome: TrainingOutcome) -> tuple[str, ...]:
    """Return why the times of a launch that did not run in one piece count nowhere; nothing for one that did."""
    attempts = len(outcome.segments)
    return (f"it was ended and taken up from a checkpoint: {attempts} attempts",) if attempts else ()


def _disturbances(
    outcome: TrainingOutcome,
    ranks: Sequence[RankRecord],
    places: Sequence[tuple[RankPlace, int]],
    loads: Mapping[str, float],
) -> tuple[str, ...]:
    """Return which ranks were lost or misplaced, else what other work there was; `places` with each host's cores."""
    layout = outcome.replica.point.layout
    needed = {host: count * layout.threads for host, count in Counter(where.host for where, _ in places).items()}
    return (
        tuple(map(str, outcome.losses)) + misplacements(layout, [where for where, _ in places], by_nodes=scheduled())
        or overloads(loads, needed, {where.host: cores for where, cores in places})
        or delayed([rank.host for rank in ranks], [rank.queued_share for rank in ranks], loads)
    )


def _weights(outcome: TrainingOutcome) -> WeightsRecord:
    variables = outcome.replica.state.model.trainable_variables
    return WeightsRecord(
        parameters=sum(int(np.prod(variable.shape)) for variable in variables),
        bytes=sum(int(np.asarray(variable.numpy()).nbytes) for variable in variables),
        sha256=outcome.weights_sha256,
        identical=outcome.identical,
    )


def _rank_record(outcome: TrainingOutcome, place: RankPlace, import_s: float) -> RankRecord:
    replica = outcome.replica
    rank, shards = replica.world.rank, replica.data.shards
    delays = Delays.between(*outcome.usage, threads=replica.point.layout.threads)
    return RankRecord(
        rank=rank,
        host=place.host,
        pid=os.getpid(),
        cores=place.cores,
        node=place.node,
        core=place.core,
        threads=replica.point.layout.threads,
        rows=len(shards.own_rows(rank)),
        batch=len(shards.lanes(rank)),
        import_s=import_s,
        load_s=replica.data.load_s,
        distribute_s=replica.data.distribute_s,
        compile_s=outcome.compile_s,
        evaluate_s=outcome.evaluate_s,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        clock_offset_s=outcome.clock.begin.offset_s,
        clock_drift=outcome.clock.drift,
        clock_error_s=outcome.clock.error_s,
        step_without_input_s=replica.step_without_input_s,
        predicted_memory_bytes=replica.predicted_memory_bytes,
        peak_gpu_memory_bytes=gpu_peak_bytes(),
        gpu=str(replica.gpu or ""),
        device=replica.gpu.uuid if replica.gpu else "",
        queued_share=delays.queued,
        stolen_share=delays.stolen,
        preempted=delays.preempted,
    )


def _reduction(replica: Replica) -> str:
    if not needs_sync(replica.world.size):
        return "none"
    return replica.reduction.name + (", staged through host memory" if replica.gpu else "")


def provenance(reduction: str, *, load_before: float, other_load: float, gpus: Sequence[str] = ()) -> Provenance:
    """Return versions, machine and settings of this process.

    `reduction` as it calls itself, loads in cores, `gpus` one entry for each rank of this host, empty without one.
    """
    from mpi4py import MPI

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
