"""What studies are called where several are on a page."""

from dataclasses import replace

from harness.regression.measurement import state_names
from harness.report.compare_answer import side_names
from harness.report.run_words import layout_words
from harness.schema.layout import Layout
from harness.schema.presets import resolve
from harness.schema.setting_words import distinguishing_names, study_name
from harness.schema.sweep import Sweep
from tests.labs.histories import make_measurement, make_summary

MNIST = {"dataset": "mnist", "model": "dnn"}


def test_studies_are_called_by_what_differs() -> None:
    one = Sweep(workload=resolve(**MNIST), layouts=(Layout(nodes=1),))
    other = Sweep(workload=resolve(**MNIST, sync="weights:epoch"), layouts=(Layout(nodes=1),))
    third = Sweep(workload=resolve(**MNIST, sync="weights:epoch", epochs=2), layouts=(Layout(nodes=1),))
    assert distinguishing_names([one.workload, other.workload]) == ("gradients", "weights:epoch")
    idle = resolve(**MNIST, sync="none")
    assert distinguishing_names([one.workload, idle])[1] == "synchronisation none"
    assert distinguishing_names([one.workload, third.workload])[1] == "epochs 2, synchronisation weights:epoch"
    ours = [replace(make_measurement([make_summary(1, 0, 1.0)]), workload=each.workload) for each in (one, other)]
    assert side_names(["mnist-dnn-default-strong-c34ef8b4", "main"], ours) == ("gradients", "main")
    assert side_names([one.name, other.name], ours[:1] * 2) == (one.name, other.name)
    assert study_name(one) == "MNIST-DNN" and "synchronisation weights:epoch" in study_name(other)


def test_states_that_differ_in_versions_only_have_names_of_their_own() -> None:
    one = make_measurement([make_summary(1, 0, 1.0)])
    other = replace(one, software=replace(one.software, code="x" * 25, tensorflow="2.20.0"))
    first, second = state_names([one, other])
    assert first != second and "tensorflow 2.20.0" in second
    assert state_names([one]) == (one.state,)


def test_a_layout_on_one_machine_has_no_nodes() -> None:
    assert layout_words(Layout(nodes=2), True).replace("\u00a0", " ") == "2 ranks, 1 thread each"
    assert layout_words(Layout(nodes=2, ranks_per_node=4), False).replace("\u00a0", " ") == (
        "2 nodes × 4 ranks, 1 thread each"
    )
