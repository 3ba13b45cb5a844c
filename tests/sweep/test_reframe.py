"""The ReFrame check of jobs/reframe, run by ReFrame where it is installed. tests/cluster runs it on Slurm."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from statistics import median

import pytest

from harness.schema.record import read_run
from tests.labs.reframe import ROOT, SMALL, performance, reframe


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.usefixtures("warm", "cache")
def test_reframe_holds_two_ranks_against_its_references(tmp_path: Path) -> None:
    said = reframe(tmp_path, "-S", f"options={SMALL}", "-S", "least_efficiency=0.01", "-S", "least_rows=1")
    found = performance(said)
    assert found.keys() == {"speedup", "efficiency", "rows"}, said
    assert found["efficiency"] == pytest.approx(found["speedup"] / 2) and found["rows"] > 1
    assert "synthetic" in said  # no number without its warnings

    (answer,) = tmp_path.glob("output/**/rfm_job.out")  # once more, with the same answer
    shutil.copy(answer, tmp_path / "answer.json")
    again = tmp_path / "again"
    again.write_text(f"#!/bin/sh\ncat {tmp_path}/answer.json\n")
    again.chmod(0o755)
    said = reframe(tmp_path, "-S", f"executable={again}", "-S", "least_efficiency=0.01", "-S", "least_rows=1e12")
    assert "rows=" in said.partition("reference(s): ")[2]
    assert performance(said) == found

    busy = "2 ranks, launch 1 of 1: 9 ms an epoch, times not valid: other processes"
    again.write_text(f"#!/bin/sh\necho {{}}; echo '[2/2] {busy}' >&2\n")
    with pytest.raises(pytest.skip.Exception):
        reframe(tmp_path, "-S", f"executable={again}")


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (0, "[  PASSED  ]"),
        (1, "sanity error: THE ANSWER"),
        (2, "sanity error: exit code 2: the reason"),
        (3, "Regression: THE ANSWER"),
    ],
)
def test_reframe_fails_on_a_regression_since_a_baseline(tmp_path: Path, code: int, outcome: str) -> None:
    """A program that answers in the place of the harness, whose check would take minutes."""
    program = tmp_path / "answers"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/words\necho \'{{"answer": "THE ANSWER"}}\'\n'
        f'echo "the reason" >&2\nexit {code}\n'
    )
    program.chmod(0o755)
    words = ["-S", f"Regression.folder={tmp_path}/results", "-S", f"executable={program}"]
    said = reframe(tmp_path, *words, check="Regression")
    assert outcome in said and ("[  PASSED  ]" in said) == (code in (0, 3)), said
    assert f"--results={tmp_path}/results" in (tmp_path / "words").read_text()


EESSI = """from eessi.testsuite.constants import FEATURES, SCALES

site_configuration = {
    "systems": [{
        "name": "tests", "hostnames": [".*"], "modules_system": "tmod4",
        "partitions": [{
            "name": "one", "scheduler": "local", "launcher": "local", "environs": ["default"],
            "features": [FEATURES.CPU, *SCALES], "extras": {"mem_per_node": 30000},
            "processor": {"num_cpus": 2, "num_cpus_per_core": 1, "num_sockets": 1, "num_cpus_per_socket": 2},
        }],
    }],
    "environments": [{"name": "default"}],
}
"""
MODULES = "/usr/share/modules/init/bash"


def test_eessis_suite_trains_with_every_tensorflow_module(tmp_path: Path) -> None:
    """ReFrame, the suite and the modules are real; a record that is there stands in for the training."""
    program = shutil.which("reframe")
    if program is None or not Path(MODULES).exists():
        pytest.skip("no ReFrame here, or no environment-modules")
    (tmp_path / "modules/TensorFlow").mkdir(parents=True)
    (tmp_path / "modules/TensorFlow/2.21").write_text("#%Module1.0\n")
    (tmp_path / "config.py").write_text(EESSI)
    (launch,) = (ROOT / "tests/data/mnist-dnn-6x2").glob("n1x1x1-r0-*")
    harness = tmp_path / "harness"
    harness.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/words\ncp -r {launch} record\n')
    harness.chmod(0o755)
    command = [program, "-C", f"{tmp_path}/config.py", "-c", str(ROOT / "jobs/reframe/eessi"), "-r", "--nocolor"]
    command += ["--prefix", str(tmp_path), "--tag", "1_core", "-S", f"executable={harness}"]
    made = subprocess.run(
        ["bash", "-c", f'. {MODULES}; exec "$@"', "bash", *command],
        cwd=tmp_path,
        env=os.environ | {"MODULEPATH": f"{tmp_path}/modules"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = made.stdout + made.stderr
    if "No module named 'eessi'" in said or "does not support this ReFrame version" in said:
        pytest.skip("no EESSI test suite of this ReFrame's version (pip install eessi-testsuite)")
    assert made.returncode == 0, said
    assert re.search(r"\b1/1\b", said) and "TensorFlow/2.21" in said
    record = read_run(launch)
    rows = record.steps_per_epoch * record.global_batch
    assert performance(said)["rows"] == pytest.approx(rows / median(max(one.seconds) for one in record.epochs))
    words = ["train", "--dataset=mnist", "--record=record", "--threads=1", "--gpus-per-rank=0"]
    assert (tmp_path / "words").read_text().split() == words
