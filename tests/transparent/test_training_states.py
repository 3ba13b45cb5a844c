"""The states of a training: each is reached, the last ones are left by nothing."""

import re
from pathlib import Path

import pytest

from harness.transparent.training_states import TRANSITIONS, TrainingEvent, TrainingState, advance


def test_every_state_is_reached_and_the_last_ones_are_left_by_nothing():
    reached = {TrainingState.UNKNOWN}
    for _ in TrainingState:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(TrainingState)
    last = set(TrainingState) - {before for before, _ in TRANSITIONS}
    assert last == {TrainingState.DIVIDED, TrainingState.WHOLE, TrainingState.REFUSED}
    assert {event for _, event in TRANSITIONS} == set(TrainingEvent)


def test_nothing_is_divided_without_a_probe_where_gradients_are_shared():
    for (before, event), after in TRANSITIONS.items():
        if after is TrainingState.DIVIDED and event is not TrainingEvent.NOT_SHARED:
            assert before is TrainingState.PROBED


def test_the_documentation_shows_the_table():
    page = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
    section = page.partition("## How a script's training is divided")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| ([a-z ]+): (.*) \| (\w+) \|$", section, re.MULTILINE)
    documented = {
        (TrainingState(before), TrainingEvent[event.replace(" ", "_").upper()]): TrainingState(after)
        for before, event, _, after in rows
    }
    assert documented == TRANSITIONS
    assert all(TrainingEvent[event.replace(" ", "_").upper()].value == meaning for _, event, meaning, _ in rows)


def test_what_cannot_happen_is_a_mistake():
    with pytest.raises(KeyError):
        advance(TrainingState.DIVIDED, TrainingEvent.MIXED)
