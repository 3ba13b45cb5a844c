"""What Horovod's words have trained is compared at the end; a difference is a note and no error."""

import pytest
import tensorflow as tf

from harness.base.errors import RunError, SharedError
from harness.horovod import averaging
from harness.schema.record_notes import NoteCode
from harness.transparent.horovod_replicas import compare_replicas
from tests.labs.alike_ranks import alike_runtime


@pytest.fixture
def trained(monkeypatch):
    variable = tf.Variable([1.0, 2.0])
    monkeypatch.setattr(averaging, "trained", {id(variable): variable})
    return variable


def test_the_hash_is_of_what_horovods_words_have_trained(trained):
    runtime = alike_runtime()
    runtime.variables.remember([tf.Variable(0.0)])
    first = compare_replicas(runtime)
    assert runtime.variables.trained == [trained]
    trained.assign([1.0, 3.0])
    assert first and compare_replicas(runtime) != first


def test_ranks_that_differ_are_noted(trained, monkeypatch):
    runtime = alike_runtime()

    def differ():
        raise SharedError(RunError("variable 'v' differs"))

    monkeypatch.setattr(runtime.variables, "verify", differ)
    assert compare_replicas(runtime) is None
    assert [note.code for note in runtime.notes] == [NoteCode.REPLICAS_DIFFER]
