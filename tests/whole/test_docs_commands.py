"""Every command of README and of the blocks in docs runs in the smallest form there is; the longest show their help."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.__main__ import run_command_line
from harness.cli.command_make import command_line, read_overrides
from tests.labs.caches import own_cache
from tests.labs.doc_pages import EVERYTHING, FENCE, PAGES, ROOT, examples, mentions, planned, words
from tests.labs.whole_job import UNSAVED
from tests.mpi.launch import run_ranks

RECORDS = ROOT / "tests/data/mnist-dnn-6x2"
SCRIPT = ROOT / "tests/scripts/fit_arrays.py"
# Too long for a test, or in need of a network or a program: the help of the command. By how the command begins.
LONG = {
    "harness probe": "two minutes; tests/probe/test_probe_runner.py runs a small one",
    "harness COMMAND": "stands for any",
    "make doctor": "asks MPI and TensorFlow, 15 s; tests/doctor/test_all_checks.py runs it",
    "harness doctor": "as make doctor",
    "make data DATASET=higgs ACTION=fetch": "downloads",
    "make probe": "two minutes; tests/probe/test_probe_runner.py runs a small one",
    "make bench": "15 minutes; tests/bench/test_bench_runner.py runs small ones",
    "make paper": "minutes to hours; tests/claims/test_paper_experiments.py runs a small one",
    "make check": "measures a study again; tests/cli/test_command_check.py measures a small one",
    "mpirun -n 4": "needs four GPUs",
    "harness run -n 4 --gpus-per-rank 1": "needs four GPUs; tests/sweep/test_gpus.py has a double of the driver",
    "harness reproduce": "launches again what was recorded",
    "harness bundle": "draws every figure for print; tests/bundle/test_verification.py writes one",
    "harness bundle redraw": "needs a bundle; tests/bundle/test_verification.py draws one again",
    "harness policies": "needs sweeps of two policies; tests/report/test_policies_answer.py makes them",
    **dict.fromkeys(
        ("harness compare old.py", "harness compare here", "harness compare commit:", "harness compare sync="),
        "trains variants in turns; tests/regression/test_variant_turns.py trains small ones",
    ),
    "make sweep DATASET=rings": "needs the files of its page; tests/whole/test_additions.py makes them",
    "harness run -n 2 tf_cnn_benchmarks.py": "needs that program; tests/horovod/test_tf_cnn_benchmarks.py runs it",
    "make sweep SCRIPT=tf_cnn_benchmarks.py": "needs that program",
    "make sweep DATASET=mnist TUNED=1": "needs a probe of this machine",
}
OTHER_PROGRAMS = {
    "make test": "pytest",
    "make gpu-check": "needs a GPU",
    "make soak": "disturbs launches for minutes; the tests of losses, kills, hosts and full disks do each of it",
    "make docs": "Sphinx",
    "make help": "awk",
    "python -m tests": "kills sweeps",
}
# What makes the rest small, or gives it what stands for a user's own.
ADDED = {
    "make sweep": "DRY_RUN=1",
    "make sweep DATASET=higgs NODES": "SCHEDULER=slurm",
    "make sweep DATASET=imagenet MODEL=resnet50 GPUS": "SCHEDULER=slurm RANKS_PER_NODE=4",
    "make sweep SCRIPT=train.py GPUS": "SCHEDULER=slurm RANKS_PER_NODE=4",
    "make sweep PRESET=jupiter GPUS": "SCHEDULER=slurm RANKS_PER_NODE=4",
}
INSTEAD = {
    "harness run -n 64": "harness run -n 2",
    "run --here -n 4": "run --here -n 2",
    "--dataset higgs --nodes 1..8": "--dataset higgs --nodes 1..8 --scheduler slurm --dry-run",
    "report SWEEP --format": f"report {RECORDS.name} --format",
    "report SWEEP --network": f"report {RECORDS.name} --network",
    "--dataset mnist --nodes 1,2": "--dataset mnist --nodes 1,2 --dry-run",
    "harness sweep --dataset mnist --nodes 1..2": "harness sweep --dataset mnist --nodes 1..2 --dry-run",
    "study init study.toml": "study init written.toml",  # the pages' study is there
    "harness sweep study.toml": "harness sweep study.toml --dry-run",
    "trace LAUNCH": f"trace {RECORDS.name}",
    "SWEEP --base 16": f"{RECORDS.name} --base 1",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that is current: it has records, and the files that the pages name."""
    shutil.copytree(RECORDS, tmp_path / "results" / RECORDS.name)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.csv").write_text("size,id,name,label,income\n1,1,a,0,<=50K\n2,2,b,1,>50K\n3,3,c,0,<=50K\n")
    (tmp_path / "image.sif").touch()
    (study,) = re.findall(r"^```toml\n(.*?)^```", PAGES["study.md"], re.MULTILINE | re.DOTALL)
    (tmp_path / "study.toml").write_text(study)
    for name in ("train.py", "old.py", "new.py"):
        shutil.copy(SCRIPT, tmp_path / name)
    (model,) = re.findall(r"^```python\n(.*?)^```", PAGES["own-data.md"], re.MULTILINE | re.DOTALL)
    (tmp_path / "mynetwork.py").write_text(model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HARNESS_CACHE_DIR", own_cache(tmp_path / "cache"))
    monkeypatch.delenv("HARNESS_DATA_DIR", raising=False)
    monkeypatch.setattr("harness.report.svg.render", lambda *_: UNSAVED)
    return tmp_path


def plain(command: str) -> str:
    """Return the command as the tables name it."""
    return command.removeprefix(".venv/bin/")


COMMANDS = list(dict.fromkeys(map(plain, (*examples(EVERYTHING), *mentions(PAGES["README.md"])))))


def begins(command: str, table: dict[str, str]) -> list[str]:
    """Return the entries of `table` for a command, the longest beginning last."""
    return [table[start] for start in sorted(table, key=len) if command.startswith(start)]


def arguments(command: str) -> list[str]:
    """Return the words behind `harness` that a command of make or of the harness itself becomes."""
    if not command.startswith("make "):
        return words(command)[4 if command.startswith("mpirun") else 1 :]
    settings = " ".join(begins(command, ADDED))
    for line in planned(shlex.split(f"{command} {settings}")[1:]):
        if line[:2] == [".venv/bin/harness", "make"]:
            return command_line(line[2], read_overrides(line[3]))
    raise AssertionError(f"{command} is no command of the harness")


def execute(command: str) -> tuple[str, int]:
    """Run a command in its smallest form; return how, and its exit code."""
    if begins(command, OTHER_PROGRAMS):
        return "resolved", 0  # tests/whole/test_docs.py holds that it is there
    if begins(command, LONG):
        return "help", run_command_line([arguments(command)[0], "--help"])
    if command.startswith("python -m harness."):
        return "run", subprocess.run([sys.executable, *words(command)[1:]], check=False, timeout=600).returncode
    if command == "harness run":
        return "help", run_command_line(["run", "--help"])
    for there, smaller in INSTEAD.items():
        command = command.replace(there, smaller)
    if command.startswith("harness run -n 2"):
        return "run", run_ranks(2, "-m", "harness.transparent", *words(command)[4:]).returncode
    found = arguments(command)
    return "dry" if "--dry-run" in found else "run", run_command_line(found)


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.usefixtures("warm")
def test_every_command_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forms: dict[str, int] = {}
    wrong = []
    for command in COMMANDS:
        form, code = execute(command)
        forms[form] = forms.get(form, 0) + 1
        said = capsys.readouterr()
        if code:
            wrong.append(f"{command}: exit code {code}: {(said.err or said.out)[-300:]}")
    assert not wrong, "\n".join(wrong)
    with capsys.disabled():
        print(f"\n{len(COMMANDS)} commands of README and docs: {forms}")


@pytest.mark.parametrize("table", [LONG, OTHER_PROGRAMS, ADDED])
def test_every_exception_is_of_a_command_that_is_there(table: dict[str, str]) -> None:
    for start in table:
        assert any(command.startswith(start) for command in COMMANDS), start


@pytest.mark.slow
def test_the_documentation_renders_without_a_warning(tmp_path: Path) -> None:
    """Sphinx, which also holds that every reference leads somewhere."""
    words = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", ROOT / "docs", tmp_path]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "From zero to a speedup" in (tmp_path / "index.html").read_text()


def test_the_python_of_the_pages_is_python() -> None:
    assert FENCE.search(PAGES["own-data.md"])
    for block in re.findall(r"^```python\n(.*?)^```", EVERYTHING, re.MULTILINE | re.DOTALL):
        compile(block, "a block of the documentation", "exec")
