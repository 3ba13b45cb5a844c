"""Unmodified scripts on 1, 2 and 3 ranks: the same losses, one model, files and output of one rank."""

import functools
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.mpi.launch import PROGRAMS, run_ranks, warm_python

pytestmark = pytest.mark.mpi

SCRIPTS = Path(__file__).parents[1] / "scripts"
# Mixed precision comes last: its policy stays for the rest of the process.
NAMES = ("fit_arrays", "fit_tfdata", "custom_step", "tape_loop", "eager_loop", "session_lenet", "mixed_precision")
ON_THREE = NAMES[:4]  # Keras and a loop, of which some ranks have no rows in a step
TOLERANCE = dict.fromkeys(NAMES, 1e-5) | {
    "session_lenet": 1e-4,  # max pooling: a near tie falls the other way
    "mixed_precision": 1e-4,  # half the rows summed in half precision round differently
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory, session_environment):
    session_environment.setenv("HARNESS_TEST_SCRIPTS", str(tmp_path_factory.mktemp("scripts")))


@functools.cache
def outcome(ranks: int) -> dict[str, dict[str, object]]:
    """Return what every script printed, by script and key, run alone or on `ranks` ranks with --batch global."""
    import os

    place = Path(os.environ["HARNESS_TEST_SCRIPTS"]) / str(ranks)
    place.mkdir()
    names = ON_THREE if ranks == 3 else NAMES
    arguments = [PROGRAMS / "scripts_together.py", *(SCRIPTS / f"{name}.py" for name in names)]
    if ranks == 1:
        finished = subprocess.run(
            [warm_python(), *map(str, arguments)], cwd=place, capture_output=True, text=True, timeout=240, check=False
        )
    else:
        finished = run_ranks(
            ranks, "-m", "harness.transparent", "--batch", "global", *arguments, timeout=280, cwd=place
        )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found: dict[str, dict[str, object]] = {}
    for line in finished.stdout.splitlines():
        key, _, rest = line.partition(" ")
        if key == "SCRIPT":
            found[rest] = {}
        elif key.isupper() and key.isalpha():
            found[list(found)[-1]][key] = json.loads(rest)
    found["all"] = {"stdout": finished.stdout, "folder": place}
    return found


@pytest.mark.parametrize(("name", "ranks"), [*((name, 2) for name in NAMES), *((name, 3) for name in ON_THREE)])
def test_losses_are_those_of_one_process(name, ranks):
    alone, divided = outcome(1)[name], outcome(ranks)[name]
    assert len(alone["LOSSES"]) >= 50
    assert divided["LOSSES"][:50] == pytest.approx(alone["LOSSES"][:50], rel=TOLERANCE[name])
    assert sum(alone["LOSSES"][-5:]) < sum(alone["LOSSES"][:5]), "the loss does not fall"


@pytest.mark.parametrize("ranks", [2, 3])
def test_metrics_validation_and_callbacks_are_those_of_one_process(ranks):
    """Partial batches, a validation batch with fewer rows than ranks, early stopping, a best checkpoint."""
    for name, keys in (
        ("fit_arrays", ("HISTORY", "EVALUATE")),
        ("fit_tfdata", ("HISTORY", "EVALUATE")),
        ("custom_step", ("MOVING",)),
        ("tape_loop", ("EPOCHS", "TOTAL")),
    ):
        for key in keys:
            assert flat(outcome(ranks)[name][key]) == pytest.approx(flat(outcome(1)[name][key]), rel=1e-4), (name, key)


def test_one_rank_speaks_and_writes_and_the_replicas_are_shown_to_be_identical():
    found = outcome(2)
    lines = found["all"]["stdout"].splitlines()
    assert len([line for line in lines if line.startswith("SCRIPT")]) == len(NAMES)
    assert re.fullmatch(r"replicas identical: yes \(sha256 [0-9a-f]{16}\)", lines[-1])
    place = found["all"]["folder"]
    assert len((place / "harness-logs" / "rank-1.log").read_text().splitlines()) >= len(NAMES)
    rows = (place / "fit_tfdata" / "out-tfdata" / "log.csv").read_text().splitlines()
    assert len(rows) == 1 + len(found["fit_tfdata"]["HISTORY"]["loss"])
    assert (place / "tape_loop" / "out-tape.weights.h5").is_file()


def test_a_batch_per_rank_makes_fewer_steps_and_weights_can_be_averaged_instead(tmp_path):
    """909 training rows in batches of 48 per rank: 10 steps of 96 rows instead of 19."""
    scripts = [SCRIPTS / "fit_arrays.py", SCRIPTS / "tape_loop.py"]
    words = ("-m", "harness.transparent", "--sync", "weights:4", "--unjudged", PROGRAMS / "scripts_together.py")
    finished = run_ranks(2, *words, *scripts, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr[-3000:]
    printed = [json.loads(line[7:]) for line in finished.stdout.splitlines() if line.startswith("LOSSES ")]
    assert len(printed[0]) == 3 * 10
    # 18 batches of 48: the first of the first epoch comes alone, the other 17 in pairs.
    assert len(printed[1]) == 10 + 9 + 9
    assert all(losses[-1] < losses[0] for losses in printed)
    assert "sha256" in finished.stdout


def flat(value: object) -> list[float]:
    """Return all numbers in `value`."""
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in flat(value[key])]
    return [number for part in value for number in flat(part)] if isinstance(value, list) else [float(value)]
