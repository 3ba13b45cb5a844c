"""A script that writes in fifteen ways: on two ranks it reads back what it reads alone, and leaves the same files."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.transparent.private_files.file_mechanism import namespace_refusal
from tests.mpi.launch import run_ranks, warm_python

pytestmark = pytest.mark.mpi  # the files of a launch are the question

SCRIPT = Path(__file__).parents[1] / "scripts" / "fifteen_ways.py"
SAME_BYTES = ("log.csv", "out/plain.txt", "out/copied.txt", "out/copy.txt", "out/mapped.bin", "out/rows.tfrecord")


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "harness-logs" not in path.parts}


def test_ranks_read_back_what_one_process_does_and_the_real_files_are_its(tmp_path):
    if refusal := namespace_refusal():
        pytest.skip(f"no file tree for each rank here: {refusal}")
    alone, divided = tmp_path / "alone", tmp_path / "divided"
    alone.mkdir()
    first = subprocess.run([warm_python(), SCRIPT], cwd=alone, capture_output=True, text=True, timeout=240, check=False)
    assert first.returncode == 0, first.stderr[-3000:]
    divided.mkdir()
    (divided / "out").mkdir()
    (divided / "out" / "of-an-earlier-launch").touch()
    finished = run_ranks(
        2, "-m", "harness.transparent", "--batch=global", SCRIPT, timeout=240, cwd=divided, python=sys.executable
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (expected,) = [line for line in first.stdout.splitlines() if line.startswith("READ")]
    for output in (finished.stdout, (divided / "harness-logs" / "rank-1.log").read_text()):
        assert expected in output
    shutil.rmtree(divided / "harness-logs")
    assert files(divided) == files(alone)
    for name in SAME_BYTES:
        assert (divided / name).read_bytes() == (alone / name).read_bytes()
