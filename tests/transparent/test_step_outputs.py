"""What a step prints or gives to Python asks for whole batches, and a probe lets nothing of it out."""

import pytest
import tensorflow as tf

from harness.transparent.probe.gradient_probe import GradientProbe, Trial
from harness.transparent.step_outputs import StepOutputs


@pytest.fixture
def trial(monkeypatch):
    known = Trial()
    for owner, name in ((tf, "print"), (tf, "py_function"), (tf, "numpy_function"), (tf.summary, "write")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    StepOutputs(known).install()
    return known


def lines(file):
    return file.read_text().split() if file.exists() else []


def test_a_print_of_a_probed_step_is_noted_and_not_made(trial, tmp_path):
    log = tmp_path / "log"
    tf.print("step", output_stream=f"file://{log}")
    assert lines(log) == ["step"]
    trial.probe = GradientProbe()
    tf.print("step", output_stream=f"file://{log}")
    assert lines(log) == ["step"]
    assert len(trial.probe.whole_for) == 1


def test_a_call_of_python_whose_result_a_probed_step_needs_is_made_and_another_is_not(trial):
    called = []

    def note(value):
        called.append(int(value))
        return value

    trial.probe = GradientProbe()
    assert tf.py_function(note, [tf.constant(1)], []) == []
    assert int(tf.py_function(note, [tf.constant(2)], tf.int32)) == 2
    assert called == [2]
    assert len(trial.probe.whole_for) == 2


def test_a_summary_of_a_probed_step_is_not_written(trial, tmp_path):
    with tf.summary.create_file_writer(str(tmp_path)).as_default(step=1):
        trial.probe = GradientProbe()
        assert not tf.summary.write("loss", 1.0)
        assert len(trial.probe.whole_for) == 1
        trial.probe = None
        assert tf.summary.write("loss", 1.0)
