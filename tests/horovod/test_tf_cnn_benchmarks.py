"""TensorFlow's tf_cnn_benchmarks trains on ranks as it is.

It is no part of this project. TF_CNN_BENCHMARKS names its folder, `scripts/tf_cnn_benchmarks` of tensorflow/benchmarks.
"""

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.labs.doc_pages import PAGES, examples
from tests.mpi.launch import run_ranks

FOLDER = os.environ.get("TF_CNN_BENCHMARKS", "")
pytestmark = [
    pytest.mark.mpi,  # two ranks must start
    pytest.mark.skipif(not FOLDER, reason="TF_CNN_BENCHMARKS=FOLDER names no tf_cnn_benchmarks"),
]
COMMON = "--device=cpu --data_format=NHWC --variable_update=horovod --horovod_device=cpu --num_warmup_batches=1"
CIFAR = ("resnet20", "resnet20_v2", "densenet40_k12")


def train(place, *words):
    script = Path(FOLDER) / "tf_cnn_benchmarks.py"
    finished = run_ranks(2, "-m", "harness.transparent", script, *words, cwd=place, timeout=500)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


@pytest.mark.parametrize("model", ["lenet", "resnet20"])
def test_a_model_of_it_trains_on_two_ranks(model, tmp_path):
    printed = train(tmp_path, *_words(model))
    assert re.search(r"total images/sec: [0-9.]+", printed)
    assert "sha256" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["alexnet", "googlenet", "inception3", "resnet50", "resnet50_v2", "vgg11", "trivial", "resnet20_v2"]
)
def test_the_larger_models_of_it_train_on_two_ranks(model, tmp_path):
    assert "sha256" in train(tmp_path, *_words(model))


def _words(model):
    data = ["--data_name=cifar10"] if model in CIFAR else []
    return [*COMMON.split(), "--batch_size=4", "--num_batches=3", f"--model={model}", *data]


def test_what_it_has_trained_is_evaluated_from_its_checkpoint(tmp_path):
    train(tmp_path, *_words("lenet"), "--train_dir=trained", "--save_summaries_steps=0")
    assert list((tmp_path / "trained").glob("model.ckpt-*.index"))
    printed = train(tmp_path, *_words("lenet"), "--train_dir=trained", "--eval", "--eval_dir=evaluated")
    assert re.search(r"Accuracy @ 1 = [0-9.]+ Accuracy @ 5 = [0-9.]+ \[\d+ examples\]", printed)


def test_the_line_of_the_page_runs(tmp_path):
    (line,) = (line for line in examples(PAGES["jupiter-resnet.md"]) if line.startswith("harness run"))
    words = shlex.split(line)
    begin = words.index("tf_cnn_benchmarks.py") + 1
    assert "total images/sec" in train(tmp_path, *words[begin:])
