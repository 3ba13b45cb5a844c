"""A launch as a Chrome trace: all ranks on one clock, for ui.perfetto.dev.

The format is Google's "Trace Event Format": times in microseconds; B and E begin and end a slice, s and f are the two
ends of an arrow, C is a counter, i an instant, M a name. A process stands for a rank, process 1 for the launch.
"""

import gzip
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.sync_calls import Calls
from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.schema.record import EpochRecord, RankRecord, RunRecord

Event = dict[str, Any]
Array = NDArray[np.float64]
MOST_EVENTS = 4_000_000  # 0.4 GB of JSON: beyond it browsers give up
_PER_CALL = 10  # events: begins and ends of a step, its allreduce, the wait and the wire in it, and an arrow's two
_LAUNCH = 1  # process; rank r is process r + 2
_TRAINING = 1  # thread
_SET_UP = ("import_s", "load_s", "distribute_s", "compile_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A named stretch of time of one rank, seconds since the trace began, and what lies inside it, in order."""

    name: str
    begin: float
    end: float
    args: Event = field(default_factory=dict)
    inside: tuple["Slice", ...] = ()


def trace_events(run: RunRecord, epochs: Sequence[Calls], wanted: Sequence[int] | None = None) -> Iterator[Event]:
    """Yield the events of the launch `run`, whose calls are `epochs`; of the epochs numbered in `wanted` (all if None).

    What is known as a duration only is placed where it must have been and says so (`placed`): set-up ends where the
    first epoch begins, a step's input begins it. An arrow leads from the last rank that came to an allreduce to
    every rank that had waited for it for longer than their clocks may be wrong.

    Raises:
        UserError: there is no such epoch, or there are too many events for a viewer.
    """
    chosen = _choose(epochs, wanted)
    starts = _starts(run)
    placed = [_shifted(calls, start) for calls, start in zip(epochs, starts, strict=True)]
    yield from _names(run)
    yield from _launch_track(run, starts)
    for rank in run.ranks:
        yield from _events(_set_up(rank, min(starts[0], float(placed[0].begin[rank.rank]))), rank.rank + 2)
        for at in (starts[0], starts[-1] + max(run.epochs[-1].seconds)) if rank.clock_error_s > 0 else ():
            args = {"us": _us(rank.clock_error_s)}  # how far the rank's times may be off those of rank 0
            yield {"ph": "C", "name": "clock may be off by", "pid": rank.rank + 2, "ts": _us(at), "args": args}
    ids = itertools.count(1)
    for number in chosen:
        later = placed[number + 1].begin if number + 1 < len(placed) else np.full(len(run.ranks), np.inf)
        for rank in run.ranks:
            whole = _epoch(run.epochs[number], placed[number], rank)
            yield from _events(whole, rank.rank + 2)
            if run.epochs[number].test_accuracy is not None:
                end = max(whole.end, min(whole.end + _evaluation_seconds(run)[rank.rank], float(later[rank.rank])))
                evaluation = Slice(
                    name="evaluation", begin=whole.end, end=end, args={"placed": "mean of all, behind the epoch"}
                )
                yield from _events(evaluation, rank.rank + 2)
        yield from _arrows(run, placed[number], ids)


def _shifted(calls: Calls, start: float) -> Calls:
    """Return `calls`, whose times count from their epoch's begin, with times from the trace's: it began at `start`."""
    return replace(
        calls, begin=calls.begin + start, end=calls.end + start, entry=calls.entry + start, exit=calls.exit + start
    )


def trace_file(run: RunRecord, events: Iterator[Event]) -> bytes:
    """Return the `events` of `run` as a whole file: JSON, compressed with gzip, the same for the same events."""
    about = {"launch": run.point.folder, "started": run.started.isoformat(), "invalid": list(run.invalid)}
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about})[:-1]
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return gzip.compress(f'{head},"traceEvents":[\n{lines}\n]}}\n'.encode(), compresslevel=6, mtime=0)


def _choose(epochs: Sequence[Calls], wanted: Sequence[int] | None) -> list[int]:
    """Return the numbers of the epochs to be drawn, from 0."""
    if wanted is not None and not set(wanted) <= set(range(len(epochs))):
        raise UserError(
            f"{setting('epochs', max(wanted) + 1)} is out of range: the launch has epochs 1 to {len(epochs)}"
        )
    chosen = sorted(set(range(len(epochs)) if wanted is None else wanted))
    count = sum(epochs[number].entry.size for number in chosen) * _PER_CALL
    if count > MOST_EVENTS:
        most = max(1, MOST_EVENTS * len(chosen) // count)
        raise UserError(
            f"{count:,} events are too many for a viewer: choose epochs, such as {setting('epochs', f'1..{most}')}"
        )
    return chosen


def _starts(run: RunRecord) -> list[float]:
    """Return when rank 0 began every epoch, seconds since the first rank began to import.

    Where the record does not say, an epoch begins when the one before has ended and been evaluated.
    """
    first = max(_set_up_seconds(rank) for rank in run.ranks)
    begins = [epoch.begin_s for epoch in run.epochs]
    if None not in begins:
        return [first + float(at or 0.0) for at in begins]
    between = max(_evaluation_seconds(run))
    lengths = [max(epoch.seconds) + between * (epoch.test_accuracy is not None) for epoch in run.epochs]
    return [first + float(at) for at in np.cumsum([0.0, *lengths[:-1]])]


def _evaluation_seconds(run: RunRecord) -> list[float]:
    times = max(1, sum(epoch.test_accuracy is not None for epoch in run.epochs))
    return [rank.evaluate_s / times for rank in run.ranks]


def _set_up_seconds(rank: RankRecord) -> float:
    return sum(float(getattr(rank, name)) for name in _SET_UP)


def _set_up(rank: RankRecord, until: float) -> Slice:
    """Return the rank's time before the first epoch; what is known of it ends there."""
    parts: list[Slice] = []
    begin = until - _set_up_seconds(rank)
    at = begin
    for name in _SET_UP:
        seconds = float(getattr(rank, name))
        if seconds > 0:
            parts.append(Slice(name=name.removesuffix("_s"), begin=at, end=at + seconds))
        at += seconds
    return Slice(name="set-up", begin=begin, end=until, args={"placed": "before the first epoch"}, inside=tuple(parts))


def _epoch(record: EpochRecord, calls: Calls, rank: RankRecord) -> Slice:
    at = rank.rank
    begin = float(calls.begin[at])
    left = begin
    step_before = -1
    inside = []
    drawing_s = (record.input_seconds[at] if record.input_seconds else 0.0) - float(calls.input[:, at].sum())
    if drawing_s > 0:
        left = min(begin + drawing_s, float(calls.entry[0, at] if len(calls.entry) else calls.end[at]))
        inside.append(Slice(name="input: order of rows", begin=begin, end=left, args={"placed": "first"}))
    last = calls.entry.argmax(axis=1)
    for number, step in enumerate(calls.step.tolist()):
        words = f"step {step + 1}" if step == step_before + 1 else f"steps {step_before + 2} to {step + 1}"
        inside.append(_step(words, calls, number, (at, int(last[number])), left, rank.clock_error_s))
        left = inside[-1].end
        step_before = step
    args: Event = {"steps": record.steps, "train_loss": record.train_loss, "test_accuracy": record.test_accuracy}
    end = max(float(calls.end[at]), left)
    return Slice(name=f"epoch {record.epoch + 1}", begin=begin, end=end, args=args, inside=tuple(inside))


def _step(words: str, calls: Calls, number: int, who: tuple[int, int], left: float, error_s: float) -> Slice:
    """Return a step of rank `who[0]`, which left the last allreduce at `left`; to its own, rank `who[1]` came last."""
    rank, last = who
    out = max(float(calls.exit[number, rank]), left)  # by another host's clock all may be off by a little
    entry = min(max(float(calls.entry[number, rank]), left), out)
    released = min(max(float(calls.entry[number, last]), entry), out)
    args: Event = {"skew_us": _us(released - entry), "wire_us": _us(out - released), "last_rank": last}
    if error_s > 0:
        args["clock_error_us"] = _us(error_s)
    parts = [Slice(name="allreduce time", begin=released, end=out)]
    if released > entry:
        parts.insert(0, Slice(name=f"wait for rank {last}", begin=entry, end=released))
    inside = [Slice(name="allreduce", begin=entry, end=out, args=args, inside=tuple(parts))]
    waited = float(calls.input[number, rank])
    if waited > 0:
        placed = {"placed": "at the step's start"}
        inside.insert(0, Slice(name="input", begin=left, end=min(left + waited, entry), args=placed))
    normalised = float(calls.statistics[number, rank])
    step_args: Event = {"batch_normalisation_us": _us(normalised)} if normalised > 0 else {}
    return Slice(name=words, begin=left, end=out, args=step_args, inside=tuple(inside))


def _us(seconds: float) -> float:
    """Return microseconds, to the nanosecond."""
    return round(1e6 * seconds, 3)


def _events(stretch: Slice, process: int) -> Iterator[Event]:
    """Yield the begin of a slice, all that is inside, and its end."""
    place = {"pid": process, "tid": _TRAINING}
    begin: Event = {"ph": "B", "name": stretch.name, "ts": _us(stretch.begin), **place}
    if stretch.args:
        begin["args"] = stretch.args
    yield begin
    for part in stretch.inside:
        yield from _events(part, process)
    yield {"ph": "E", "ts": _us(stretch.end), **place}


def _arrows(run: RunRecord, calls: Calls, ids: Iterator[int]) -> Iterator[Event]:
    """Yield an arrow from the last rank of every allreduce to each that waited for it, at the moment when it came.

    Every one has the next of the `ids`: Perfetto draws arrows of whole numbers only.
    """
    errors = np.array([rank.clock_error_s for rank in run.ranks])
    last = calls.entry.argmax(axis=1)
    came = calls.entry.max(axis=1)
    sure = (calls.skew > errors + errors[last][:, None]) & (came[:, None] < calls.exit)
    for number, rank in zip(*np.nonzero(sure), strict=True):
        at = _us(float(came[number]))
        name = {"name": "waited for", "cat": "wait", "id": next(ids), "ts": at}
        yield {"ph": "s", **name, "pid": int(last[number]) + 2, "tid": _TRAINING}
        yield {"ph": "f", "bp": "e", **name, "pid": int(rank) + 2, "tid": _TRAINING}


def _names(run: RunRecord) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": _LAUNCH, "args": {"name": f"launch {run.point.folder}"}}
    for rank in run.ranks:
        pid = rank.rank + 2
        name = f"rank {rank.rank} on {rank.node or rank.host}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": _TRAINING, "args": {"name": "training"}}


def _launch_track(run: RunRecord, starts: Sequence[float]) -> Iterator[Event]:
    """Yield the epochs, and the notes of the record."""
    for record, start in zip(run.epochs, starts, strict=True):
        end = start + max(record.seconds)
        yield from _events(Slice(name=f"epoch {record.epoch + 1}", begin=start, end=end), _LAUNCH)
    place = {"ph": "i", "s": "g", "pid": _LAUNCH, "tid": _TRAINING}
    for segment in run.segments[:-1]:
        at = starts[min(segment.end[0], len(starts) - 1)]
        reason = f"after {segment.end[0]} epochs and {segment.end[1]} steps, {segment.stopped or 'not asked to'}"
        yield {**place, "name": "stopped and resumed", "ts": _us(at), "args": {"reason": reason}}
    for name, sentences in (("invalid", run.invalid), ("note", run.notes)):
        for sentence in sentences:
            yield {**place, "name": name, "ts": _us(starts[0]), "args": {"reason": str(sentence)}}
