"""Two nodes of a cluster: through a double of PBS, with recorded checks in the place of each node's own."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.__main__ import run_command_line as command
from harness.doctor.all_checks import PROBLEM, WARNING, ok, warning
from harness.doctor.cluster_check import NodeCheck, merge_nodes
from harness.sweep.schedulers import pbs
from tests.labs.doubles import install
from tests.labs.sentences import says

LIBRARY = "Open MPI v5.0.0, ident: 5.0.0"
RIGHT = json.dumps({"size": 2, "sum": 1.0, "nodes": ["n1", "n2"], "library": LIBRARY})
ALONE = json.dumps({"size": 1, "sum": 0.0, "nodes": ["n1"], "library": LIBRARY})
ON_ONE = RIGHT.replace('"n1", "n2"', '"n1"')


def line(topic: str, finding: str, status: str = "ok", fix: str = "") -> str:
    return json.dumps({"status": status, "topic": topic, "finding": finding, "fix": fix})


class Cluster:
    """A double of PBS whose nodes say what `programs` print."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "bin"
        self.server = folder / "pbs"
        self.programs.mkdir()
        self.server.mkdir()
        for name in ("qsub", "qstat", "qdel", "qselect", "pbsnodes"):
            install("fake_pbs.py", self.programs / name)
        self.write("pbs_tmrsh", 'host=$1; shift; HOST=$host exec "$@"')  # every node is this host
        checks = [line("Python", "3.11.2"), line("C++ operation", "/cache/libharness_comm.so")]
        cores = [line("cores", "8 usable"), line("cores", "1 usable", WARNING, "ask for more")]
        self.node_says(n1=[checks[0], cores[0], checks[1]], n2=[checks[0], "a banner", cores[1], checks[1]])
        self.ranks_say(RIGHT)

    def write(self, name: str, script: str) -> Path:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def node_says(self, *, n1: list[str], n2: list[str]) -> None:
        """Let the checks of each node print these lines, by a double of Python."""
        for name, lines in (("n1", n1), ("n2", n2)):
            (self.server / name).write_text("".join(f"{text}\n" for text in lines))
        self.write("python", f"cat {shlex.quote(str(self.server))}/${{HOST-n1}}")

    def ranks_say(self, *lines: str, code: int = 0, error: str = "") -> None:
        """Let mpirun print these lines for the ranks of the sum."""
        text = "".join(f"{text}\n" for text in lines)
        says_version = '[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.0" && exit 0'
        script = f"{says_version}\nprintf %s {shlex.quote(text)}\nprintf %s {shlex.quote(error)} >&2\nexit {code}"
        self.write("mpirun", script)

    def left(self) -> list[str]:
        """Return the states of jobs that have not ended."""
        states = [json.loads(path.read_text())["job_state"] for path in self.server.glob("*.job")]
        return [state for state in states if state not in "FX"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    built = Cluster(tmp_path)
    monkeypatch.setenv("PATH", f"{built.programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_PBS", str(built.server))
    monkeypatch.setenv("HARNESS_MPI", "system")
    monkeypatch.setattr(pbs.Scheduler, "poll_s", 0.1)
    monkeypatch.setattr(sys, "executable", str(built.programs / "python"))
    monkeypatch.chdir(tmp_path)
    return built


def checks(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> dict[str, list[dict[str, str]]]:
    """Run the doctor and return its checks by topic."""
    assert command(["doctor", "--cluster", "--json", *words]) == code
    by_topic: dict[str, list[dict[str, str]]] = {}
    for check in json.loads(capsys.readouterr().out)["checks"]:
        by_topic.setdefault(check["topic"], []).append(check)
    return by_topic


def test_what_both_nodes_say_is_one_line_and_what_differs_is_two(cluster: Cluster, capsys) -> None:
    found = checks(capsys, code=0)
    assert list(found) == ["job", "Python", "cores", "C++ operation", "sum over 2 nodes"]
    assert [check["node"] for check in found["Python"]] == ["both"]
    assert [(check["node"], check["status"]) for check in found["cores"]] == [("n1", "ok"), ("n2", WARNING)]
    says(found["sum over 2 nodes"][0]["found"], "size 2", "n1 and n2")
    assert not cluster.left()
    (script,) = Path("results/doctor").glob("*/check.sh")
    shellcheck = Path(sys.prefix) / "bin/shellcheck"
    checked = subprocess.run([shellcheck, script], text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_table_has_check_node_state_and_what_to_do(cluster: Cluster, capsys) -> None:
    assert command(["doctor", "--cluster"]) == 0
    shown = capsys.readouterr().out
    says(shown, "check", "node", "state", "what to do")
    says(shown, "cores", "n2", "warning", "ask for more")


def test_a_node_that_cannot_be_reached_is_named(cluster: Cluster, capsys) -> None:
    cluster.write("pbs_tmrsh", 'echo "pbs_tmrsh: error connecting to $1" >&2; exit 254')
    found = checks(capsys, code=1)
    (doctor,) = found["doctor"]
    assert (doctor["node"], doctor["status"]) == ("n2", PROBLEM)
    says(doctor["found"], "error connecting to n2")
    assert [check["node"] for check in found["Python"]] == ["n1"]


def test_checks_that_a_node_did_not_end_are_a_problem(cluster: Cluster, capsys) -> None:
    cluster.node_says(n1=[line("Python", "3.11.2")], n2=[])
    found = checks(capsys, code=1)
    assert [(check["node"], check["status"]) for check in found["doctor"]] == [("n1", PROBLEM), ("n2", PROBLEM)]


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ((ALONE, ALONE), 0, "2 worlds of size 1"),
        ((ON_ONE,), 0, "all ranks ran on n1"),
        ((), 1, "unreachable host n2"),
        ((RIGHT,), 14, "exit code 14"),
    ],
)
def test_ranks_that_do_not_meet_are_a_problem(
    cluster: Cluster, capsys, lines: tuple[str, ...], code: int, words: str
) -> None:
    cluster.ranks_say(*lines, code=code, error="ORTE: failed: unreachable host n2\n" if not lines else "")
    (total,) = checks(capsys, code=1)["sum over 2 nodes"]
    assert total["status"] == PROBLEM and total["fix"]
    says(total["found"], words)


def test_a_job_that_waits_for_too_long_is_cancelled(cluster: Cluster, capsys) -> None:
    (cluster.server / "server.json").write_text(json.dumps({"hold": True}))
    found = checks(capsys, "--limit", "0.01", code=1)
    assert list(found) == ["job"] and found["job"][0]["status"] == PROBLEM
    says(found["job"][0]["found"], "queued", "cancelled")
    assert not cluster.left()


def test_in_an_allocation_nothing_is_submitted(cluster: Cluster, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    nodefile = cluster.server / "nodefile"
    nodefile.write_text("n1\nn1\nn2\nn2\n")
    monkeypatch.setenv("PBS_JOBID", "7.head")
    monkeypatch.setenv("PBS_NODEFILE", str(nodefile))
    (cluster.programs / "qsub").unlink()  # as on many compute nodes
    found = checks(capsys, code=0)
    assert [check["node"] for check in found["cores"]] == ["n1", "n2"]
    assert not list(cluster.server.glob("*.job"))


def test_a_cluster_of_one_node_and_no_cluster_are_refused(cluster: Cluster) -> None:
    (cluster.server / "server.json").write_text(json.dumps({"nodes": 1}))
    assert command(["doctor", "--cluster"]) == 2
    assert not list(cluster.server.glob("*.job"))


def test_lines_are_merged_only_where_nodes_agree() -> None:
    same = [NodeCheck(node=name, check=ok("a", "x")) for name in ("n1", "n2")]
    others = [NodeCheck(node="n1", check=ok("b", "x")), NodeCheck(node="n2", check=warning("b", "y", "z"))]
    merged = merge_nodes(iter([*same[:1], *others[:1], *same[1:], *others[1:]]))
    assert [(found.node, found.check.topic) for found in merged] == [("both", "a"), ("n1", "b"), ("n2", "b")]


def test_settings_of_the_job_are_refused_without_it(cluster: Cluster, capsys) -> None:
    assert command(["doctor", "--limit", "5"]) == 2
    says(capsys.readouterr().err, "--limit")
