"""Sessions of a measurement: of one time and of one set of hosts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.base.errors import UserError
from harness.regression.launch_comparison import compare_measurements
from harness.regression.measurement import HostTime, MeasuredLaunch, Measurement, measured_in, session_numbers
from harness.regression.session_check import Verdict, check_sessions
from harness.regression.session_samples import session_samples
from harness.schema.record import encode
from harness.schema.sweep_folder import RUN_FILE, SweepFolder
from tests.labs.factories import make_point, make_run, write_run, write_study
from tests.labs.histories import make_measurement, make_summary
from tests.labs.planted import write_planted
from tests.labs.sentences import refuses


def launch(ranks: int, repeat: int, *hosts: str, minutes: float = 0, seconds: float = 1.0) -> MeasuredLaunch:
    summary = make_summary(ranks, repeat, seconds / ranks, minutes=minutes + repeat)
    return replace(summary, hosts=tuple(HostTime(name=host) for host in hosts))


def in_turns(launches: list[MeasuredLaunch]) -> Measurement:
    return replace(make_measurement(launches), in_turns=True)


def two_nodes_within_an_hour() -> Measurement:
    """Return three blocks on one node and three on another, at the same time."""
    first = [launch(ranks, block, "a") for block in range(3) for ranks in (1, 2)]
    second = [launch(ranks, 3 + block, "b", minutes=0.5, seconds=1.1) for block in range(3) for ranks in (1, 2)]
    return in_turns([*first, *second])


def numbers(measurement: Measurement) -> list[int]:
    found = session_numbers(measurement)
    return [found[one] for one in measurement.launches]


def test_two_nodes_within_an_hour_are_two_sessions() -> None:
    measurement = two_nodes_within_an_hour()
    assert numbers(measurement) == [0] * 6 + [1] * 6
    for sample in session_samples(measurement, measurement.layouts):
        assert [len(blocks) for blocks in sample.sessions] == [3, 3], sample.quantity


def test_layouts_on_more_nodes_of_an_allocation_are_of_its_session() -> None:
    launches = [launch(1, 0, "a"), launch(2, 0, "a", "b"), launch(1, 1, "b"), launch(4, 1, "c", "d", "a", "b")]
    assert numbers(in_turns(launches)) == [0] * 4
    assert numbers(in_turns([*launches, launch(2, 2, "e", "f")])) == [0] * 4 + [1]


def test_hosts_that_are_not_known_leave_the_time_to_tell() -> None:
    launches = [launch(1, 0), launch(1, 1), launch(1, 2, minutes=200)]
    assert numbers(in_turns(launches)) == [0, 0, 1]


def test_launches_one_after_the_other_share_a_session_by_their_repeat() -> None:
    """Each is a job of its own, perhaps on nodes of its own."""
    launches = [launch(ranks, repeat, f"node{repeat}{ranks}") for repeat in range(3) for ranks in (1, 2)]
    measurement = make_measurement(launches)
    assert numbers(measurement) == [0, 0, 1, 1, 2, 2]
    efficiency = session_samples(measurement, measurement.layouts)[-1]
    assert [len(blocks) for blocks in efficiency.sessions] == [1, 1, 1]


def test_sessions_of_one_block_each_are_judged_by_how_far_they_differ() -> None:
    """By Student's test of two samples, which is exact here."""
    random_parts = [0.00, 0.02, -0.01, 0.01]
    before = [launch(1, k, f"n{k}", seconds=1 + part) for k, part in enumerate(random_parts)]
    now = [launch(1, k, f"m{k}", minutes=5000, seconds=1.3 + part) for k, part in enumerate(random_parts)]
    check = check_sessions(make_measurement(before), make_measurement(now))
    (row,) = check.rows
    assert row.sessions == (4, 4) and row.blocks == (4, 4)
    assert row.interval is not None and 0.2 < row.interval.low < 1 - 1 / 1.3 < row.interval.high < 0.26


def test_recorded_sweeps_on_different_hosts_are_of_different_sessions() -> None:
    sides = [make_measurement([launch(1, block, host) for block in range(6)]) for host in ("a", "a", "b")]
    assert not compare_measurements(sides[0], sides[1])[0].apart
    assert compare_measurements(sides[0], sides[2])[0].apart


def test_a_record_gives_the_hosts_of_its_ranks(tmp_path: Path) -> None:
    run = make_run(make_point(2))
    ranks = tuple(replace(rank, host=f"node{rank.rank}") for rank in run.ranks)
    write_run(tmp_path, replace(run, ranks=ranks))
    (measured,) = measured_in(tmp_path, "x", None).launches
    assert [host.name for host in measured.hosts] == ["node0", "node1"]


def test_the_time_of_a_row_is_that_of_each_host_without_its_waiting(tmp_path: Path) -> None:
    """Ranks of node b compute a tenth longer, and those of a wait for them."""
    step_s = np.array([0.001, 0.001, 0.0011, 0.0011])
    run = write_planted(tmp_path, 4, 0, lambda _, steps: np.tile(step_s, (steps, 1)), wire=0.0005)
    ranks = tuple(replace(rank, host="a" if rank.rank < 2 else "b") for rank in run.ranks)
    (tmp_path / run.point.folder / RUN_FILE).write_bytes(encode(replace(run, ranks=ranks)))
    (measured,) = measured_in(tmp_path, "x", None).launches
    assert [host.name for host in measured.hosts] == ["a", "b"]
    times = [host.row_seconds or 0.0 for host in measured.hosts]
    assert times == pytest.approx([0.001 / 64, 0.0011 / 64])


@pytest.mark.parametrize(("name", "seconds"), [("a b", None), ("", None), ("a", 0.0), ("a", -1.0)])
def test_what_is_no_host_is_refused(name: str, seconds: float | None) -> None:
    with pytest.raises(UserError):
        HostTime(name=name, row_seconds=seconds)


def write_block(folder: Path, repeat: int, *, quiet_rounds: int) -> None:
    """Write a block of launches on 1 and 2 ranks with 12 rounds, of which other work leaves so many alone."""
    name = f"block-{repeat}"
    turns = []
    for number in range(12):
        cores = 1.0 if number < quiet_rounds else 0.5
        for ranks in (1, 2):
            run = make_run(make_point(ranks, repeat), seconds=[[1.0 / ranks] * ranks])
            bound = ";".join(map(str, range(ranks)))
            turns.append((number, run.point.folder, 20, 1.0 / ranks / cores, cores, bound))
            if number == 0:
                write_run(folder, replace(run, block=name))
    SweepFolder(folder).rounds.mkdir(exist_ok=True)
    frame = pd.DataFrame(turns, columns=["round", "launch", "steps", "seconds", "cores", "bound"])
    frame.to_parquet(SweepFolder(folder).block_turns(name))


def test_a_block_that_other_work_met_throughout_is_not_judged(tmp_path: Path) -> None:
    """A check beside a test run said regression: its blocks had no time without that work."""
    for repeat, quiet_rounds in enumerate((12, 12, 12, 4)):
        write_block(tmp_path / "study", repeat, quiet_rounds=quiet_rounds)
    write_study(tmp_path / "study")
    measurement = measured_in(tmp_path / "study", "now", None)
    assert {one.repeat for one in measurement.launches} == {0, 1, 2} and measurement.excluded == 2


def test_a_sweep_beside_other_work_throughout_is_refused(tmp_path: Path) -> None:
    for repeat in range(3):
        write_block(tmp_path / "study", repeat, quiet_rounds=4)
    write_study(tmp_path / "study")
    with refuses("other work met nearly all rounds of 6 launches"):
        measured_in(tmp_path / "study", "now", None)


def test_a_check_of_a_sweep_beside_other_work_throughout_cannot_tell(tmp_path: Path) -> None:
    for name, quiet_rounds in (("before", 12), ("now", 4)):
        for repeat in range(3):
            write_block(tmp_path / name, repeat, quiet_rounds=quiet_rounds)
        write_study(tmp_path / name)
    before = measured_in(tmp_path / "before", "main", None, contended_too=True)
    now = measured_in(tmp_path / "now", "now", None, contended_too=True)
    assert (before.contended, now.contended, len(now.launches), now.excluded) == (False, True, 6, 0)
    check = check_sessions(before, now)
    assert {row.verdict for row in check.rows} <= {Verdict.CANNOT_TELL, Verdict.PASS, Verdict.SMALL}
    assert check.verdict == Verdict.CANNOT_TELL and check.other_work is not None
