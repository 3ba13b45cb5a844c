"""One module and one template are a scheduler, one file is a site: both made here, in a folder of their own."""

import sys
from pathlib import Path

import pytest

from harness.base.command_context import Context
from harness.sweep import schedulers
from harness.sweep.execute import run_sweep, write_scripts
from harness.sweep.site import find_site
from harness.sweep.status import read_status
from harness.sweep.submission_settings import Submission
from tests.labs.sentences import refuses, says
from tests.labs.sweep_lab import Lab

MODULE = '''
import subprocess
from pathlib import Path

from harness.sweep import launch_command, schedulers
from harness.sweep.scheduler_answers import State


class Scheduler(schedulers.Scheduler):
    """Runs a job at once, when it is submitted."""

    name = "atonce"
    template = str(Path(__file__).with_name("atonce.sh.j2"))
    directive = "#ONCE"
    unknown = ("qos",)
    poll_s = 0.05

    def refuse_line(self, line):
        return None if "--" in line else "has no option"

    def launcher(self, layout):
        return launch_command.mpirun(layout, self.site)

    def environment(self, layout):
        return launch_command.rank_environment(self.site, self.name)

    def output(self, folder, job):
        return folder / f"{job}.out"

    def submit(self, job):
        subprocess.run(["bash", job.script], check=False)
        return (job.name,)

    def find(self, names):
        return {}

    def poll(self, jobs):
        return {job: State(phase="ended", exit_code=0) for job in jobs}

    def cancel(self, jobs):
        pass

    def explain(self, state):
        return "it ran"
'''
TEMPLATE = """{% extends "batch.sh.j2" %}
{% block directives %}
#ONCE --account={{ request.account }}
{% endblock %}
"""


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Add a scheduler in a folder of its own, which is all that its author writes."""
    folder = tmp_path / "added"
    folder.mkdir()
    (folder / "atonce.py").write_text(MODULE)
    (folder / "atonce.sh.j2").write_text(TEMPLATE)
    monkeypatch.setattr(schedulers, "__path__", [*schedulers.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "harness.sweep.schedulers.atonce", raising=False)
    return folder


def test_a_scheduler_is_one_module_and_a_template(lab: Lab, added: Path) -> None:
    (added / "centre.toml").write_text('scheduler = "atonce"\n[request]\naccount = "physics"\n')
    site = find_site(str(added / "centre.toml"))
    name, why = schedulers.choose_scheduler("auto", site)
    assert name == "atonce"
    says(why, "scheduler", "atonce", "centre")
    assert [finding.good for finding in schedulers.check_site(site)] == [True]
    submission = Submission(scheduler=name, site=site, request=site.request)
    plan = write_scripts(lab.sweep(), Context(results=lab.results), submission)
    scripts = sorted((plan.wanted.folder / "jobs").glob("*.sh"))
    assert len(scripts) == 4
    assert "#ONCE --account=physics\n" in scripts[0].read_text()
    folder = run_sweep(lab.sweep(), Context(results=lab.results), submission)
    assert read_status(folder).count("done") == 4


def test_what_it_does_not_know_and_its_own_directives_are_refused(lab: Lab, added: Path) -> None:
    assert "atonce" in schedulers.known_schedulers()
    with refuses("--qos high", "--scheduler atonce"):
        schedulers.open_scheduler("atonce", request=Submission().request.__class__(qos="high"))
    (added / "atonce.sh.j2").write_text("#!/bin/bash\n#ONCE x\n")
    with refuses("of the script", "2"):
        write_scripts(lab.sweep(), Context(results=lab.results), Submission(scheduler="atonce"))


def test_a_scheduler_that_nobody_added_is_named_with_those_there_are() -> None:
    with refuses("did you mean", "atonce"):
        schedulers.choose_scheduler("atonce", find_site("example"))
