"""Running a sweep: resume, failures, interruption and locks, with a launcher that trains nothing."""

import contextlib
import re
import shutil
import signal
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness.analysis.read_results import load_sweep
from harness.base import cpu_contention
from harness.base.command_context import Context
from harness.base.errors import RunError
from harness.base.removal import MARK, make_place, new_staging_folder
from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep.execute import run_sweep, tidy, write_scripts
from harness.sweep.finished_launches import finished_launch, survey
from harness.sweep.launch_command import first_error
from harness.sweep.progress import Pace
from harness.sweep.schedulers import local
from harness.sweep.site import JobRequest
from harness.sweep.status import read_status
from harness.sweep.submission_settings import Submission
from harness.sweep.sweep_files import Running, read_running, read_study, write_running
from harness.sweep.sweep_lock import hold_sweep, is_locked
from tests.labs.factories import make_run
from tests.labs.fake_mpirun import BAD_NODE, FAILURE
from tests.labs.sentences import count_said, refuses
from tests.labs.sweep_lab import _WAIT_S, Lab, hanging


def test_a_sweep_runs_every_point_once_and_the_same_again_runs_nothing(lab: Lab) -> None:
    sweep = lab.sweep()
    said = lab.run(sweep)
    assert sorted(lab.launched()) == sorted(point.folder for point in sweep.points())
    assert "[4/4]" in said
    lab.run(sweep)
    assert lab.launched() == []
    assert read_status(lab.results / sweep.name).count("done") == 4


def test_more_repeats_and_layouts_run_only_what_is_new(lab: Lab) -> None:
    lab.run(lab.sweep(nodes=(1,), repeats=1))
    lab.launched()
    wider = lab.sweep(nodes=(1, 2), repeats=2)
    lab.run(wider)
    assert len(lab.launched()) == 3
    assert read_status(lab.results / wider.name).count("done") == 4


def test_a_sweep_goes_on_until_it_has_as_many_repeats_as_are_enough(lab: Lab) -> None:
    """Each answer's launches are there before it is asked again, and the study says how many there are in the end."""
    sweep, asked = lab.sweep(repeats=1), iter((2, 4, 4))
    seen = []

    def enough(folder: Path) -> int:
        seen.append(read_status(folder).count("done"))
        return next(asked)

    lab.run(sweep, enough=enough)
    assert seen == [2, 4, 8]
    assert read_study(SweepFolder(lab.results / sweep.name)).sweep.repeats == 4


def test_a_disturbed_launch_runs_once_more_at_the_end(lab: Lab) -> None:
    lab.behave(r2="disturbed")
    sweep = lab.sweep()
    lab.run(sweep)
    assert sorted(Counter(lab.launched()).values()) == [1, 1, 2, 2]
    assert read_status(lab.results / sweep.name).count("done") == 4
    assert len(list(SweepFolder(lab.results / sweep.name).replaced.iterdir())) == 2


def test_a_launch_that_was_killed_runs_once_more_at_the_end(lab: Lab) -> None:
    lab.behave(r2="killed")
    sweep = lab.sweep(repeats=1)
    lab.run(sweep)
    assert sorted(Counter(lab.launched()).values()) == [1, 2]
    assert read_status(lab.results / sweep.name).count("done") == 2


@pytest.mark.parametrize(("nodes", "launched"), [((1, 2), 6), ((2,), 2)])
def test_what_stays_disturbed_or_is_most_of_the_sweep_is_left_to_the_next_command(
    lab: Lab, nodes: tuple[int, ...], launched: int
) -> None:
    """Two of four launches are tried again, in vain; two of two are not: the machine is busy."""
    lab.behave(r2="busy")
    sweep = lab.sweep(nodes)
    lab.run(sweep)
    assert len(lab.launched()) == launched
    assert read_status(lab.results / sweep.name).count("invalid") == 2
    lab.run(sweep)
    assert len(lab.launched()) >= 2  # the next command tries what is invalid again


def test_a_busy_machine_is_waited_for_and_named_and_takes_no_launch(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at before the first launch and after two disturbed ones; what needs less or takes turns goes on."""
    monkeypatch.setattr(cpu_contention, "patience_s", lambda: 0.15)
    monkeypatch.setattr(local, "patience_s", lambda: 0.15)
    busy, sweep = (1.0, "yes, process 7"), lab.sweep(repeats=3)
    looks = iter([busy, (0.0, ""), busy])

    def look(seconds: float) -> tuple[float, str]:
        time.sleep(0.1)
        return next(looks, busy)

    monkeypatch.setattr(cpu_contention, "look", look)
    lab.behave(r1="busy", r2="busy")
    with refuses("launches were not made", "4", "6", "7", error=RunError):
        lab.run(sweep)
    assert re.findall(r"waiting [a-z ]+ (\d+) s", lab.said) == ["0", "0"]
    assert len(lab.launched()) == 2
    lab.run(lab.sweep(nodes=(1,), repeats=3))
    assert len(lab.launched()) == 3

    in_turns = Submission(request=JobRequest(mode="turns"))
    said = lab.run(lab.sweep(repeats=1), submission=in_turns, enough=lambda folder: 2)
    assert count_said(said, "not waiting any longer: rounds") == 1
    assert len(lab.launched()) == 4


def test_a_deleted_or_damaged_record_runs_again(lab: Lab) -> None:
    sweep = lab.sweep()
    lab.run(sweep)
    lab.launched()
    deleted, damaged = (lab.results / sweep.name / point.folder for point in sweep.points()[:2])
    shutil.rmtree(deleted)
    content = (damaged / "run.json").read_bytes()
    (damaged / "run.json").write_bytes(content[: len(content) // 2])
    lab.run(sweep)
    assert str(damaged / "run.json") in lab.said
    assert sorted(lab.launched()) == sorted((deleted.name, damaged.name))


def test_a_launch_without_its_table_of_steps_is_not_done(lab: Lab) -> None:
    sweep = lab.sweep(nodes=(1,), repeats=2)
    lab.run(sweep)
    lab.launched()
    launch = sweep.points()[0].folder
    (lab.results / sweep.name / launch / "steps.parquet").unlink()
    lab.run(sweep)
    assert "steps.parquet" in lab.said
    assert lab.launched() == [launch]


def test_a_failed_launch_is_kept_with_its_reason_and_the_others_go_on(lab: Lab) -> None:
    lab.behave(r2="fail")
    sweep = lab.sweep()
    with refuses("whatever finished is kept", "2", "4", error=RunError):
        lab.run(sweep)
    status = read_status(lab.results / sweep.name)
    assert (status.count("done"), status.count("failed")) == (2, 2)
    failed = [entry for entry in status.entries if entry.state == "failed"]
    assert {entry.detail for entry in failed} == {FAILURE}
    failure = survey(SweepFolder(lab.results / sweep.name), sweep.points()).failures[failed[0].point.folder]
    assert failure.exit_code == 1
    assert "1/3\ufffd" in failure.tail


def test_a_launch_that_fails_alike_twice_is_not_tried_six_times(lab: Lab) -> None:
    lab.behave(r2="fail")
    with refuses("whatever finished is kept", "2", "12", "4", error=RunError):
        lab.run(lab.sweep(repeats=6))
    assert [name[:5] for name in sorted(lab.launched())] == ["n1x1x"] * 6 + ["n2x1x"] * 2
    assert "[8/8]" in lab.said


def test_time_left_counts_the_start_of_tensorflow_too() -> None:
    launch = finished_launch(make_run())  # 30 s, and 2 s before it
    pace = Pace([launch.point], [launch])
    assert pace.left([launch.point]) == 32
    pace.take(launch, 48)
    assert pace.left([launch.point, launch.point]) == 80


def test_a_later_success_ends_the_failure_whose_cost_stays(lab: Lab) -> None:
    lab.behave(r2="fail")
    sweep = lab.sweep()
    with pytest.raises(RunError):
        lab.run(sweep)
    lab.launched()
    lab.behave()
    lab.run(sweep)
    assert len(lab.launched()) == 2
    loaded = load_sweep(lab.results / sweep.name)
    assert not loaded.failures and len(loaded.failed) == 2
    assert all(one.seconds > 0 for one in loaded.failed)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("silent", "exit code 0 without a valid record, the log has no error line"), ("cut", "exit code 0 without")],
)
def test_exit_code_0_proves_nothing(lab: Lab, behaviour: str, reason: str) -> None:
    lab.behave(r1=behaviour)
    sweep = lab.sweep(nodes=(1,), repeats=1)
    with refuses("whatever finished is kept", "1", error=RunError):
        lab.run(sweep)
    (entry,) = read_status(lab.results / sweep.name).entries
    assert entry.state == "failed"
    assert entry.detail.startswith(reason)


def test_layouts_beyond_the_cores_are_recorded_as_skipped(lab: Lab) -> None:
    sweep = lab.sweep(nodes=(1, 4), repeats=1)
    lab.run(sweep)
    assert len(read_status(lab.results / sweep.name).skipped) == 1
    with refuses("4", "--oversubscribe"):
        lab.run(lab.sweep(nodes=(4,)))
    lab.launched()
    lab.run(lab.sweep(nodes=(4,), repeats=1, oversubscribe=True))
    assert len(lab.launched()) == 1


def test_a_dry_run_writes_scripts_in_order_and_launches_nothing(lab: Lab) -> None:
    sweep = lab.sweep()
    plan = write_scripts(sweep, Context(results=lab.results))
    assert lab.launched() == []
    assert {path.stem for path in (plan.wanted.folder / "jobs").glob("*.sh")} == {
        point.folder for point in sweep.points()
    }
    lab.run(sweep)
    assert lab.launched() == [point.folder for point in plan.missing]


def test_what_is_refused_is_no_sweep_and_a_dry_run_refuses_it_too(lab: Lab) -> None:
    np.savez(lab.folder / "own.npz", x=np.ones((20, 3), np.float32), y=np.ones(20))
    sweep = lab.sweep()
    for start in (run_sweep, write_scripts):
        with refuses("one class only (label"):
            start(sweep, Context(results=lab.results))
        assert sweep_folders(lab.results) == () and not lab.results.exists()
    assert lab.launched() == []


def test_a_dry_run_leaves_what_was_launched_the_sweep_that_it_is(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an edit, its plan made all launches of before those of other code: no command found any."""
    sweep = lab.sweep()
    lab.run(sweep)
    monkeypatch.setattr("harness.sweep.planned_launches.current", lambda asked: replace(asked, code="an-edit"))
    write_scripts(sweep, Context(results=lab.results))
    assert read_study(SweepFolder(lab.results / sweep.name)).sweep.code == sweep.code
    assert read_status(lab.results / sweep.name).count("done") == 4


def test_a_dry_run_after_a_kill_counts_no_launch_as_queued(lab: Lab) -> None:
    sweep = lab.sweep(nodes=(1,), repeats=2)
    lab.run(sweep)
    folder = lab.results / sweep.name
    _, second = sweep.points()
    shutil.rmtree(folder / second.folder)
    write_running(SweepFolder(folder), (Running(point=second, job="h-1", started=datetime.now(UTC), name="h-1"),))
    plan = write_scripts(sweep, Context(results=lab.results))
    assert plan.carried == ()
    assert [point for group in plan.jobs for point in group.points] == [second]


def test_two_at_once_is_one_sentence_and_a_dead_holder_is_none(lab: Lab) -> None:
    sweep = lab.sweep()
    folder = lab.results / sweep.name
    with hold_sweep(SweepFolder(folder)):
        assert is_locked(SweepFolder(folder))
        with refuses("is already being run"):
            lab.run(sweep)
    assert (folder / ".lock").exists()
    assert not is_locked(SweepFolder(folder))
    lab.run(sweep)


def has_ended(process: psutil.Process) -> bool:
    """Return whether `process` has ended, also where nobody has collected its exit code yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupting_ends_the_launch_and_keeps_what_is_finished(lab: Lab, number: signal.Signals) -> None:
    with hanging(lab, "hang") as (sweep, rank):
        (folder,) = sweep_folders(lab.results)
        during = read_status(folder)
        assert during.active
        assert during.count("running") == 1
        sweep.send_signal(number)
        _, errors = sweep.communicate(timeout=_WAIT_S)
        assert sweep.returncode == 130
        assert errors.strip()
        assert has_ended(rank)
    after = read_status(folder)
    assert not after.active
    assert (after.count("running"), after.count("failed")) == (0, 0)
    assert after.count("done") == during.count("done")


def test_what_a_killed_sweep_left_running_is_ended_by_the_next(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "GRACE_S", 0.5)
    with hanging(lab, "stubborn") as (sweep, rank):
        for child in psutil.Process(sweep.pid).children():  # what would end it within seconds
            if "harness.base.launch_guard" in child.cmdline():
                child.kill()
        sweep.kill()
        sweep.wait()
        assert not has_ended(rank)
        (folder,) = sweep_folders(lab.results)
        assert read_status(folder).count("running") == 0
        left, *_ = read_running(SweepFolder(folder))
        lab.behave()
        said = lab.run(read_study(SweepFolder(folder)).sweep)
        assert has_ended(rank)
    assert left.point.folder in " ".join(said.split())
    assert read_status(folder).count("done") == 4


def test_what_killed_commands_had_half_written_goes_and_what_a_job_is_writing_stays(lab: Lab) -> None:
    sweep = lab.sweep(nodes=(1,), repeats=2)
    lab.run(sweep)
    folder = lab.results / sweep.name
    going, dead = sweep.points()
    written = new_staging_folder(folder / going.folder)
    staging = new_staging_folder(folder / dead.folder)
    left = [staging / "run.json", folder / ".running.json.harness-abcdefgh", folder / "jobs/.x.sh.harness-abcdefgh"]
    theirs = [folder / ".git/HEAD", folder / ".env", folder / "jobs/.gitignore"]
    for path in (*left, *theirs):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    tidy(SweepFolder(folder), [Running(point=going, job="1", started=datetime.now(UTC))])
    assert not any(path.exists() for path in left)
    assert written.exists()
    lab.run(sweep)
    assert sorted(path.name for path in folder.glob(".*")) == [".env", ".git", ".lock", MARK]
    assert all(path.exists() for path in theirs)
    assert read_status(folder).count("done") == 2


def test_a_full_log_of_remarks_does_not_hide_the_reason() -> None:
    output = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "E0000 00:00:1795253041.461397    9679 cuda_platform.cc:52] failed call to cuInit\n"
    )
    assert first_error(output) is None
    absent = "bash: mpirun: No such file or directory"
    assert first_error(f"{output}{absent}\n") == absent
    traceback, launcher = "Traceback\n  error here\nValueError: bad", "mpirun: rank 0 failed"
    assert first_error(f"{output}{traceback}\n{launcher}") == "ValueError: bad"
    own = "rank 3: disk full"
    assert first_error(f"{launcher}\nharness: {own}") == own
    fault = "Segmentation fault (11)"
    crash = f"[n1:7] *** Process received signal ***\n[n1:7] Signal: {fault}\n[n1:7] Failing at: 0xe0\n"
    assert first_error(crash) == fault
    stack = "[n1:7] [ 1] /libmpi.so.40(mca_pml+0x95)[0x7f]\n[n1:7] [10] /libmpi.so.40(PMPI_Init_thread+0xbf)[0x7f]"
    located = f"{fault} in MPI_Init_thread"
    assert first_error(crash + stack) == located


def test_a_launch_that_stops_with_a_checkpoint_is_started_again_until_it_ends(lab: Lab) -> None:
    lab.behave(r1="stops")
    sweep = lab.sweep(nodes=(1, 2), repeats=1)
    lab.run(sweep)
    one, two = (point.folder for point in sorted(sweep.points(), key=lambda point: point.layout.ranks))
    assert Counter(lab.launched()) == {one: 3, two: 1}
    status = read_status(lab.results / sweep.name)
    assert status.count("done") == 2 and not status.count("failed")


@pytest.mark.parametrize("retries", [0, 1])
def test_a_launch_that_fails_is_tried_again_as_often_as_asked(lab: Lab, retries: int) -> None:
    lab.behave(r2="recovers")
    sweep = lab.sweep(nodes=(2,), repeats=1)
    submission = Submission(request=JobRequest(retries=retries))
    failed = refuses("1", error=RunError) if not retries else contextlib.nullcontext()
    with failed:
        run_sweep(sweep, Context(results=lab.results), submission)
    assert len(lab.launched()) == 1 + retries
    kept = [path.name for path in (lab.results / sweep.name / "failures").iterdir()]
    (point,) = sweep.points()
    assert kept == [f"{point.folder}-attempt1.json" if retries else f"{point.folder}.json"]
    assert BAD_NODE in next((lab.results / sweep.name / "failures").iterdir()).read_text()


def test_what_a_killed_launch_half_wrote_beside_its_checkpoints_goes(lab: Lab) -> None:
    sweep = lab.sweep(nodes=(1,), repeats=1)
    (point,) = sweep.points()
    make_place(lab.results, "RESULTS")
    make_place(lab.results / sweep.name, "RESULTS")
    kept = lab.results / sweep.name / "harness-checkpoints" / point.folder
    other = kept.with_name("n9x1x1-r0-of-other-code")
    for folder in (kept, other):
        folder.mkdir(parents=True)
        for name in (".000002-000000000.ckpt.harness-x1y2z3w4", "000001-000000000.ckpt"):
            (folder / name).touch()
    lab.run(sweep)
    assert [path.name for path in other.iterdir()] == ["000001-000000000.ckpt"]
    lab.run(sweep)
    assert not kept.exists()
