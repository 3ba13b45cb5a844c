"""What goes wrong on clusters, done to a real Slurm: every launch shows as what it was, and a retry makes it whole."""

import json
import signal
import subprocess
import time

import pytest

from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep.schedulers import Scheduler
from harness.sweep.status import LaunchStatus, read_status
from harness.sweep.sweep_files import read_running
from tests.cluster.conftest import Untrained
from tests.cluster.slurm import Cluster, wait_for

pytestmark = pytest.mark.cluster


def entries(untrained: Untrained) -> tuple[LaunchStatus, ...]:
    return read_status(untrained.terminal.sweep_folder).entries


def submitted(untrained: Untrained, count: int) -> list[str]:
    """Wait until `count` launches have identifiers and return them."""

    def there() -> list[str]:
        if not sweep_folders(untrained.terminal.results):
            return []
        return sorted(
            {running.job for running in read_running(SweepFolder(untrained.terminal.sweep_folder)) if running.job}
        )

    wait_for(lambda: len(there()) == count, f"{count} jobs")
    return there()


def node_of(cluster: Cluster, job: str) -> str:
    return cluster.ask("squeue", "-h", "-r", "-j", job, "-o", "%N").strip()


def running_jobs(cluster: Cluster) -> int:
    return len(cluster.ask("squeue", "-h", "-r", "-t", "running").splitlines())


def finish(process: subprocess.Popen[str], seconds: int = 200) -> str:
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        process.kill()


def test_four_ways_to_lose_a_launch_and_the_way_back(untrained: Untrained, cluster: Cluster) -> None:
    untrained.lab.behave(r1="hang")
    command = untrained.words("--nodes", "1", "--repeats", "4", "--mode", "array", "--walltime", "0:01:00")
    sweep = untrained.terminal.begin(*command)
    jobs = submitted(untrained, 4)
    wait_for(lambda: running_jobs(cluster) == 4, "four tasks to run")
    nodes = [node_of(cluster, job) for job in jobs]
    assert [entry.state for entry in entries(untrained)] == ["running"] * 4
    cluster.ask("scontrol", "update", f"jobid={jobs[3]}", "endtime=now+2")  # of the minute that is the least limit
    cluster.ask("scancel", jobs[0])
    cluster.set_node(nodes[1], "down", "power supply")
    cluster.kill_node(nodes[2])
    said = finish(sweep)
    assert sweep.returncode == 1, said
    reasons = " | ".join(entry.detail for entry in entries(untrained))
    assert "had not started" not in reasons
    assert "it was cancelled (CANCELLED)" in reasons
    assert f"a node of its allocation was lost (NODE_FAIL) on {nodes[1]}" in reasons
    assert f"node {nodes[1]} is down: power supply" in reasons
    assert f"a node of its allocation was lost (NODE_FAIL) on {nodes[2]}" in reasons
    assert "Not responding" in reasons
    assert "Slurm ended it at its time limit (TIMEOUT)" in reasons
    cluster.heal()
    untrained.lab.behave()
    said = untrained.terminal.harness(*command)
    assert "4 to run" in said
    assert said.splitlines()[-1].endswith("index.html")
    assert [entry.state for entry in entries(untrained)] == ["done"] * 4


def test_a_drained_node_keeps_a_launch_waiting_with_its_reason(untrained: Untrained, cluster: Cluster) -> None:
    cluster.set_node("n4", "drain", "fan is loud")
    sweep = untrained.terminal.begin(*untrained.words("--nodes", "4", "--repeats", "1"))
    submitted(untrained, 1)
    wait_for(lambda: "fan is loud" in untrained.terminal.harness("status"), "the reason")
    assert [entry.state for entry in entries(untrained)] == ["queued"]
    time.sleep(3 * Scheduler.poll_s)  # the sweep itself asks while the launch waits
    cluster.set_node("n4", "resume")
    said = finish(sweep)
    assert sweep.returncode == 0, said
    assert "now 3 of 4 can in partition normal (node n4 is drained: fan is loud)" in said


def test_a_requeued_launch_runs_again_and_counts(untrained: Untrained, cluster: Cluster) -> None:
    untrained.lab.behave(r1="hang")
    sweep = untrained.terminal.begin(*untrained.words("--nodes", "1", "--repeats", "1", "--requeue"))
    (job,) = submitted(untrained, 1)
    wait_for(lambda: running_jobs(cluster) == 1 and bool(untrained.lab.launched()), "the launch to hang")
    node = node_of(cluster, job)
    untrained.lab.behave()  # the hanging launch has read what it is to do
    cluster.set_node(node, "down")
    wait_for(lambda: running_jobs(cluster) == 0, "the job to be requeued")
    assert [entry.state for entry in entries(untrained)] == ["queued"]
    cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now")
    said = finish(sweep)
    assert sweep.returncode == 0, said
    assert [entry.state for entry in entries(untrained)] == ["done"]


def test_jobs_outlive_their_command_and_are_never_submitted_twice(untrained: Untrained, cluster: Cluster) -> None:
    cluster.set_node("n1", "drain")
    before = len(cluster.jobs())
    command = untrained.words("--nodes", "4", "--repeats", "1")
    first = untrained.terminal.begin(*command)
    (job,) = submitted(untrained, 1)
    assert "is already being run by process" in untrained.terminal.harness(*command, code=2)
    first.send_signal(signal.SIGINT)
    assert f"job {job} goes on" in finish(first)
    assert "no command waits for these launches" in untrained.terminal.harness("status")
    second = untrained.terminal.begin(*command)
    wait_for(lambda: read_status(untrained.terminal.sweep_folder).active, "the second command")
    second.kill()
    second.communicate()
    cluster.set_node("n1", "resume")
    untrained.terminal.harness(*command)
    assert [entry.state for entry in entries(untrained)] == ["done"]
    assert len(cluster.jobs()) - before == 1


def test_cancel_ends_what_is_queued_and_says_so(untrained: Untrained, cluster: Cluster) -> None:
    cluster.set_node("n1", "drain")
    sweep = untrained.terminal.begin(*untrained.words("--nodes", "4", "--repeats", "3", "--mode", "array"))
    submitted(untrained, 3)
    assert "cancelled 3 launches" in untrained.terminal.harness("cancel", str(untrained.terminal.sweep_folder))
    finish(sweep)
    assert sweep.returncode == 1
    details = {entry.detail for entry in entries(untrained)}
    assert len(details) == 1
    assert details.pop().startswith("it had not started; it was cancelled (CANCELLED)")


def test_a_job_whose_dependency_failed_does_not_wait_for_ever(untrained: Untrained, cluster: Cluster) -> None:
    other = cluster.ask("sbatch", "--parsable", "--output=/dev/null", "--wrap", "exit 1").strip()
    untrained.terminal.harness(*untrained.words("--nodes", "1", "--repeats", "1", "--after", other), code=1)
    (entry,) = entries(untrained)
    assert entry.state == "failed"
    assert entry.detail.startswith("it had not started; it was cancelled (CANCELLED)")
    assert "ependency" in entry.detail


def test_completed_without_a_whole_record_is_a_failure(untrained: Untrained) -> None:
    untrained.lab.behave(r1="silent")
    untrained.terminal.harness(*untrained.words("--nodes", "1", "--repeats", "1"), code=1)
    (entry,) = entries(untrained)
    assert entry.detail.startswith(
        "exit code 0 without a valid record, Slurm calls it completed, but it wrote no whole"
    )
    failure = next((untrained.terminal.sweep_folder / "failures").glob("*.json"))
    assert json.loads(failure.read_text())["exit_code"] == 0
