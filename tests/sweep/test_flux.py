"""Flux by a double of its command: what is submitted, found, told and ended."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.command_context import Context
from harness.base.errors import RunError
from harness.schema.layout import Layout
from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep.execute import run_sweep
from harness.sweep.schedulers import Scheduler, choose_scheduler, flux, open_scheduler
from harness.sweep.site import JobRequest, Partition, Site
from harness.sweep.status import read_status
from harness.sweep.submission_settings import Submission
from tests.labs.doubles import install
from tests.labs.factories import make_job
from tests.labs.job_variables import FLUX as FLUX_JOB
from tests.labs.sentences import refuses, says
from tests.labs.sweep_lab import Lab

FLUX = """#!/bin/sh
echo "$@" >> {folder}/said
case "$1 $2" in
"resource info") echo '3 Nodes, 6 Cores, 0 GPUs' ;;
"batch "*) echo 'f2dXyzW' ;;
"job id") echo 1234 ;;
"jobs "*) cat <<'END'
1234|RUN|||n[1-2]|h-a
1235|SCHED||||h-b
1236|INACTIVE|TIMEOUT|142|n1|h-c
1237|INACTIVE|COMPLETED|0|n1|h-d
1238|INACTIVE|FAILED|3|n1|h-e
END
;;
esac
"""


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """Return the scheduler, whose command is a double in `tmp_path`."""
    (tmp_path / "flux").write_text(FLUX.replace("{folder}", str(tmp_path)))
    (tmp_path / "flux").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return open_scheduler("flux")


def test_a_job_is_submitted_found_and_told(scheduler: Scheduler, tmp_path: Path) -> None:
    assert scheduler.submit(make_job(tmp_path, "#!/bin/sh\n")) == ("1234",)
    assert scheduler.find(["h-a", "h-b", "h-c", "h-z"]) == {"h-a": "1234", "h-b": "1235"}
    states = scheduler.poll(["1234", "1235", "1236", "1237", "1238", "9"])
    phases = [states[job].phase for job in ("1234", "1235", "1236", "1237", "1238", "9")]
    assert phases == ["running", "queued", "ended", "ended", "ended", "unknown"]
    assert [states[job].exit_code for job in ("1237", "1238")] == [0, 3]
    assert [states[job].forced for job in ("1236", "1237", "1238")] == [True, False, False]
    says(scheduler.explain(states["1237"]), "no whole record")
    assert "TIMEOUT" in scheduler.explain(states["1236"])
    says(scheduler.explain(states["9"]), "longer knows the job")
    scheduler.cancel(["1234", "1235"])
    assert "1234 1235" in (tmp_path / "said").read_text()


def test_what_a_flux_instance_does_not_have_is_refused_before_it_is_submitted(scheduler: Scheduler) -> None:
    assert scheduler.refusal(Layout(nodes=3, ranks_per_node=2)) is None
    says(scheduler.refusal(Layout(nodes=4)), "instance", 4, "nodes", "Flux", 3)
    says(scheduler.refusal(Layout(nodes=1, ranks_per_node=3)), "of this Flux instance", 3, "cores")


def test_flux_deals_ranks_out_evenly_and_says_so() -> None:
    uneven = Layout(nodes=3, ranks_per_node=4, last_node=2)
    assert "evenly" in str(open_scheduler("flux").refusal(uneven))


def test_a_sites_partitions_are_taken_as_they_are() -> None:
    site = Site(partition=(Partition(name="batch", nodes=4),))
    findings = tuple(open_scheduler("flux", site=site).findings())
    assert all(finding.good for finding in findings)
    says(findings[0].text, "are as the file", "flux")
    says(open_scheduler("flux", site=site).refusal(Layout(nodes=5)), "needs", 5, "batch", 4)


@pytest.fixture
def instance(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a double on PATH that runs job scripts, and return its folder."""
    commands, folder = tmp_path / "bin", tmp_path / "flux"
    commands.mkdir()
    folder.mkdir()
    install("fake_flux.py", commands / "flux")
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_FLUX", str(folder))
    monkeypatch.setattr(flux.Scheduler, "poll_s", 0.1)
    # A path with blanks is no value of a directive.
    monkeypatch.setattr(Lab, "results", property(lambda self: tmp_path / "results"))
    return folder


def run(lab: Lab, **settings: object) -> None:
    submission = Submission(scheduler="flux", request=JobRequest(mode="turns", **settings))  # type: ignore[arg-type]
    run_sweep(
        replace(lab.sweep(), layouts=(Layout(nodes=1), Layout(nodes=3))), Context(results=lab.results), submission
    )


def test_all_launches_train_in_turns_in_one_job_and_the_same_again_does_nothing(lab: Lab, instance: Path) -> None:
    run(lab)
    (folder,) = sweep_folders(lab.results)
    assert read_status(folder).count("done") == 4
    assert len(lab.launched()) == 4
    run(lab)
    assert lab.launched() == []
    assert len(list(instance.glob("*.json"))) == 1
    # Launches of a block share nodes: on the first ones, beside the scheduler of the job's instance.
    nodes = {tuple(line.split()[:4]) for line in (instance / "bypassed.txt").read_text().splitlines()}
    assert nodes == {
        ("1", "encode", "--ranks=0", "--hosts=n1"),
        ("3", "encode", "--ranks=0,1,2", "--hosts=n1,n2,n3"),
    }
    assert len(list(SweepFolder(folder).rounds.iterdir())) == 2  # a block for each repeat


def test_in_a_job_of_flux_the_instance_of_that_job_has_the_jobs(
    lab: Lab, instance: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FLUX_JOB.items():
        monkeypatch.setenv(name, text)
    assert choose_scheduler("auto", Site())[0] == "flux"
    run(lab)
    (job,) = instance.glob("*.json")
    assert json.loads(job.read_text())["instance"] == FLUX_JOB["FLUX_URI"]


def test_launches_for_which_a_job_had_no_time_are_missing_and_the_next_command_makes_them(
    lab: Lab, instance: Path
) -> None:
    lab.behave(r3="hang")
    with refuses("time limit", error=RunError):
        run(lab, walltime="0:00:03")
    (folder,) = sweep_folders(lab.results)
    status = read_status(folder)
    assert status.count("failed") == 0
    assert status.count("missing") + status.count("done") == 4
    lab.behave()
    run(lab, walltime="0:05:00")
    assert read_status(folder).count("done") == 4
    assert len(list(instance.glob("*.json"))) == 2
