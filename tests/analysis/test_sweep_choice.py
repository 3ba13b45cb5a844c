"""One rule says which of several sweeps answers: settings as its preset's, most valid launches, then newest."""

from datetime import timedelta
from pathlib import Path

import pytest

from harness.analysis.sweep_choice import as_preset, choose_sweep
from harness.schema.presets import resolve
from harness.schema.sweep import Study
from tests.labs.factories import START, make_point, make_run, write_run, write_study
from tests.labs.sentences import says

PRESET = {"optimizer": "adam", "learning_rate": 1e-3, "schedule": "cosine", "epochs": 5}


def write(results: Path, name: str, launches: int, *, day: int = 0, invalid: int = 0, **changes: object) -> None:
    """Write a sweep of so many launches, the last ones of them `invalid`, on one rank."""
    write_study(results / name, ranks=(1,), **PRESET | changes)
    for repeat in range(launches):
        doubts = ("busy",) if repeat >= launches - invalid else ()
        started = START + timedelta(days=day, minutes=repeat)
        point = make_point(1, repeat, **PRESET | changes)
        write_run(results / name, make_run(point, started=started, invalid=doubts))


def taken(results: Path) -> str:
    found = choose_sweep(results, lambda study: study.sweep.workload.name == "mnist-dnn")
    return found.loaded.folder.name if found else "none"


def test_nothing_that_was_only_planned_or_is_invalid_answers(tmp_path: Path) -> None:
    write_study(tmp_path / "planned", **PRESET)
    write(tmp_path, "busy", 3, invalid=3)
    assert taken(tmp_path) == "none"
    write(tmp_path, "measured", 1)
    assert taken(tmp_path) == "measured"


def test_most_valid_launches_come_before_the_newest(tmp_path: Path) -> None:
    write(tmp_path, "first", 6)
    write(tmp_path, "busy", 9, day=1, invalid=4, epochs=4)
    write(tmp_path, "few", 2, day=2, epochs=3)
    assert taken(tmp_path) == "first"
    write(tmp_path, "again", 6, day=3, epochs=2)
    assert taken(tmp_path) == "again"


@pytest.mark.parametrize("launches", [2, 12])
def test_a_sweep_with_settings_of_its_own_changes_no_answer(tmp_path: Path, launches: int) -> None:
    """Two launches of `weights:epoch` changed the claim on mnist-dnn from 1.73 to 1.97 without a word."""
    write(tmp_path, "study", 6)
    write(tmp_path, "every epoch", launches, day=1, sync="weights:epoch")
    assert taken(tmp_path) == "study"


def test_it_is_told_which_was_taken_and_why(tmp_path: Path) -> None:
    def wanted(study: Study) -> bool:
        return True

    write(tmp_path, "study", 6)
    alone = choose_sweep(tmp_path, wanted)
    assert alone and alone.sentence("mnist-dnn").startswith("mnist-dnn: study, ")
    assert "only" in says(alone.sentence("mnist-dnn"), "valid launches, the", 6)
    write(tmp_path, "other", 1, sync="none")
    both = choose_sweep(tmp_path, wanted)
    assert both is not None
    says(both.sentence("x"), "has them, then most", "x: study", 6, 2, "preset")


def test_rows_epochs_and_seed_are_free() -> None:
    workload = resolve(dataset="higgs", model="dnn", samples=1000, epochs=2, seed=3)
    assert as_preset(workload)
    assert not as_preset(resolve(dataset="higgs", model="dnn", sync="weights:2"))
    assert as_preset(resolve(dataset="higgs", model="dnn", preset="paper-2016-03"))
