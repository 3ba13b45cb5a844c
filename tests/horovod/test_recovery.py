"""Training that outlives ranks: a state that is committed, and a function that begins again from it."""

import keras
import pytest
import tensorflow as tf

from harness.horovod import recovery
from harness.horovod.recovery import (
    CommitStateCallback,
    HorovodInternalError,
    ObjectState,
    TensorFlowKerasState,
    TensorFlowState,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from tests.labs.horovod_ranks import begin_horovod


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    begin_horovod(monkeypatch, 0, 1)
    monkeypatch.setattr(recovery, "_team", None)


def test_values_go_back_to_the_last_commit():
    state = ObjectState(epoch=1, history=[])
    state.history.append(0.5)
    state.commit()
    state.epoch = 7
    state.history.append(0.4)
    state.restore()
    assert (state.epoch, state.history) == (1, [0.5])
    state.epoch = 9
    state.sync()  # what was committed last is what all ranks get
    assert state.epoch == 1


def test_variables_go_back_too():
    variable = tf.Variable([1.0])
    state = TensorFlowState([variable], batch=0)
    variable.assign([2.0])
    state.commit()
    variable.assign([3.0])
    state.restore()
    assert variable.numpy().tolist() == [2.0]


def test_a_models_optimizer_is_part_of_its_state():
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError):
        TensorFlowKerasState(model)
    model.build([None, 2])
    model.compile("adam", "mse")
    tracked = TensorFlowKerasState(model).tracked()
    assert len(tracked) > len(model.variables)


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_what_fails_begins_again_from_the_last_commit(failures):
    state = ObjectState(step=0)
    resets, begun = [], []
    state.register_reset_callbacks([lambda: resets.append(state.step)])

    @recovery.run
    def train(state):
        begun.append(state.step)
        state.step += 1
        if len(begun) == 1:
            state.commit()
        state.step += 1
        if len(begun) <= failures:
            raise HorovodInternalError("lost")
        return state.step

    assert train(state) == 2 + (failures > 0)
    assert begun == [0, 1, 1][: failures + 1]
    assert resets == [1] * failures


def test_a_mistake_of_the_script_is_no_failure():
    @recovery.run
    def train(state):
        raise KeyError("x")

    with pytest.raises(KeyError):
        train(ObjectState())


def test_callbacks_commit_and_count():
    commits = []
    state = ObjectState(batch=0, epoch=3)
    state.commit = lambda: commits.append(state.batch)
    commit, batch, epoch = (
        CommitStateCallback(state, batches_per_commit=2),
        UpdateBatchStateCallback(state),
        UpdateEpochStateCallback(state),
    )
    for callback in (commit, epoch):
        callback.on_train_begin()
    for number in range(4):
        batch.on_train_batch_end(number)
        commit.on_train_batch_end(number)
    assert commits == [1, 3]
    for callback in (batch, epoch, commit):
        callback.on_epoch_end(0)
    assert (state.batch, state.epoch, len(commits)) == (0, 4, 3)
