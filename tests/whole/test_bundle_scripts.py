"""The scripts of a bundle, run as a stranger does: from the unpacked archive, in a folder that has nothing else."""

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from harness.bundle.repetition import SAME
from harness.schema.record import read_run
from tests.labs.caches import own_cache
from tests.labs.whole_job import harness
from tests.mpi.launch import warm_python

pytestmark = [pytest.mark.mpi, pytest.mark.e2e]

ROOT = Path(__file__).parents[2]
LIMIT_S = 600


@pytest.fixture(scope="module")
def finished_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of a small sweep on 1 and 2 ranks, a launch of each, from the command line: to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    size = ("--dataset=adult", "--data-kind=synthetic", "--samples=2000", "--epochs=2", "--nodes=1,2", "--repeats=1")
    command = [warm_python(), "-m", "harness", "sweep", *size, "--scheduler=local", "--note=it's $HOME"]
    caches = {"HARNESS_CACHE_DIR": own_cache(folder / "cache"), "HARNESS_LOCK_DIR": str(folder)}
    made = subprocess.run(
        command, cwd=folder, env=os.environ | caches, capture_output=True, text=True, timeout=500, check=False
    )
    assert made.returncode in (0, 3), made.stdout + made.stderr  # 3: the machine was busy
    return folder / "results"


@pytest.fixture(scope="module")
def archive(finished_sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of a small study on 1 and 2 ranks, a launch of each."""
    folder = tmp_path_factory.mktemp("here")
    shutil.copytree(finished_sweep, folder / "results")
    bundled = harness(folder, "bundle")
    assert bundled.returncode == 0, bundled.stderr
    return folder / bundled.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def unpacked(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked archive, in an empty folder beside a copy of itself."""
    folder = tmp_path_factory.mktemp("there")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (folder / archive.name).write_bytes(archive.read_bytes())
    return folder / archive.name.removesuffix(".tar.gz")


def sh(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the bundle, with the harness as a command."""
    programs = folder.parent / "bin"
    programs.mkdir(exist_ok=True)
    program = programs / "harness"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{warm_python()}" -m harness "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    command = ["sh", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_the_smoke_script_checks_draws_and_repeats(unpacked: Path) -> None:
    ended = sh(unpacked, "smoke.sh", f"../{unpacked.name}.tar.gz")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = " ".join(ended.stdout.split())
    assert f"{unpacked.name}.tar.gz is whole." in said
    assert "tables and summaries have the bundle's numbers." in said
    assert "Reproduced: weights, training loss, test accuracy." in said
    forgotten = sh(unpacked, "smoke.sh")
    assert forgotten.returncode and "the archive of the bundle is missing" in forgotten.stderr


def test_everything_again_launches_all_of_it_beside_the_records_of_the_bundle(unpacked: Path) -> None:
    before = {path: path.read_bytes() for path in (unpacked / "results").rglob("run.json")}
    ended = sh(unpacked, "reproduce.sh")
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr  # 1: the machine was busy, no times are valid
    assert "2 launches, 0 done, 2 to run" in ended.stderr + ended.stdout
    again = {path.parent.name: path for path in (unpacked / "again/results").glob("*/n*/run.json")}
    launches = (unpacked / "results").glob("*/n*/run.json")
    recorded = {path.parent.name: before[path] for path in launches}
    assert again.keys() == recorded.keys()
    for name, content in recorded.items():
        first, second = json.loads(content), json.loads(again[name].read_text())
        assert first["weights"] == second["weights"]
    assert (unpacked / "again/reports/claims/index.html").is_file()
    assert {path: path.read_bytes() for path in before} == before


def test_two_ranks_are_repeated_bit_for_bit_and_a_damaged_record_is_found(finished_sweep: Path, tmp_path: Path) -> None:
    """One command line records, another repeats; then the record is made to tell of other weights."""
    shutil.copytree(finished_sweep, tmp_path / "results")
    (file,) = (path for path in (tmp_path / "results").glob("*/*/run.json") if len(read_run(path.parent).ranks) == 2)
    told = harness(tmp_path, "reproduce", str(file), "--json")
    document = json.loads(told.stdout)
    found = {line["quantity"]: line["verdict"] for line in document["lines"]}
    assert (found["weights"], found["training loss"], found["test accuracy"]) == (SAME, SAME, SAME), told.stderr
    assert told.returncode in (0, 1), "on a busy machine the time may be another"
    record = json.loads(file.read_text())
    record["weights"]["sha256"] = "0" * 64
    file.write_text(json.dumps(record))
    wrong = harness(tmp_path, "reproduce", file.parent.name, "--results", str(file.parents[1]))
    assert wrong.returncode == 1 and "Not reproduced" in wrong.stdout, wrong.stdout + wrong.stderr
