"""Executions of fused steps: how long they are, and when the ranks agree on it."""

import keras

from harness.transparent.fused_pace import AgreedSteps, StepPace, steps_to_save


def test_an_execution_takes_between_20_and_100_ms():
    pace = StepPace()
    for step_s, steps in ((0.0001, 800), (0.001, 80), (0.04, 2), (0.045, 2), (0.07, 1), (3.0, 1)):
        pace.timed(10, 10 * step_s)
        assert pace.steps == steps


def test_ranks_agree_after_more_and_more_executions():
    """Their clocks tell most in the beginning."""
    asked = []
    steps = AgreedSteps(agree=lambda value: asked.append(value) or (7, None))
    pace = StepPace(step_s=0.01)
    assert [steps.next_count(pace, (), grain=2, begins=False) for _ in range(64)] == [7] * 64
    assert asked == [(8, None)] * 8  # before executions 1, 2, 4, 8, 16, 32, 48, 64


def test_executions_end_where_rank_0_saves_the_model_within_an_epoch():
    saving = keras.callbacks.ModelCheckpoint("x.keras", save_freq=10)
    steps = AgreedSteps(agree=lambda value: value)
    counts = []
    for _ in range(6):
        counts.append(steps.next_count(StepPace(step_s=0.01), [saving], grain=2, begins=False))
        steps.made(counts[-1])
        saving._should_save_on_batch(sum(counts) - 1)
    assert counts == [8, 2, 8, 2, 8, 2]


def test_a_checkpoint_within_an_epoch_ends_an_execution():
    saving = keras.callbacks.ModelCheckpoint("x.keras", save_freq=10)
    assert steps_to_save([saving, keras.callbacks.ModelCheckpoint("y.keras")]) == 10
    saving._should_save_on_batch(3)
    assert steps_to_save([saving]) == 6
    assert steps_to_save([keras.callbacks.EarlyStopping()]) is None
