"""A baseline keeps sessions of one study, machine and stack; what is no baseline is not replaced."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.regression.baselines import find_baseline, join_by_study, read_baseline, read_baselines, save_baseline
from harness.regression.measurement import Measurement
from tests.labs.histories import make_measurement, make_summary
from tests.labs.sentences import refuses

HALF_AN_HOUR = timedelta(minutes=30)


def session(day: int, *, blocks: int = 3, **changes: str) -> Measurement:
    return make_measurement(
        [
            make_summary(ranks, block, 1.0 / ranks, minutes=1440 * day + block)
            for block in range(blocks)
            for ranks in (1, 2)
        ],
        **changes,
    )


def test_a_file_that_is_no_baseline_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "main.json").write_text('{"mine": 1}')
    with refuses("main.json", "is no baseline"):
        save_baseline(session(0), "main", tmp_path, replace_it=True)
    assert (tmp_path / "main.json").read_text() == '{"mine": 1}'


def test_saving_again_adds_a_session_and_replacing_starts_anew(tmp_path: Path) -> None:
    assert save_baseline(session(0), "main", tmp_path).sessions == 1
    assert save_baseline(session(1), "main", tmp_path).sessions == 2
    saved = find_baseline("main", tmp_path)
    assert saved.sessions == 2 and len(saved.measurement.launches) == 12
    assert len({(launch.layout, launch.repeat) for launch in saved.measurement.launches}) == 12
    assert save_baseline(session(2), "main", tmp_path, replace_it=True).sessions == 1


def test_launches_within_an_hour_are_no_session_of_their_own(tmp_path: Path) -> None:
    save_baseline(session(0), "main", tmp_path)
    later = session(0)
    moved = [
        replace(launch, started=launch.started + HALF_AN_HOUR, ended=launch.ended + HALF_AN_HOUR)
        for launch in later.launches
    ]
    assert save_baseline(replace(later, launches=tuple(moved)), "main", tmp_path).sessions == 1


def test_the_same_launches_are_not_added_twice(tmp_path: Path) -> None:
    save_baseline(session(0), "main", tmp_path)
    with refuses("main", "already"):
        save_baseline(session(0), "main", tmp_path)


def test_other_versions_and_machines_are_not_added(tmp_path: Path) -> None:
    save_baseline(session(0), "main", tmp_path)
    next_day = session(1)
    updated = replace(next_day, software=replace(next_day.software, tensorflow="2.99"))
    with refuses("2.99", "--replace"):
        save_baseline(updated, "main", tmp_path)
    other = replace(next_day, machine=replace(next_day.machine, fingerprint="f" * 12))
    with refuses("another machine", "--other-machine"):
        save_baseline(other, "main", tmp_path)
    assert save_baseline(other, "main", tmp_path, other_machine=True).sessions == 2


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_baseline_needs_three_blocks(tmp_path: Path, blocks: int) -> None:
    with refuses(3, "--repeats 3"):
        save_baseline(session(0, blocks=blocks), "main", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_baseline_of_an_older_schema_says_so_and_can_be_replaced(tmp_path: Path) -> None:
    save_baseline(session(0), "main", tmp_path)
    path = tmp_path / "main.json"
    path.write_text(json.dumps({"schema": 2, "name": "main", "saved": "2026-01-05T12:00:00Z", "measurement": {}}))
    with refuses("schema 2", "--replace"):
        read_baselines(tmp_path)
    save_baseline(session(1), "main", tmp_path, replace_it=True)
    assert [baseline.name for baseline in read_baselines(tmp_path)] == ["main"]


def test_sweeps_of_one_study_and_code_are_joined_without_what_is_judged() -> None:
    judged = session(2)
    joined = join_by_study([session(0), session(1), judged, session(3, commit="b" * 40)], excluded=judged)
    assert [len(measurement.launches) for measurement in joined] in ([18], [12, 6])


def test_sessions_that_are_saved_at_once_are_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda day: save_baseline(session(day), "main", tmp_path), range(6)))
    assert find_baseline("main", tmp_path).sessions == 6


def first_launch(document: dict[str, Any]) -> dict[str, Any]:
    launch: dict[str, Any] = document["measurements"][0]["launches"][0]
    return launch


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda document: document.update(measurements=[]), "launches"),
        (lambda document: document["measurements"][0].update(launches=[]), "launches"),
        (lambda document: document["measurements"].append(document["measurements"][0]), "twice"),
        (
            lambda document: document["measurements"].append(document["measurements"][0] | {"scaling": "weak"}),
            "studies",
        ),
        (lambda document: document["measurements"][0].update(scaling="none"), "none"),
        (lambda document: document.update(saved="2026-01-05T12:00:00"), "saved"),
        (lambda document: first_launch(document).update(seconds=0), "seconds"),
        (lambda document: first_launch(document).update(seconds=1e308), "seconds"),
        (lambda document: first_launch(document).update(steps=0), "steps"),
        (lambda document: first_launch(document).update(rows=0), "rows"),
        (lambda document: first_launch(document).update(started="2026-01-05T12:00:00"), "started"),
    ],
)
def test_a_baseline_that_was_edited_into_nonsense_is_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], named: str
) -> None:
    save_baseline(session(0), "main", tmp_path)
    path = tmp_path / "main.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    with refuses("main.json", named):
        read_baselines(tmp_path)


def test_a_copy_has_the_name_of_its_file(tmp_path: Path) -> None:
    save_baseline(session(0), "main", tmp_path)
    (tmp_path / "copy.json").write_bytes((tmp_path / "main.json").read_bytes())
    assert read_baseline(tmp_path / "copy.json").measurement.label == "copy"
