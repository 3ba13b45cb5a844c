"""A sweep inside a job that a user has opened: it takes the nodes of that job and submits nothing."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.command_context import Context
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import read_accounts
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.execute import run_sweep
from harness.sweep.job_cost import estimate, time_limit
from harness.sweep.job_plan import Job
from harness.sweep.plan import Axes, fill_nodes
from harness.sweep.schedulers import choose_scheduler, open_scheduler, scheduler_class
from harness.sweep.site import JobRequest, Site
from harness.sweep.status import read_status
from harness.sweep.submission_settings import Submission
from tests.labs.factories import make_job
from tests.labs.job_variables import SEVERAL, SLURM, nodefile
from tests.labs.sentences import says
from tests.labs.sweep_lab import Lab, wait_for

RECORDED = Path(__file__).parents[1] / "data/pbs"
OF_RANKS = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


def enter(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Let this process be in the job that has these variables, and no rank of it."""
    for name in OF_RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)


def command(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a command first on PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)
    if not os.environ["PATH"].startswith(f"{folder}:"):
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.fixture
def in_salloc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be in a Slurm job of two nodes, with an srun."""
    enter(monkeypatch, SEVERAL)
    command(tmp_path / "bin", "srun", "#!/bin/sh\n", monkeypatch)


@pytest.fixture
def in_qsub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be in an interactive PBS job of 2 cores on each of three nodes, all of which are this host.

    Its commands do not reach the server.
    """
    enter(monkeypatch, nodefile(tmp_path, "n1", "n1", "n2", "n2", "n3", "n3"))
    command(tmp_path / "bin", "pbs_tmrsh", '#!/bin/sh\nshift\nexec "$@"\n', monkeypatch)
    for name in ("qsub", "qstat", "pbsnodes"):
        command(tmp_path / "bin", name, "#!/bin/sh\necho cannot connect to server head >&2\nexit 111\n", monkeypatch)


@pytest.mark.usefixtures("in_salloc")
def test_in_a_slurm_job_of_several_nodes_it_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    name, why = choose_scheduler("auto", Site())
    assert name == "inside"
    says(why, SEVERAL["SLURM_JOB_ID"], 2, "nodes")
    scheduler = open_scheduler("inside")
    limit = scheduler.limit()
    assert limit is not None
    assert (limit.nodes, limit.cores_per_node) == (2, 2)  # the job's share of a node
    assert "sbatch" not in scheduler.commands.calls
    monkeypatch.setenv("PMIX_RANK", "0")  # a rank's own harness is no user in a terminal
    assert scheduler_class("inside").detect() is None


@pytest.mark.usefixtures("in_salloc")
@pytest.mark.parametrize(("left", "seconds"), [("7:00", 420), ("0:05", 60), ("UNLIMITED", 1800)])
def test_a_block_is_planned_for_what_is_left_of_the_job_and_the_cost_says_so(
    left: str, seconds: int, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(tmp_path / "bin", "squeue", f"#!/bin/sh\necho {left}\n", monkeypatch)
    scheduler = open_scheduler("inside", request=JobRequest(mode="turns"))
    points = tuple(Point(workload=lab.workload, layout=Layout(nodes=nodes)) for nodes in (1, 2))
    job = Job(folder=tmp_path, mode="turns", points=points, in_turns=True)
    limit = scheduler.limit()
    assert seconds - 5 <= time_limit(job, scheduler.request, limit) <= seconds
    cost = estimate([job], scheduler.request, limit, {})
    assert cost.limit == pytest.approx(2 * seconds / 3600, rel=0.1)
    assert ("job 4711" in str(cost)) == (left != "UNLIMITED")
    assert scheduler.refusal(Layout(nodes=2)) is None  # what does not fit into the time is made by another command


@pytest.mark.usefixtures("in_qsub")
def test_in_a_pbs_job_of_several_nodes_it_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    name, why = choose_scheduler("auto", Site())
    assert name == "inside_pbs"
    says(why, "7.head", 3, "nodes")
    scheduler = open_scheduler(name)
    limit = scheduler.limit()
    assert limit is not None
    assert (limit.nodes, limit.cores_per_node) == (3, 2)
    assert fill_nodes(Axes(nodes=(1, 2), threads=()), limit).threads == (2,)
    assert scheduler.refusal(Layout(nodes=3)) is None
    says(scheduler.refusal(Layout(nodes=4)), 4, "nodes", 3)
    monkeypatch.setenv("PMIX_RANK", "0")
    assert scheduler_class(name).detect() is None


@pytest.mark.usefixtures("in_qsub")
def test_in_a_pbs_job_a_block_is_planned_for_what_is_left_of_it(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = (RECORDED / "qstat_running_held.json").read_text()
    started = time.ctime(time.time() - 180)  # of its ten minutes
    (tmp_path / "answer").write_text(answer.replace("1015.head", "7.head").replace("Fri Nov 20 17:07:10 2026", started))
    command(tmp_path / "bin", "qstat", f"#!/bin/sh\ncat {tmp_path}/answer\n", monkeypatch)
    scheduler = open_scheduler("inside_pbs", request=JobRequest(mode="turns"))
    point = Point(workload=lab.workload, layout=Layout(nodes=3))
    job = Job(folder=tmp_path, mode="turns", points=(point,), in_turns=True)
    limit = scheduler.limit()
    assert 360 <= time_limit(job, scheduler.request, limit) <= 420
    says(estimate([job], scheduler.request, limit, {}), "job 7.head")


def test_a_job_of_one_node_is_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, SLURM)
    assert scheduler_class("inside").detect() is None
    monkeypatch.delenv("SLURM_JOB_ID")
    enter(monkeypatch, nodefile(tmp_path, "n1", "n1"))
    assert scheduler_class("inside_pbs").detect() is None


@pytest.mark.parametrize("mode", ["turns", "jobs"])
def test_a_sweep_in_a_pbs_job_runs_on_its_nodes_from_plan_to_records(
    mode: str, lab: Lab, in_qsub: None, capfd: pytest.CaptureFixture[str]
) -> None:
    submission = Submission(scheduler="inside_pbs", request=JobRequest(mode=mode))
    sweep = replace(lab.sweep(), layouts=(Layout(nodes=1), Layout(nodes=3)))
    context = Context(results=lab.results)
    files = SweepFolder(
        run_sweep(sweep, context, submission, approve=lambda cost: pytest.fail("nodes cost nothing more"))
    )
    assert read_status(files.path).count("done") == 4
    said = "".join(capfd.readouterr())
    assert says(said, "the others are idle", "--ranks-per-node") and "--share-nodes" not in said
    says(read_accounts(files)[0].missing, "job 7.head")
    words = [path.read_text().split("\0") for path in files.jobs.glob("*.words")]
    hosts = {some[some.index("--host") + 1] for some in words}
    assert hosts == ({"n1:1", "n1:1,n2:1,n3:1"} if mode == "turns" else set())


@pytest.mark.usefixtures("in_salloc")
def test_the_script_of_a_job_runs_here_and_is_found_by_another_command(tmp_path: Path) -> None:
    scheduler = open_scheduler("inside")
    first = make_job(tmp_path, 'echo "as $HARNESS_JOB"; exit 3\n')
    (job,) = scheduler.submit(first)
    wait_for(lambda: scheduler.poll([job])[job].phase == "ended", "the script's end")
    assert scheduler.poll([job])[job].exit_code == 3
    assert scheduler.output(tmp_path / "logs", job).read_text() == f"as {first.name}\n"

    second = make_job(tmp_path, "sleep 600\n", repeat=1)
    (job,) = scheduler.submit(second)
    other = open_scheduler("inside")
    wait_for(lambda: dict(other.find([second.name, "adult-3"])) == {second.name: job}, "the script")
    assert other.poll([job])[job].phase == "running"
    other.cancel([job])
    wait_for(lambda: scheduler.poll([job])[job].phase == "ended", "the script's end")
    assert other.poll([job])[job].phase == "unknown"
