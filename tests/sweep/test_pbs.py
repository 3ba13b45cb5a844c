"""PBS: recorded answers of a real OpenPBS 23.06, and whole sweeps through a double that runs the scripts."""

import json
import os
import shutil
import textwrap
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.base.command_context import Context
from harness.base.errors import RunError
from harness.cli import main
from harness.schema.layout import Layout
from harness.schema.record import JobUsage, read_accounts
from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep.execute import cancel_launches, run_sweep, write_scripts
from harness.sweep.plan import Axes, combine
from harness.sweep.scheduler_answers import State, UnreadableAnswer
from harness.sweep.schedulers import choose_scheduler, open_scheduler, pbs
from harness.sweep.schedulers.pbs import (
    quote_bare_texts,
    read_pbs_nodes,
    read_pbs_time_left,
    read_pbs_usage,
    read_state,
    read_table,
    read_text_table,
)
from harness.sweep.site import JobRequest, Site
from harness.sweep.status import read_status
from harness.sweep.submission_settings import Submission, read_submission
from harness.sweep.sweep_files import Running, read_running, read_study, write_running
from tests.labs.doubles import install
from tests.labs.factories import START
from tests.labs.fake_mpirun import FAILURE
from tests.labs.sentences import refuses, says
from tests.labs.sweep_lab import Lab

RECORDED = Path(__file__).parents[1] / "data/pbs"
EACH_WAY_ONCE = (("jobs", False, True), ("array", True, True), ("turns", False, False))
EACH_PAIR_TOO = (("jobs", True, False), ("array", False, False), ("turns", True, True))


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def read_jobs(answer: str) -> dict[str, State]:
    """Return states by identifier."""
    return {name: read_state(job) for name, job in read_table(answer, "Jobs").items()}


@pytest.mark.parametrize(
    ("job", "phase", "sentence"),
    [
        ("0.head", "ended", "PBS calls it finished, but it wrote no whole record on n1,n2"),
        ("1001.head", "ended", "it ended without having run: it was deleted, or what it depended on failed"),
        ("1003.head", "ended", "PBS ended it at its time limit on n1: Job run at"),
        ("1005.head", "ended", "PBS will never run it: Can Never Run: Insufficient amount of resource: ncpus"),
    ],
)
def test_a_real_servers_ended_jobs_are_what_they_were(job: str, phase: str, sentence: str) -> None:
    state = read_jobs(recorded("qstat_history.json"))[job]
    assert state.phase == phase
    assert pbs.Scheduler.explain(state).startswith(sentence)


def test_what_a_real_servers_jobs_used_and_what_it_does_not_measure_is_not_known() -> None:
    jobs = read_table(recorded("qstat_history.json"), "Jobs")
    assert read_pbs_usage(jobs["1013.head"]) == JobUsage(elapsed_s=3, nodes=2, memory_of="a job")
    assert read_pbs_usage(jobs["1001.head"]) == JobUsage(
        elapsed_s=0, nodes=0, memory_of="a job"
    )  # deleted before its start
    assert read_pbs_usage(jobs["1015.head"]) is None and read_pbs_usage(jobs["1016.head"]) is None
    measured = {"walltime": "26:00:10", "cput": "100:00:01", "mem": "2048kb", "energy": 0.5}
    found = read_pbs_usage(jobs["1013.head"] | {"resources_used": measured})
    assert found == JobUsage(
        elapsed_s=93610, nodes=2, cpu_s=360001, memory_bytes=2**21, memory_of="a job", energy_j=1.8e6
    )


def test_a_real_servers_running_and_held_jobs() -> None:
    jobs = read_jobs(recorded("qstat_running_held.json"))
    assert {name: (state.phase, state.word, state.nodes) for name, state in jobs.items()} == {
        "1015.head": ("running", "running", "n1,n2"),
        "1016.head": ("queued", "held", ""),
    }


def test_the_time_that_a_real_servers_job_has_left() -> None:
    jobs = read_table(recorded("qstat_running_held.json"), "Jobs")
    start = datetime(2026, 11, 20, 17, 7, 10).timestamp()  # local time, as qstat writes it
    assert read_pbs_time_left(jobs["1015.head"], start + 180) == 420  # of ten minutes
    assert read_pbs_time_left(jobs["1016.head"], start) is None  # it has no limit, and has not started
    assert read_pbs_time_left(jobs["1015.head"] | {"stime": "soon"}, start) is None


def test_only_what_the_script_did_not_end_itself_is_forced() -> None:
    jobs = read_jobs(recorded("qstat_history.json"))
    assert jobs["1003.head"].forced
    assert jobs["1005.head"].forced
    assert not jobs["1000[].head"].forced


def test_a_real_servers_nodes_and_one_that_is_down() -> None:
    limit, ill = read_pbs_nodes(recorded("pbsnodes.json"))
    assert limit is not None
    assert (limit.nodes, limit.cores_per_node, limit.gpus_per_node, ill) == (2, 4, 2, {})
    down = json.loads(recorded("pbsnodes.json"))
    down["nodes"]["n2"]["state"] = "state-unknown,down"
    (ill,) = read_pbs_nodes(json.dumps(down))[1].items()
    assert ill[0] == "n2"
    says(ill[1], "n2", "state-unknown,down")


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (
            JobRequest(qos="high"),
            ("--qos high", "--scheduler pbs"),
        ),
        (
            JobRequest(signal_s=30),
            ("--signal 30",),
        ),
        (
            JobRequest(launcher="srun --mpi=pmix"),
            ("--launcher 'srun", "--mpi", "--scheduler pbs:"),
        ),
        (
            JobRequest(partition="a", reservation="R1"),
            ("--partition a", "--reservation R1"),
        ),
    ],
)
def test_what_pbs_does_not_have_is_refused(request_: JobRequest, refusal: str) -> None:
    with refuses(*refusal):
        open_scheduler("pbs", request=request_)


@pytest.fixture
def server(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the double's commands on PATH and return its folder."""
    commands, folder = tmp_path / "bin", tmp_path / "pbs"
    commands.mkdir()
    folder.mkdir()
    for name in ("qsub", "qstat", "qdel", "qselect", "pbsnodes"):
        install("fake_pbs.py", commands / name)
    (commands / "pbs_tmrsh").write_text('#!/bin/sh\nshift\nexec "$@"\n')  # every node is this host
    (commands / "pbs_tmrsh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_PBS", str(folder))
    monkeypatch.setattr(pbs.Scheduler, "poll_s", 0.1)
    # PBS cannot write where a path has blanks.
    monkeypatch.setattr(Lab, "results", property(lambda self: tmp_path / "results"))
    return folder


def tell(server: Path, **settings: object) -> None:
    """Set up the double's server, see there."""
    (server / "server.json").write_text(json.dumps(settings))


def run(lab: Lab, *layouts: Layout, repeats: int = 1, **settings: object) -> Path:
    submission = Submission(scheduler="pbs", request=JobRequest(**settings))  # type: ignore[arg-type]
    sweep = replace(lab.sweep(repeats=repeats), layouts=layouts)
    return run_sweep(sweep, Context(results=lab.results), submission)


def submitted(server: Path) -> int:
    return len(list(server.glob("*.number")))


def test_auto_finds_the_server(server: Path) -> None:
    assert choose_scheduler("auto", Site())[0] == "pbs"


@pytest.mark.parametrize(
    ("mode", "history", "first_only"),
    [
        *EACH_WAY_ONCE,
        *(pytest.param(*ways, marks=pytest.mark.slow) for ways in EACH_PAIR_TOO),
    ],
)
def test_a_sweep_goes_from_submit_to_records_and_the_same_again_does_nothing(
    mode: str,
    history: bool,
    first_only: bool,
    lab: Lab,
    server: Path,
) -> None:
    tell(server, history=history, first_only=first_only)
    layouts, _ = combine(Axes(nodes=(1, 3), ranks_per_node=(2,)), None)
    folder = run(lab, *layouts, repeats=2, mode=mode)
    assert submitted(server) == {"jobs": 4, "array": 2, "turns": 1}[mode]
    assert read_status(folder).count("done") == 4
    accounts = read_accounts(SweepFolder(folder))
    assert [one.job for one in accounts] and len({one.launch for one in accounts}) == 4
    if history:
        jobs = {one.job: one.usage for one in accounts}
        assert len(jobs) == (1 if mode == "turns" else 4)
        assert {usage.nodes for usage in jobs.values() if usage} == ({3} if mode == "turns" else {1, 3})
    else:
        assert {one.usage for one in accounts} == {None}
        for account in accounts:
            says(account.missing, "qstat: the server keeps")
    lab.launched()
    run(lab, *layouts, repeats=2, mode=mode)
    assert lab.launched() == []
    point = read_study(SweepFolder(folder)).sweep.points()[0]
    shutil.rmtree(folder / point.folder)
    before = submitted(server)
    run(lab, *layouts, repeats=2, mode=mode)
    assert (submitted(server) - before, lab.launched()) == (1, [point.folder])


def test_ten_ranks_at_four_a_node_are_ten(lab: Lab, server: Path) -> None:
    layouts, _ = combine(Axes(cores=(10,), ranks_per_node=(4,)), None)
    run(lab, *layouts)
    (nodes,) = server.glob("*.nodes")
    assert nodes.read_text().split() == ["n1"] * 4 + ["n2"] * 4 + ["n3"] * 2


def test_a_silent_success_is_a_failure_with_the_servers_word(lab: Lab, server: Path) -> None:
    tell(server, history=True)
    lab.behave(r1="silent")
    with pytest.MonkeyPatch.context() as patch, refuses("whatever finished is kept", "1", error=RunError):
        patch.setattr("harness.sweep.job_loop.GRACE_S", 0.2)
        run(lab, Layout(nodes=1))
    (folder,) = sweep_folders(lab.results)
    (entry,) = read_status(folder).entries
    says(entry.detail, "without a valid record", 0)
    says(entry.detail, "finished", "no whole record")


def test_jobs_in_the_queue_are_shown_not_submitted_twice_and_can_be_cancelled(
    lab: Lab,
    server: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tell(server, hold=True, history=True)
    # Not time.sleep itself: the subprocess module waits by it, too.
    pause = SimpleNamespace(sleep=lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt), monotonic=time.monotonic)
    monkeypatch.setattr("harness.sweep.job_loop.time", pause)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(lab, Layout(nodes=1), repeats=3)
        assert submitted(server) == 3
    monkeypatch.undo()
    monkeypatch.setenv("FAKE_PBS", str(server))
    monkeypatch.setenv("PATH", f"{server.parent}/bin:{lab.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HARNESS_MPI", "system")
    (folder,) = sweep_folders(server.parent / "results")
    status = read_status(folder)
    assert (status.count("queued"), status.active) == (3, False)
    assert status.entries[0].detail.startswith("job ")
    assert cancel_launches(folder) == (3, False)
    status = read_status(folder)
    assert (status.count("failed"), status.to_launch) == (3, 3)
    says(status.entries[0].detail, "not started")
    says(status.entries[0].detail, "without having run")


def test_the_same_command_takes_in_what_failed_after_its_command_was_killed_and_launches_it_again(
    lab: Lab,
    server: Path,
    soon: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell(server, history=True)
    lab.behave(r1="fail")
    with refuses("whatever finished is kept", "1", error=RunError):
        run(lab, Layout(nodes=1))
    (folder,) = sweep_folders(lab.results)
    (point,) = read_study(SweepFolder(folder)).sweep.points()
    (job,) = (path.stem for path in server.glob("*.job"))
    write_running(SweepFolder(folder), (Running(point=point, job=job, started=datetime.now(UTC), scheduler="pbs"),))
    (folder / "failures" / f"{point.folder}.json").unlink()
    status = read_status(folder)
    assert [entry.state for entry in status.entries] == ["ended"]
    assert "--scheduler=pbs" in status.command
    lab.behave()
    run(lab, Layout(nodes=1))
    assert "FAILED:" in capsys.readouterr().out
    assert (submitted(server), read_status(folder).count("done")) == (2, 1)


def test_the_same_command_launches_again_what_has_no_valid_times(lab: Lab, server: Path) -> None:
    tell(server, history=True)
    lab.behave(r1="disturbed")
    folder = run(lab, Layout(nodes=1))
    status = read_status(folder)
    assert (status.count("invalid"), status.to_launch, submitted(server)) == (1, 1, 1)  # not once more by itself
    run(lab, Layout(nodes=1))
    assert (submitted(server), read_status(folder).count("done")) == (2, 1)


def test_a_job_whose_submitter_died_is_found_by_its_name(
    lab: Lab,
    server: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = run(lab, Layout(nodes=1))
    monkeypatch.setattr("harness.sweep.job_submission.ARRIVAL_S", 0.0)
    point = read_study(SweepFolder(folder)).sweep.points()[0]
    (job,) = server.glob("*.job")
    name = json.loads(job.read_text())["Job_Name"]
    job.write_text(json.dumps({"Job_Name": name, "job_state": "Q", "substate": 10}))
    shutil.rmtree(folder / point.folder)
    lost = Running(point=point, job="", started=datetime.now(UTC), scheduler="pbs", name=name)
    write_running(SweepFolder(folder), (lost,))
    status = read_status(folder)
    assert (status.count("queued"), status.entries[0].detail) == (1, f"job {job.stem}: queued")


def test_a_thousand_jobs_are_asked_for_in_two_calls(server: Path) -> None:
    scheduler = open_scheduler("pbs")
    tell(server, history=True)
    scheduler.poll([f"{number}.head" for number in range(1000)])
    assert (server / "calls.txt").read_text().count("qstat") == 2


def test_damaged_answers_are_one_sentence() -> None:
    with refuses("PBS answered with damaged"):
        read_jobs('{"Jobs": {')


@pytest.mark.parametrize("form", ["damaged", "bare"])
@pytest.mark.parametrize("history", [False, True])
def test_a_sweep_goes_on_where_qstats_json_is_none(
    form: str,
    history: bool,
    lab: Lab,
    server: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tell(server, history=history, form=form)
    folder = run(lab, Layout(nodes=1), repeats=2)
    assert (submitted(server), read_status(folder).count("done")) == (2, 2)
    if history:
        assert {usage.nodes for usage in (one.usage for one in read_accounts(SweepFolder(folder))) if usage} == {1}
    warnings = [record.getMessage() for record in caplog.records if "damaged JSON" in record.getMessage()]
    assert warnings or not history  # nothing is read otherwise without a word; without history no job is listed


def test_answers_that_cannot_be_read_end_the_command_and_not_the_jobs(
    lab: Lab,
    server: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.sweep.job_loop.UNREADABLE_S", 0.5)
    tell(server, hold=True, history=True, form="unreadable")
    with refuses("PBS answered with damaged", error=UnreadableAnswer):
        run(lab, Layout(nodes=1))
    (folder,) = sweep_folders(lab.results)
    assert [running.job for running in read_running(SweepFolder(folder))] == ["0.head"]
    tell(server, hold=True, history=True)
    assert read_status(folder).count("queued") == 1


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what stays missing be given up in seconds."""
    monkeypatch.setattr("harness.sweep.job_loop.GRACE_S", 0.5)
    monkeypatch.setattr("harness.sweep.job_loop.MISSING_S", 1.0)
    monkeypatch.setattr("harness.sweep.job_submission.ARRIVAL_S", 0.0)


@pytest.mark.parametrize("history", [False, True])
def test_a_failed_launch_is_told_with_its_own_reason_whether_or_not_the_server_remembers_it(
    history: bool,
    lab: Lab,
    server: Path,
    soon: None,
) -> None:
    tell(server, history=history)
    lab.behave(r1="fail")
    with refuses("whatever finished is kept", "1", error=RunError):
        run(lab, Layout(nodes=1))
    (folder,) = sweep_folders(lab.results)
    assert read_status(folder).entries[0].detail == FAILURE


@pytest.mark.parametrize("history", [False, True])
def test_a_job_at_its_time_limit_fails_and_is_not_waited_for_for_ever(
    history: bool,
    lab: Lab,
    server: Path,
    soon: None,
) -> None:
    tell(server, history=history)
    lab.behave(r1="hang")
    with refuses("whatever finished is kept", "1", error=RunError):
        run(lab, Layout(nodes=1), walltime="0:00:01")
    (folder,) = sweep_folders(lab.results)
    detail = read_status(folder).entries[0].detail
    says(detail, "s ended it after", 1, 2, "WALLTIME")


def test_a_node_that_went_down_is_the_cause_whatever_the_output_says(lab: Lab, server: Path, soon: None) -> None:
    tell(server, history=True, down=["n1"])
    lab.behave(r1="fail")
    with refuses("whatever finished is kept", "1", error=RunError):
        run(lab, Layout(nodes=1))
    (folder,) = sweep_folders(lab.results)
    detail = read_status(folder).entries[0].detail
    says(detail, "it failed", "n1", "n1", "state-unknown,down", FAILURE)


def test_a_job_that_no_answer_lists_goes_on_counting_until_its_record_is_there(
    lab: Lab,
    server: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    polls = []
    poll = pbs.Scheduler.poll

    def forgetful(scheduler: pbs.Scheduler, jobs: list[str]) -> object:
        polls.append(jobs)
        states = poll(scheduler, jobs)
        return {job: State(phase="unknown") for job in jobs} if len(polls) < 4 else states

    monkeypatch.setattr(pbs.Scheduler, "poll", forgetful)
    folder = run(lab, Layout(nodes=1), repeats=2)
    assert (submitted(server), read_status(folder).count("done")) == (2, 2)


def test_a_server_that_is_down_for_a_while_loses_nothing(
    lab: Lab,
    server: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poll = pbs.Scheduler.poll
    answers: list[str] = []

    def shaky(scheduler: pbs.Scheduler, jobs: list[str]) -> object:
        tell(server, silent=len(answers) < 2)
        answers.append("")
        return poll(scheduler, jobs)

    monkeypatch.setattr(pbs.Scheduler, "poll", shaky)
    folder = run(lab, Layout(nodes=1))
    assert len(answers) > 2
    assert (submitted(server), read_status(folder).count("done")) == (1, 1)


def test_a_node_that_goes_down_under_a_running_job_is_told(
    lab: Lab,
    server: Path,
    soon: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell(server, down=["n1"], history=True)
    lab.behave(r1="hang")
    with pytest.raises(RunError):
        run(lab, Layout(nodes=1), walltime="0:00:02")
    assert "state-unknown,down" in capsys.readouterr().out


def test_a_memory_that_no_node_has_is_refused_before_anything_is_submitted(lab: Lab, server: Path) -> None:
    with refuses("no layout can run", "8192", "4096"):
        run(lab, Layout(nodes=1), memory="8G")
    assert submitted(server) == 0


def test_a_dry_run_leaves_alone_how_queued_launches_were_submitted(
    lab: Lab,
    server: Path,
) -> None:
    folder = run(lab, Layout(nodes=1), account="physics")
    point = read_study(SweepFolder(folder)).sweep.points()[0]
    queued = Running(point=point, job="0.head", started=datetime.now(UTC), scheduler="pbs")
    write_running(SweepFolder(folder), (queued,))
    before = read_submission(SweepFolder(folder))
    sweep = read_study(SweepFolder(folder)).sweep
    write_scripts(sweep, Context(results=lab.results), Submission(scheduler="local"))
    assert read_submission(SweepFolder(folder)) == before


def test_an_operators_qdel_is_no_failure_of_the_script() -> None:
    job = {"job_state": "F", "substate": 91, "Exit_status": 143, "exec_host": "n1/0"}
    state = read_jobs(json.dumps({"Jobs": {"1.head": job}}))["1.head"]
    assert state.forced
    assert "deleted" in pbs.Scheduler.explain(state)


def test_a_job_that_ended_unseen_after_its_command_was_killed_is_noted_no_longer(
    lab: Lab,
    server: Path,
    soon: None,
) -> None:
    folder = run(lab, Layout(nodes=1))
    (point,) = read_study(SweepFolder(folder)).sweep.points()
    intent = Running(point=point, job="", started=START, scheduler="pbs", name="h-ended")
    write_running(SweepFolder(folder), (intent,))  # killed before the identifier was noted; the job then ran to its end
    plan = write_scripts(
        read_study(SweepFolder(folder)).sweep,
        Context(results=lab.results),
        Submission(scheduler="pbs"),
    )
    assert plan.carried == ()
    run(lab, Layout(nodes=1))
    assert submitted(server) == 1
    assert read_running(SweepFolder(folder)) == ()


@pytest.mark.parametrize("words", [["compare", "here", "env:A=1"], ["policies", "a.py", "b.py"]])
def test_nothing_trains_on_a_login_node(server: Path, words: list[str]) -> None:
    error = command(*words).exception
    assert error and "variants train interleaved" in str(error) and "--scheduler pbs" in str(error)


def command(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


# qstat's answers as they are: JSON, JSON with texts that look like numbers, and the text form.

HISTORY = (Path(__file__).parents[1] / "data/pbs/qstat_history.json").read_text()
JOB = '{"Jobs": {"1.head": {"Job_Name": "a", "job_state": "F", "Exit_status": 1, "Variable_List": {%s}}}}'


@pytest.mark.parametrize(
    ("variables", "name", "text"),
    [
        ('"PBS_O_LOGNAME":007123,"PART":.5', "PBS_O_LOGNAME", "007123"),
        ('"PART":.5', "PART", ".5"),
        ('"A":5.,"B":"x"', "A", "5."),
        ('"A":+1', "A", "+1"),
        ('"A":0x1F,"B":1', "A", "0x1F"),
        ('"A":1e5x', "A", "1e5x"),
        ('"A":NaN', "A", "NaN"),
        ('"A":inf', "A", "inf"),
        ('"A":-Infinity', "A", "-Infinity"),
        ('"A":-', "A", "-"),
        ('"A":007,"B":"a, 008: {\\"x\\"} [009]"', "B", 'a, 008: {"x"} [009]'),
    ],
)
def test_texts_without_quotes_are_texts(variables: str, name: str, text: str) -> None:
    job = read_table(quote_bare_texts(JOB % variables), "Jobs")["1.head"]
    assert job["Variable_List"][name] == text
    assert (read_state(job).phase, read_state(job).exit_code) == ("ended", 1)


@pytest.mark.parametrize("variables", ["", '"A":1', '"A":-1.5e3', '"A":true,"B":null', '"A":"007"', '"A":[1,2]'])
def test_what_is_json_stays_as_it_is(variables: str) -> None:
    assert read_table(quote_bare_texts(JOB % variables), "Jobs") == read_table(JOB % variables, "Jobs")


@pytest.mark.parametrize(
    "answer",
    [
        '{"Jobs": {',
        '{"Jobs": {"1.head": {"comment": "she said "no""}}}',
        '{"Jobs": []}',
        '{"Jobs": {"1.head": "gone"}}',
        "qstat: something else",
        '["Jobs"]',
    ],
)
def test_what_is_damaged_otherwise_is_not_repaired(answer: str) -> None:
    with pytest.raises(UnreadableAnswer):
        read_table(quote_bare_texts(answer), "Jobs")


def as_text(jobs: dict[str, dict[str, Any]]) -> str:
    """Return jobs as ``qstat -f`` prints them: long lines go on behind a tab."""
    lines = []
    for name, job in jobs.items():
        lines.append(f"Job Id: {name}")
        for key, value in job.items():
            entries = {f"{key}.{part}": text for part, text in value.items()} if isinstance(value, dict) else {}
            if key == "Variable_List":
                entries = {key: ",".join(f"{part}={text}" for part, text in value.items())}
            for entry, text in (entries or {key: value}).items():
                wrapped = textwrap.wrap(f"{entry} = {text}", 74, break_on_hyphens=False, drop_whitespace=False)
                lines += [f"    {wrapped[0]}", *(f"\t{part}" for part in wrapped[1:])]
        lines.append("")
    return "\n".join(lines)


def test_the_text_form_says_the_same_as_the_json() -> None:
    jobs = read_table(HISTORY, "Jobs")
    table = read_text_table(as_text(jobs))
    assert table.keys() == jobs.keys()
    assert len(jobs) > 5
    for name, job in jobs.items():
        assert read_state(table[name]) == read_state(job), name
        assert read_pbs_usage(table[name]) == read_pbs_usage(job), name
        assert table[name]["Job_Name"] == job["Job_Name"]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("Job Id: 7.head\n    job_state = Q\n    substate = 10\n", "queued"),
        ("Job Id: 7.head\n    job_state = R\n    exec_host = n1/0*2+n2/0\n\t*2\n", "running"),
        ("Job Id: 7.head\n    Variable_List = A=1,\n\tB=\n  odd\n    job_state = F\n    Exit_status = 0\n", "ended"),
        ("a banner of the site\nJob Id: 7.head\n    job_state = F\n    Exit_status = -29\n", "ended"),
        ("Job Id: 7.head\n    Job_Name = 007\n    comment = job_state = R\n    job_state = H\n", "queued"),
    ],
)
def test_text_forms_of_every_kind(text: str, state: str) -> None:
    assert read_state(read_text_table(text)["7.head"]).phase == state


@pytest.mark.parametrize("text", ["qstat", "<html>", "Job Id: 7.head\n    Exit_status = none\n", "{}", "7.head a b"])
def test_a_text_that_is_none_is_not_read(text: str) -> None:
    with pytest.raises(UnreadableAnswer):
        read_text_table(text)


def test_no_job_is_an_answer() -> None:
    assert read_text_table("") == read_table("", "Jobs") == {}


def test_nodes_whose_json_is_none_are_not_known() -> None:
    with pytest.raises(UnreadableAnswer):
        read_pbs_nodes("pbsnodes: Server has no node list")
    bare = json.dumps({"nodes": {"n1": {"state": "free", "resources_available": {"ncpus": 2}}}})
    assert read_pbs_nodes(quote_bare_texts(bare.replace('"free"', '"free", "comment": 007')))[0] is not None
