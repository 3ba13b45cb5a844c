"""What an addition takes; `python -m tests.whole.test_additions` prints it."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base.removal import make_place
from tests.labs.additions import TABLE, Addition
from tests.labs.caches import own_cache

ROOT = Path(__file__).parents[2]


PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """Return the file called `name` as docs/extending.md gives it: the first block of code behind its name."""
    found = re.search(rf"`{re.escape(name)}`.*?^```(?:python|toml)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a harness that has one data set and one optimizer more."""
    folder = tmp_path_factory.mktemp("added")
    shutil.copytree(ROOT / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "jobs", folder / "jobs")
    shutil.copytree(ROOT / "reports/templates", folder / "reports/templates")
    make_place(folder / "reports", "REPORTS", is_ours=True)
    (folder / "harness/datasets/known/rings.py").write_text(block("rings.py"))
    for name in ("tower.py", "halfway.py", "centre.toml"):
        (folder / name).write_text(block(name))
    workload = folder / "harness/schema/workload.py"
    line = '    "rmsprop": "keras.optimizers:RMSprop",\n}'
    before, _, behind = workload.read_text().partition("OPTIMIZERS = {")
    workload.write_text(before + "OPTIMIZERS = {" + behind.replace("}", line, 1))
    return folder


def harness(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command of the harness in `package`."""
    environment = os.environ | {"PYTHONPATH": str(package), "HARNESS_CACHE_DIR": own_cache(package / "cache")}
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_data_set_is_one_module(package: Path) -> None:
    """It is listed, its name is proposed, and a network trains on it."""
    assert "rings" in harness(package, "data", "list").stdout
    assert "'rings'" in harness(package, "sweep", "--dataset", "ring").stderr
    finished = harness(package, "train", "--dataset", "rings", "--data-kind", "synthetic", "--epochs", "2")
    assert finished.returncode == 0, finished.stderr
    assert "2/2" in finished.stdout


@pytest.mark.slow
def test_the_documentation_word_for_word_adds_a_data_set_a_network_a_policy_and_a_site(package: Path) -> None:
    (command,) = re.findall(r"^make sweep (.*DRY_RUN=1)$", PAGE, re.MULTILINE)
    planned = harness(package, "make", "sweep", command)
    assert planned.returncode == 0, planned.stderr
    (study,) = package.glob("results/rings-tower*/sweep.json")
    scripts = sorted((study.parent / "jobs").glob("*.sh"))
    assert len(scripts) == 1 and "--account=physics" in scripts[0].read_text()
    assert "module load openmpi/5" in scripts[0].read_text()
    words = ("--dataset", "rings", "--data-kind", "synthetic", "--epochs", "2")
    trained = harness(package, "train", *words, "--model", "tower:tower", "--sync", "halfway:HalfWay")
    assert trained.returncode == 0, trained.stderr
    assert "2/2" in trained.stdout


@pytest.mark.slow
def test_an_optimizer_is_one_line(package: Path) -> None:
    """Its name is proposed, and a network trains with it."""
    assert "'rmsprop'" in harness(package, "sweep", "--dataset", "mnist", "--optimizer", "rmsprp").stderr
    words = ("--dataset", "adult", "--data-kind", "synthetic", "--samples", "640", "--epochs", "2")
    finished = harness(package, "train", *words, "--optimizer", "rmsprop")
    assert finished.returncode == 0, finished.stderr
    assert "2/2" in finished.stdout


@pytest.mark.parametrize("addition", TABLE, ids=lambda addition: addition.what)
def test_every_addition_is_shown_by_a_test(addition: Addition) -> None:
    module, _, name = addition.test.partition(":")
    assert callable(getattr(importlib.import_module(f"tests.{module.replace('/', '.')}"), name))


if __name__ == "__main__":
    for addition in TABLE:
        print(f"{addition.what:16} {addition.files:58} tests/{addition.test.replace(':', '.py::')}")
