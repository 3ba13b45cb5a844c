"""What studies are called."""

from pathlib import Path

from harness.schema.layout import Layout
from harness.schema.presets import resolve
from harness.schema.setting_words import distinguishing_names, study_name
from harness.schema.sweep import Sweep

MNIST = {"dataset": "mnist", "model": "dnn"}


def test_a_file_of_ones_own_names_its_study(tmp_path: Path) -> None:
    workload = resolve(dataset="file", model="dnn", data_file=str(tmp_path / "iris.csv"))
    assert workload.name == "iris.csv-dnn"  # no data set has a dot: a file called mnist.csv is not the paper's MNIST


def test_studies_are_called_by_what_differs() -> None:
    one = Sweep(workload=resolve(**MNIST), layouts=(Layout(nodes=1),))
    other = Sweep(workload=resolve(**MNIST, sync="weights:epoch"), layouts=(Layout(nodes=1),))
    third = Sweep(workload=resolve(**MNIST, sync="weights:epoch", epochs=2), layouts=(Layout(nodes=1),))
    assert distinguishing_names([one.workload, other.workload]) == ("gradients", "weights:epoch")
    idle = resolve(**MNIST, sync="none")
    assert distinguishing_names([one.workload, idle])[1] == "synchronisation none"
    assert distinguishing_names([one.workload, third.workload])[1] == "epochs 2, synchronisation weights:epoch"
    assert study_name(one) == "MNIST-DNN" and "synchronisation weights:epoch" in study_name(other)
