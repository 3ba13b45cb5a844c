"""What running.json of a stranger's folder may say: identifiers of jobs are words of the scheduler's commands."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.schema.record import encode
from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep.execute import cancel_launches
from harness.sweep.job_plan import QUEUE_NAME, Job
from harness.sweep.sweep_files import Running, read_running, write_running
from tests.labs.factories import make_point
from tests.labs.queues import Queue, sweep
from tests.labs.sentences import refuses
from tests.labs.sweep_lab import Lab

NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("scheduler", "good", "bad"),
    [
        ("slurm", ["12", "12_3"], ["--user=me", "12 13", "12,13", "12_", "12\n", "all"]),
        ("pbs", ["7.head", "7[2].head", "7[].head.example", "7"], ["-W", "head", "7;id", "7.head 8.head"]),
        ("flux", ["1234"], ["--all", "f23", "1 2"]),
        ("local", ["mnist-0123abcd"], ["-x", "a b", "../x"]),
    ],
)
def test_an_identifier_has_the_form_of_its_scheduler(
    scheduler: str, good: list[str], bad: list[str], tmp_path: Path
) -> None:
    files = SweepFolder(tmp_path)
    for job in good:
        write_running(files, (Running(point=make_point(), job=job, started=NOW, scheduler=scheduler),))
        assert read_running(files)[0].job == job
    content = json.loads(files.running.read_bytes())
    for job in bad:
        content[0]["job"] = job
        files.running.write_text(json.dumps(content))
        with refuses("the file, or correct", scheduler):
            read_running(files)
    content[0] |= {"job": "", "name": "../x"}
    files.running.write_text(json.dumps(content))
    with refuses("is not allowed: use", "../x"):
        read_running(files)


def test_names_in_a_queue_have_one_form(tmp_path: Path) -> None:
    for dataset in ("mnist", "higgs", "1abc", "A_B", "_"):
        job = Job(folder=tmp_path, mode="jobs", points=(make_point(dataset=dataset),))
        assert QUEUE_NAME.fullmatch(job.name)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "flux"])
def test_cancel_ends_no_job_of_another_name(
    scheduler: str, lab: Lab, queue: Queue, until: Callable[[int], None]
) -> None:
    until(1)
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, scheduler, "jobs")
    (folder,) = sweep_folders(lab.results)
    files = SweepFolder(folder)
    launches = read_running(files)
    before = {path.name: path.read_text() for path in (queue.folder / "jobs").iterdir()}
    for name in ("mnist-00000000", "my-own-job", ""):
        foreign = (replace(launches[0], name=name), *launches[1:])
        files.running.write_bytes(encode(foreign))
        with refuses("so that no command", launches[0].job):
            cancel_launches(folder)
    files.running.write_bytes(encode((replace(launches[0], job=launches[1].job), *launches[1:])))
    with refuses("so that no command", launches[1].job):
        cancel_launches(folder)
    assert {path.name: path.read_text() for path in (queue.folder / "jobs").iterdir()} == before
