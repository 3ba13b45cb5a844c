"""A user's own network and optimizer, and a data set that is found where it stands."""

import numpy as np
import pytest

from harness import datasets
from harness.base.errors import UserError
from harness.datasets import known
from harness.schema.code_identity import source_identity
from harness.schema.presets import resolve
from tests.labs.sentences import refuses

TOY = '''
"""A data set of one's own."""
from harness.datasets.dataset import Dataset, StandIn
from harness.datasets.synthetic import render_plain

TOY = Dataset(
    name="toy", title="Toy", features=(3,), classes=2, dtype="float32", default_model="dnn", train_rows=100,
    test_rows=20, source="a test", shares=(0.5, 0.5), stand_in=StandIn(render=render_plain, rows=100),
)
DATASETS = (TOY,)
'''
OWN = """
import keras

def network(features, classes):
    return keras.Sequential([keras.Input(features), keras.layers.Dense(classes)])

def optimizer(rate):
    return keras.optimizers.Lion(rate)

def nothing(rate):
    return None
"""


def test_a_data_set_is_one_file(tmp_path, monkeypatch, cache):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(known, "__path__", [*known.__path__, str(tmp_path)])
    assert "toy" in datasets.dataset_names()
    workload = resolve(dataset=datasets.choose_dataset("toy", None), model=datasets.dataset_info("toy").default_model)
    prepared = datasets.prepare(datasets.locate(workload, None))
    assert prepared.train_x.shape == (100, 3)
    with refuses("did you mean", "toy"):
        datasets.choose_dataset("toi", None)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A package of the user's own in the working directory."""
    (tmp_path / "additions").mkdir()
    (tmp_path / "additions" / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "additions" / "own.py"


def test_a_network_is_one_file(own):
    from harness import models  # it loads TensorFlow

    network = models.build_network("additions.own:network", dataset="toy", features=(3,), classes=2, init="glorot")
    assert network(np.zeros((1, 3), np.float32)).shape == (1, 2)


def test_an_optimizer_is_one_file_and_part_of_what_would_run(own):
    import keras

    from harness.train.optimizer import build_optimizer

    workload = resolve(dataset="adult", model="dnn", optimizer="additions.own:optimizer")
    assert isinstance(build_optimizer(workload, steps_per_epoch=1, ranks=1), keras.optimizers.Lion)
    before = source_identity(workload)
    own.write_text(OWN + "\n# edited\n")
    assert source_identity(workload) != before


def test_what_is_no_optimizer_is_told_in_one_sentence(own):
    from harness.train.optimizer import build_optimizer

    for name, message in (("nothing", "must return a Keras optimizer"), ("absent", "names no function or class")):
        workload = resolve(dataset="adult", model="dnn", optimizer=f"additions.own:{name}")
        with pytest.raises(UserError, match=message):
            build_optimizer(workload, steps_per_epoch=1, ranks=1)
    with refuses("did you mean", "adam"):
        resolve(dataset="adult", model="dnn", optimizer="adan")
