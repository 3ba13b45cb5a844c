"""A cluster in five minutes: its site file is written, and two nodes are checked, on a real Slurm."""

import json
import signal
import time

import pytest

from harness.sweep.site import read_site
from tests.cluster.conftest import Terminal
from tests.cluster.slurm import wait_for
from tests.labs.sentences import says

pytestmark = [pytest.mark.cluster, pytest.mark.mpi]


def test_a_site_file_is_written_and_agrees_with_the_cluster(terminal: Terminal) -> None:
    said = terminal.harness("site", "init", "here")
    path = terminal.folder / "here.toml"
    says(said, "here.toml")
    site = read_site(path)
    (partition,) = site.partition
    assert site.scheduler == "slurm" and "srun --mpi=pmix" in path.read_text()
    assert (partition.name, partition.default, partition.walltime) == ("normal", True, "1:00:00")
    assert (partition.nodes, partition.cores_per_node, partition.gpus_per_node) == (4, 4, 2)
    assert "WRONG" not in terminal.harness("site", "check", "here")
    path.write_text(path.read_text().replace("nodes = 4", "nodes = 5"))
    assert "WRONG" in terminal.harness("site", "check", "here", code=1)


def doctor(terminal: Terminal, *words: str) -> tuple[str, ...]:
    return ("doctor", "--cluster", "--site", str(terminal.site), "--json", *words)


def by_topic(said: str) -> dict[str, list[dict[str, str]]]:
    """Return the checks of the doctor's JSON by topic."""
    checks: dict[str, list[dict[str, str]]] = {}
    for check in json.loads(said[said.index("{") :])["checks"]:
        checks.setdefault(check["topic"], []).append(check)
    return checks


def test_two_nodes_are_checked_and_sum(terminal: Terminal) -> None:
    """It starts ranks, as the sum over nodes is what a cluster fails at."""
    checks = by_topic(terminal.harness(*doctor(terminal)))
    (job,) = checks["job"]
    (total,) = checks["sum over 2 nodes"]
    assert (job["status"], total["status"]) == ("ok", "ok")
    says(total["found"], "n1", "n2")
    for topic in ("Python", "TensorFlow", "MPI library", "two ranks", "cores", "C++ operation"):
        nodes = {check["node"] for check in checks[topic]}
        assert nodes in ({"both"}, {"n1", "n2"}), checks[topic]


def test_a_job_that_does_not_start_in_time_is_cancelled(terminal: Terminal) -> None:
    for node in terminal.cluster.nodes:
        terminal.cluster.set_node(node, "drain")
    checks = by_topic(terminal.harness(*doctor(terminal, "--limit", "0.05"), code=1))
    (job,) = checks["job"]
    assert list(checks) == ["job"] and job["status"] == "problem"
    says(job["found"], "queued", "DRAINED")
    assert not terminal.cluster.ask("squeue", "-h").strip()


def test_control_c_cancels_the_job(terminal: Terminal) -> None:
    process = terminal.begin(*doctor(terminal))
    wait_for(lambda: bool(terminal.cluster.ask("squeue", "-h").strip()), "the job")
    time.sleep(0.5)  # its number is known
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    wait_for(lambda: not terminal.cluster.ask("squeue", "-h").strip(), "the end of the job")
