"""Traces hold to the Trace Event Format: what nests closes, arrows have two ends, nothing runs backwards."""

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from harness.analysis.sync_calls import Calls, read_calls
from harness.analysis.trace import MOST_EVENTS, trace_events, trace_file
from harness.cli import main
from harness.schema.record import RunRecord, Segment, read_run
from tests.labs.factories import make_epochs, make_point, make_run
from tests.labs.sentences import refuses

RECORDS = Path(__file__).parents[1] / "data/mnist-dnn-6x2"
TWO = "n2x1x1-r2-1d52edaec954"
Event = dict[str, Any]
Track = tuple[int, int]


def check_format(events: list[Event]) -> dict[Track, list[Event]]:
    """Hold `events` to the format; return the slices of every track, with `begin`, `end` and `depth`."""
    open_slices: dict[Track, list[Event]] = defaultdict(list)
    slices: dict[Track, list[Event]] = defaultdict(list)
    now: dict[Track, float] = defaultdict(float)
    for event in (one for one in events if one["ph"] in "BE"):
        track = event["pid"], event["tid"]
        assert event["ts"] >= now[track], f"{event} runs backwards"
        now[track] = event["ts"]
        if event["ph"] == "B":
            made = {**event, "begin": event["ts"], "depth": len(open_slices[track])}
            open_slices[track].append(made)
            slices[track].append(made)
        else:
            open_slices[track].pop()["end"] = event["ts"]
    assert not any(open_slices.values()), "slices that never end"
    assert {event["ph"] for event in events} <= set("BEMCisf")
    assert all(event["ts"] >= 0 for event in events if event["ph"] != "M")
    starts = Counter(event["id"] for event in events if event["ph"] == "s")
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert set(starts.values()) <= {1} and set(starts) == set(ends), "arrows without an end, or with two"
    assert all(type(one) is int for one in starts), "Perfetto's flow_invalid_id: no arrow is drawn"
    for event in events:
        if event["ph"] in "sf":  # an arrow is bound to the slice that is open there
            around = slices[event["pid"], event["tid"]]
            assert any(one["begin"] <= event["ts"] <= one["end"] and "allreduce" in one["name"] for one in around)
    named = {event["pid"] for event in events if event.get("name") == "process_name"}
    assert {pid for pid, _ in slices} <= named
    return slices


def events_of(run: RunRecord, calls: tuple[Calls, ...], **options: Any) -> list[Event]:
    """Return the events as a reader of the file has them."""
    found = json.loads(gzip.decompress(trace_file(run, trace_events(run, calls, **options))))
    assert found["otherData"]["launch"] == run.point.folder
    return list(found["traceEvents"])


def planted(entry: Any, exit_: Any, errors: tuple[float, ...] = (), **changes: Any) -> tuple[RunRecord, Calls]:
    """Return a launch of one epoch with calls of these entries and exits [calls, ranks]."""
    entry, exit_ = np.array(entry, dtype=float), np.array(exit_, dtype=float)
    calls, ranks = entry.shape
    epochs = make_epochs([[float(exit_.max()) + 1e-3] * ranks], steps=calls)
    run = make_run(make_point(ranks), epochs=epochs)
    told = [replace(rank, clock_error_s=error) for rank, error in zip(run.ranks, errors or [0.0] * ranks, strict=True)]
    nothing = np.zeros((calls + 1, ranks))
    own = {
        "epoch": 0,
        "begin": np.zeros(ranks),
        "end": np.array(epochs[0].seconds),
        "step": np.arange(calls),
        "entry": entry,
        "exit": exit_,
        "turn": np.zeros(calls, dtype=np.int32),
        "statistics": nothing,
        "input": nothing,
    } | changes
    return replace(run, ranks=tuple(told)), Calls(**own)


def test_a_recorded_launch_becomes_a_trace_that_holds_to_the_format_and_to_its_record() -> None:
    run = read_run(RECORDS / TWO)
    calls = read_calls(RECORDS / TWO, run)
    slices = check_format(events_of(run, calls))
    for rank in range(2):
        own = slices[rank + 2, 1]
        steps = [one for one in own if one["name"].startswith("step ")]
        assert len(steps) == sum(epoch.steps for epoch in run.epochs)
        for name, column in (("wait", "skew_seconds"), ("allreduce time", "wire_seconds")):
            drawn = sum(one["end"] - one["begin"] for one in own if one["name"].startswith(name))
            assert drawn * 1e-6 == pytest.approx(sum(getattr(epoch, column)[rank] for epoch in run.epochs), abs=1e-6)
        epochs = [one for one in own if one["name"].startswith("epoch")]
        assert [one["end"] - one["begin"] for one in epochs] == pytest.approx(
            [1e6 * epoch.seconds[rank] for epoch in run.epochs], abs=0.01
        )
        assert sum(one["name"] == "evaluation" for one in own) == 3
    late = {calls[0].step[n]: int(last) for n, last in enumerate(calls[0].entry.argmax(axis=1))}
    first = [one for one in slices[2, 1] if one["name"] == "allreduce"][: run.epochs[0].steps]
    assert [one["args"]["last_rank"] for one in first] == [late[step] for step in range(run.epochs[0].steps)]


def test_an_arrow_leads_from_the_last_rank_to_each_that_waited() -> None:
    run, calls = planted([[1.0, 3.0, 2.0]], [[4.0] * 3])
    events = events_of(run, (calls,))
    check_format(events)
    ends = sorted((event["pid"] - 2, event["ph"]) for event in events if event["ph"] in "sf")
    assert ends == [(0, "f"), (1, "s"), (1, "s"), (2, "f")]


def test_nobody_is_called_last_where_the_clocks_cannot_tell() -> None:
    run, calls = planted([[1.0, 1.001]], [[1.002, 1.002]], errors=(0.0, 0.01))
    events = events_of(run, (calls,))
    check_format(events)
    assert not [event for event in events if event["ph"] in "sf"]
    assert [event["args"]["us"] for event in events if event.get("name") == "clock may be off by"] == [10_000.0] * 2
    (told,) = [e["args"] for e in events if e.get("name") == "allreduce" and e["pid"] == 3]
    assert told["clock_error_us"] == 10_000.0


def test_clocks_that_contradict_each_other_still_nest() -> None:
    """A rank left before the last one came, and came before it had left: by the clocks, which are off."""
    entry, left = [[1.0, 2.0], [1.2, 2.1]], [[1.5, 1.9], [1.1, 2.5]]
    run, calls = planted(entry, left, errors=(0.0, 0.5))
    check_format(events_of(run, (calls,)))


def test_averages_every_few_steps_are_slices_of_several() -> None:
    run, calls = planted([[1.0, 1.0], [2.0, 2.1]], [[1.1, 1.1], [2.2, 2.2]], step=np.array([9, 10]))
    names = {one["name"] for one in check_format(events_of(run, (calls,)))[2, 1]}
    assert {"steps 1 to 10", "step 11"} <= names


def test_epochs_are_placed_where_rank_0_began_them() -> None:
    run, calls = planted([[0.1, 0.1]], [[0.2, 0.2]])
    second = replace(run.epochs[0], epoch=1, begin_s=5.0)
    run = replace(run, epochs=(replace(run.epochs[0], begin_s=0.0), second))
    both = (calls, replace(calls, epoch=1))
    slices = check_format(events_of(run, both))[3, 1]
    first, later = (one["begin"] for one in slices if one["name"].startswith("epoch"))
    assert later - first == pytest.approx(5e6)
    only = check_format(events_of(run, both, wanted=[1]))[3, 1]
    assert [one["name"] for one in only if one["name"].startswith("epoch")] == ["epoch 2"]


def test_what_went_wrong_is_an_instant_of_the_launch() -> None:
    run, calls = planted([[0.1, 0.1]], [[0.2, 0.2]])
    parts = [
        Segment(started=run.started, ended=run.ended, begin=(0, 0), end=(0, 7), ranks=2, stopped="SIGTERM"),
        Segment(started=run.started, ended=run.ended, begin=(0, 7), end=(1, 0), ranks=2),
    ]
    run = replace(run, segments=tuple(parts), invalid=("other processes kept 2.0 of 2 cores busy",))
    events = events_of(run, (calls,))
    check_format(events)
    told = {event["name"]: event["args"]["reason"] for event in events if event["ph"] == "i"}
    assert told["stopped and resumed"] == "after 0 epochs and 7 steps, SIGTERM"
    assert told["invalid"] == run.invalid[0]


def test_what_no_browser_can_hold_is_refused() -> None:
    run, calls = planted([[0.1, 0.1]], [[0.2, 0.2]])
    huge = replace(calls, entry=np.broadcast_to(0.1, (MOST_EVENTS, 2)))
    with refuses("events are too many", "--epochs", "1..1"):
        next(trace_events(run, (huge,)))


def test_the_command_writes_the_middle_launch_of_a_sweep_or_the_one_that_is_named(tmp_path: Path) -> None:
    options = ["--results", str(RECORDS.parent), "--reports", str(tmp_path)]
    for name, launch in ((RECORDS.name, TWO), (str(RECORDS / TWO), TWO), (TWO, TWO)):
        said = CliRunner().invoke(main, ["trace", name, "--epochs", "2", *options], catch_exceptions=False)
        assert said.exit_code == 0 and "2 ranks, 1 epoch," in said.output.replace("\u00a0", " ")
        file = tmp_path / "traces" / f"{launch}.json.gz"
        check_format(json.loads(gzip.decompress(file.read_bytes()))["traceEvents"])
        file.unlink()
    with refuses("of range: the launch", "--epochs", "4", "1"):
        CliRunner().invoke(main, ["trace", TWO, "--epochs", "3,4", *options], catch_exceptions=False)


def test_one_rank_alone_has_epochs_and_no_steps() -> None:
    (alone, *_) = sorted(RECORDS.glob("n1x1x1-*"))
    run = read_run(alone)
    slices = check_format(events_of(run, read_calls(alone, run)))
    assert {one["name"].split()[0] for one in slices[2, 1]} >= {"set-up", "epoch", "evaluation"}
    assert not [one for one in slices[2, 1] if one["name"].startswith("step ")]
