"""What is replaced in Keras holds in another release than the installed one, as docs/architecture.md says."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launch import PROGRAMS, ROOT, run_ranks

RELEASE = "3.14.0"  # the last one before that of requirements.lock
SCRIPTS = [
    PROGRAMS / "scripts_together.py",
    *(ROOT / "tests/scripts" / f"{name}.py" for name in ("fit_arrays", "tape_loop")),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment in which Python imports Keras `RELEASE`."""
    assert importlib.metadata.version("keras") != RELEASE
    folder = tmp_path_factory.mktemp("keras")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=0"]
    words = [*pip, "--timeout=15", "--no-deps", "--target", str(folder), f"keras=={RELEASE}"]
    finished = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    if finished.returncode:
        pytest.skip(f"Keras {RELEASE} could not be downloaded")
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    program = "import importlib.util; print(importlib.util.find_spec('keras').origin)"
    origin = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    assert Path(origin.stdout.strip()).is_relative_to(folder)
    return environment


def losses(output: str) -> list[list[float]]:
    """Return the losses of every script that has printed `output`."""
    return [json.loads(line.removeprefix("LOSSES ")) for line in output.splitlines() if line.startswith("LOSSES ")]


@pytest.mark.slow  # TensorFlow starts anew
def test_every_name_that_is_replaced_or_read_is_there(environment: dict[str, str]) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    finished = subprocess.run(
        [*words, "tests/transparent/test_patches.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | environment,
    )
    assert finished.returncode == 0, finished.stdout[-3000:]


@pytest.mark.mpi  # what is replaced acts on ranks alone
@pytest.mark.slow
def test_fit_and_a_loop_on_two_ranks_have_the_losses_of_one_process(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "ranks").mkdir()
    alone = subprocess.run(
        [sys.executable, *map(str, SCRIPTS)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path / "alone",
        env=os.environ | environment,
    )
    words = ("-m", "harness.transparent", "--batch", "global", *SCRIPTS)
    ranks = run_ranks(2, *words, cwd=tmp_path / "ranks", python=sys.executable, **environment)
    assert ranks.returncode == 0, ranks.stderr[-3000:]
    expected = losses(alone.stdout)
    assert len(expected) == 2
    for own, of_one in zip(losses(ranks.stdout), expected, strict=True):
        assert own == pytest.approx(of_one, rel=2e-4)
