"""A training option is one field of `Workload`: its option, help, setting, record and report line follow from it."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.base.removal import make_place
from harness.schema.option import check_options, option
from harness.schema.record import decode, encode
from harness.schema.setting_words import conditions
from harness.schema.workload import Workload
from tests.labs.factories import make_workload
from tests.labs.sentences import refuses

ROOT = Path(__file__).parents[2]
LINE = '    clip_norm: float | None = option("Longest gradient.", None, above=0)\n'
BEFORE = "    def __post_init__(self)"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a harness that has one field more: one line in one file."""
    folder = tmp_path_factory.mktemp("added")
    shutil.copytree(ROOT / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("jobs", "reports/templates"):
        shutil.copytree(ROOT / name, folder / name)
    make_place(folder / "reports", "REPORTS", is_ours=True)
    file = folder / "harness/schema/workload.py"
    file.write_text(file.read_text().replace(BEFORE, f"{LINE}\n{BEFORE}", 1))
    return folder


def harness(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *words]
    environment = os.environ | {"PYTHONPATH": str(package)}
    return subprocess.run(command, capture_output=True, text=True, cwd=package, env=environment, check=False)


def test_help_and_the_settings_of_make_have_it(package: Path) -> None:
    for command in ("sweep", "train"):
        words = harness(package, command, "--help-all").stdout.split()
        assert words[words.index("--clip-norm") + 1] == "FLOAT"
    shown = harness(package, "make", "help").stdout
    assert " CLIP_NORM=" in shown


def test_it_is_checked_and_reaches_the_record(package: Path) -> None:
    wrong = harness(package, "make", "sweep", "DATASET=adult CLIP_NORM=-1")
    assert (wrong.returncode, "-1.0" in wrong.stderr) == (2, True)
    planned = harness(package, "make", "sweep", "DATASET=adult CLIP_NORM=2.5 NODES=1 DRY_RUN=1")
    assert planned.returncode == 0, planned.stderr
    (study,) = package.glob("results/*/sweep.json")
    assert json.loads(study.read_text())["sweep"]["workload"]["clip_norm"] == 2.5
    points = [json.loads(file.read_text()) for file in study.parent.rglob("*.json") if file != study]
    assert any(point.get("workload", {}).get("clip_norm") == 2.5 for point in points if isinstance(point, dict))


@dataclass(frozen=True, kw_only=True, slots=True)
class Longer(Workload):
    """A workload with one field more."""

    clip_norm: float | None = option("Longest gradient.", None, above=0)


def test_it_reaches_the_reports_conditions() -> None:
    plain = make_workload()
    given = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
    longer = Longer(**given, clip_norm=2.5)
    assert set(conditions(longer)) - set(conditions(plain)) == {("Clip norm", "2.5")}
    assert conditions(replace(longer, clip_norm=None)) == conditions(plain)
    assert decode(encode(longer), Longer, Path("x")) == longer


def test_conditions_tell_what_counts_and_nothing_else() -> None:
    told = dict(conditions(make_workload(schedule="cosine", decay=0.5, xla=True, seed=0, sync_bn=False)))
    assert (told["Schedule"], told["XLA"], told["Seed"]) == ("cosine", "yes", "0")
    assert not {"Decay", "Warmup epochs", "Weight decay", "Batch normalisation over all ranks"} & set(told)
    assert dict(conditions(make_workload(schedule="exponential", decay=0.5)))["Decay"] == "0.5"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_number_out_of_its_range_is_refused(value: float) -> None:
    with refuses("learning rate"):
        check_options(make_workload(learning_rate=value))
