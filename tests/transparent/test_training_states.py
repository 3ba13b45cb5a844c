"""The states of a training: each is reached, the last ones are left by nothing."""

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


def test_what_cannot_happen_is_a_mistake():
    with pytest.raises(KeyError):
        advance(TrainingState.DIVIDED, TrainingEvent.MIXED)
