"""Slurm: recorded answers of a real Slurm 22.05."""

from dataclasses import fields

import pytest

from harness.base.processes import Reply
from harness.schema.layout import Layout
from harness.schema.record import JobUsage
from harness.sweep.job_nodes import expand
from harness.sweep.schedulers import slurm
from harness.sweep.schedulers.slurm import (
    read_partitions,
    read_queue,
    read_sacct,
    read_slurm_nodes,
    read_slurm_usage,
)
from harness.sweep.site import JobRequest, Site, known_sites, read_site
from tests.labs.sentences import refuses, says

DISABLED = "Slurm accounting storage is disabled"
DRAINED = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
QUEUE = f"""\
2|CANCELLED|ReqNodeNotAvail, UnavailableNodes:n4||0|N/A|h-0
1|PENDING|{DRAINED}||0|N/A|h-1
3_0|RUNNING|None|n1|0|N/A|h-2
3_1|COMPLETED|None|n2|0|N/A|h-2
4|TIMEOUT|TimeLimit|n[1-2]|9|N/A|h-3
5|FAILED|NonZeroExitCode|n3|512|N/A|h-4
"""


class Recorded:
    """Commands that answer what a real Slurm answered, and say how often they were asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def run(self, words: tuple[str, ...]) -> str:
        self.calls.append(words[0])
        return {"squeue": QUEUE, "sinfo": "n1|idle|none\nn3|down*|Not responding\nn4|drained|fan is loud\n"}[words[0]]

    def ask(self, words: tuple[str, ...]) -> Reply:
        self.calls.append(words[0])
        return Reply(code=1, out="", err=DISABLED)


@pytest.fixture
def scheduler() -> slurm.Scheduler:
    built = slurm.Scheduler(site=Site(), request=JobRequest())
    built.commands = Recorded()  # type: ignore[assignment]
    return built


def test_one_squeue_tells_every_job_for_what_it_is() -> None:
    states = {job: state for job, (state, _) in read_queue(QUEUE).items()}
    assert {job: (state.phase, state.exit_code, state.forced) for job, state in states.items()} == {
        "1": ("queued", None, False),
        "2": ("ended", 0, True),
        "3_0": ("running", None, False),
        "3_1": ("ended", 0, False),
        "4": ("ended", 137, True),
        "5": ("ended", 2, False),
    }
    explain = slurm.Scheduler.explain
    says(explain(states["4"]), "time limit (TIMEOUT)", "n[1-2]", "TimeLimit")
    says(explain(states["5"]), "failed (FAILED)", "n3")


def test_tasks_cancelled_before_they_started_are_found_under_their_arrays_number(scheduler: slurm.Scheduler) -> None:
    states = scheduler.poll(["2_0", "2_1", "3_0"])
    assert [states[job].word for job in ("2_0", "2_1", "3_0")] == ["CANCELLED", "CANCELLED", "RUNNING"]


def test_a_job_that_waits_for_a_drained_node_says_why_it_is_drained(scheduler: slurm.Scheduler) -> None:
    states = scheduler.poll(["1"])
    assert states["1"].reason.startswith(f"{DRAINED}; ")
    assert "n4" in states["1"].reason


def test_a_thousand_jobs_are_asked_for_in_one_call(scheduler: slurm.Scheduler) -> None:
    states = scheduler.poll([str(number) for number in range(1, 1001)])
    assert len(states) == 1000
    assert states["1000"].phase == "unknown"
    assert scheduler.commands.calls == ["squeue", "sacct", "sinfo"]  # accounting is asked no more once it is off


def test_accounting_names_who_cancelled_and_the_signal() -> None:
    found = read_sacct("7|CANCELLED by 0|0:0|n1\n8_1|OUT_OF_MEMORY|0:125|n2\n9|FAILED|3:0|n1\n")
    assert [(state.word, state.reason, state.exit_code) for state in found.values()] == [
        ("CANCELLED", "by 0", 0),
        ("OUT_OF_MEMORY", "", 253),
        ("FAILED", "", 3),
    ]


def test_what_jobs_used_is_the_sum_of_their_steps_and_only_of_jobs_that_have_ended() -> None:
    lines = (
        "7_1|COMPLETED|90|2|03:10.500||7200000",
        "7_1.batch|COMPLETED|90|1|00:00.500|10452K|",
        "7_1.extern|COMPLETED|90|2|00:00:00|84K|",
        "7_1.0|COMPLETED|85|2|03:10|5266672K|7200000",
        "8|CANCELLED by 0|3600|1|1-02:00:00||0",
        "9|RUNNING|10|4|00:00:00||18446744073709551614",
        "9.batch|RUNNING|10|1|00:00:00|5K|",
        "10|NODE_FAIL|5|1|00:00:00||18446744073709551614",
    )
    found = read_slurm_usage("\n".join(lines))
    assert found == {
        "7_1": JobUsage(
            elapsed_s=90, nodes=2, cpu_s=190.5, memory_bytes=5266672 * 1024, memory_of="a process", energy_j=7.2e6
        ),
        "8": JobUsage(elapsed_s=3600, nodes=1, cpu_s=93600, memory_of="a process"),
        "10": JobUsage(elapsed_s=5, nodes=1, memory_of="a process"),
    }
    assert found["7_1"].node_hours == 0.05


def test_a_cluster_without_accounting_says_so(scheduler: slurm.Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    answers = [Reply(code=0, out="1|COMPLETED|36|1|00:01||\n", err="")]

    def ask(words: tuple[str, ...]) -> Reply:
        asked.append(words)
        return answers.pop()

    monkeypatch.setattr(scheduler.commands, "ask", ask, raising=False)
    assert scheduler.account(["1", "2"]) == {"1": JobUsage(elapsed_s=36, nodes=1, cpu_s=1, memory_of="a process")}
    assert asked[0][-2:] == ("-j", "1,2")
    answers.append(Reply(code=1, out="", err=f"{DISABLED}\n"))
    assert scheduler.account(["1"]) == f"sacct: {DISABLED}"


def test_partitions_of_several_kinds_of_nodes_are_one() -> None:
    lines = (
        "normal*|4|2|8|4000|gpu:2|1-00:30:00",
        "normal*|2|2|16+|8000+|(null)|1-00:30:00",
        "debug|1|1|4|100|(null)|infinite",
    )
    normal, debug = read_partitions("\n".join(lines))
    assert (normal.nodes, normal.cores_per_node, normal.gpus_per_node, normal.memory_mb) == (6, 32, 2, 8000)
    assert (normal.walltime, normal.default) == ("24:30:00", True)
    assert (debug.walltime, debug.default) == (None, False)


def test_node_lists_and_what_is_wrong_with_nodes() -> None:
    assert list(expand("n[1-2,07],m3")) == ["n1", "n2", "n07", "m3"]
    reason = "fan is loud"
    (ill,) = read_slurm_nodes(f"n1|idle|none\nn4|drained|{reason}\n").items()
    assert ill[0] == "n4" and all(fact in ill[1] for fact in ("n4", "drained", reason))
    assert read_slurm_nodes("") == {}


def test_the_example_of_a_site_file_names_every_field() -> None:
    path = known_sites()["example"]
    site = read_site(path)
    text = path.read_text()
    assert site.hosts == ()
    assert site.limits("").name == "standard"  # type: ignore[union-attr]
    for field in fields(Site):
        assert field.name == "name" or field.name in text


class Partitions:
    """A cluster of two partitions, as sinfo tells of them."""

    def ask(self, words: tuple[str, ...]) -> Reply:
        return Reply(code=0, out="a|4|2|8|4000|(null)|1:00:00\nb*|9|1|4|100|(null)|2-00:00:00\n", err="")


def of_two_partitions(request: JobRequest) -> slurm.Scheduler:
    built = slurm.Scheduler(request=request)
    built.commands = Partitions()  # type: ignore[assignment]
    return built


def test_days_all_memory_and_a_list_of_partitions_are_slurms_own_ways_to_ask() -> None:
    built = of_two_partitions(JobRequest(partition="a,b", memory="0", walltime="1-12:00:00"))
    assert built.refusal(Layout(nodes=9)) is None
    assert built.refusal(Layout(nodes=10)) == "needs 10 nodes, partition a,b has 9"
    with refuses("--partition c"):
        of_two_partitions(JobRequest(partition="a,c")).limit()
    for wrong in ("1-", "0:00:00", "1-1:70:00", "1:00"):
        with refuses("is not a time"):
            JobRequest(walltime=wrong)
