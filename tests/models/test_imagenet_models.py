"""Paper B's networks: parameter counts, outputs, small images, learning rates and dropout."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness import models
from harness.schema.presets import resolve
from harness.schema.workload import IMAGE_NETWORKS
from harness.train.optimizer import learning_rate
from harness.train.step import row_losses, smooth
from tests.labs.sentences import refuses

# Trainable parameters at the published image size and 1,000 classes. AlexNet: "60 million parameters" is the two
# towers; one tower has more because its convolutions see all maps. GoogLeNet: 6,998,552 and the auxiliary
# classifiers' 6,379,728. InceptionV3 and ResNet-50: Keras's documentation, less the moving statistics.
PUBLISHED = {
    "alexnet": 62_378_344,
    "alexnet-grouped": 60_965_224,
    "googlenet": 13_378_280,
    "inceptionv3": 23_817_352,
    "resnet50": 25_583_592,
}


def build_for_images(name, size=None, classes=1000, **options):
    side = size or IMAGE_NETWORKS[name].size
    return models.build_network(
        name, dataset="imagenet", features=(side, side, 3), classes=classes, init="glorot", **options
    )


def count_parameters(model, skip="~"):
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables if skip not in v.path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_publication(name):
    assert count_parameters(build_for_images(name)) == PUBLISHED[name]


def test_googlenet_without_its_auxiliary_classifiers():
    model = build_for_images("googlenet")
    without = keras.Model(model.inputs, model.outputs[0])
    assert sum(int(np.prod(variable.shape)) for variable in without.trainable_variables) == 6_998_552
    assert [output.shape for output in model.outputs] == [(None, 1000)] * 3


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_the_smallest_images_are_taken_and_smaller_ones_refused(name):
    least = IMAGE_NETWORKS[name].least
    outputs = build_for_images(name, size=least, classes=10)(np.zeros((2, least, least, 3), np.float32), training=True)
    for logits in outputs if isinstance(outputs, list) else [outputs]:
        assert logits.shape == (2, 10)
    with refuses("or more, a row", name, least):
        build_for_images(name, size=least - 1)


def test_resnets_blocks_begin_as_the_identity():
    """Goyal et al. 2017, section 5.1; the small variant's loss would rise to 9 before it falls."""
    scales = {layer.name: layer.gamma.numpy() for layer in build_for_images("resnet50", 64).layers if hasattr(layer, "gamma")}
    assert [name for name, gamma in scales.items() if not gamma.any()] == [
        f"conv{stage}_block{block}_3_bn"
        for stage, blocks in ((2, 3), (3, 4), (4, 6), (5, 3))
        for block in range(1, blocks + 1)
    ]


def test_mixed_precision_keeps_float32_weights_and_does_not_last():
    model = build_for_images("alexnet", size=64, classes=10, precision="mixed_bfloat16")
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    assert model.layers[1].compute_dtype == "bfloat16"
    assert build_for_images("alexnet", size=64, classes=10).layers[1].compute_dtype == "float32"


def rates(steps, *, ranks, **settings):
    workload = resolve(dataset="imagenet", model="resnet50", **settings)
    rate = learning_rate(workload, steps_per_epoch=10, ranks=ranks)
    return [float(rate(tf.constant(step))) for step in steps] if callable(rate) else rate


def test_papers_rate_falls_by_its_factor_every_step():
    found = rates([0, 1, 1000], ranks=4, preset="matex-imagenet")
    assert found == pytest.approx([0.02, 0.02 * 0.999964, 0.02 * 0.999964**1000], rel=1e-5)


def test_linear_scaling_warms_up_from_the_rate_of_one_rank():
    settings = {"epochs": 4, "warmup_epochs": 2, "learning_rate": 0.1, "rate_scaling": "linear"}
    found = rates([0, 10, 20, 35], ranks=8, schedule="constant", **settings)
    assert found == pytest.approx([0.1, 0.45, 0.8, 0.8])
    assert rates([0], ranks=1, schedule="constant", **settings) == 0.1
    cosine = rates([20, 30, 40], ranks=8, schedule="cosine", **settings)
    assert cosine == pytest.approx([0.8, 0.4, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (
            {"image_size": 20},
            ("out of range for", "20", "32", "4096"),
        ),
        (
            {"classes": 1},
            ("is too small: use", "1"),
        ),
        (
            {"input": "disk"},
            ("did you mean", "disk"),
        ),
        (
            {"precision": "float16"},
            ("did you mean", "float16"),
        ),
        (
            {"label_smoothing": 1.0},
            ("or more, below", "1.0"),
        ),
        (
            {"warmup_epochs": 9},
            ("warmup epochs", "9", "0", "3"),
        ),
        (
            {"decay": 1.5},
            ("is too large: use", "1.5"),
        ),
        (
            {"weight_decay": -1.0},
            ("is too small: use", "1.0"),
        ),
        ({"rate_scaling": "linear", "global_batch": 32}, ("rate scaling linear needs",)),
        (
            {"loss": "squared-error"},
            ("needs loss cross-entropy", "0.1"),
        ),
    ],
)
def test_settings_out_of_range_are_one_sentence(settings, refusal):
    with refuses(*refusal):
        resolve(dataset="imagenet", model="resnet50", **settings)


def test_image_settings_of_another_data_set_are_refused():
    with refuses("a setting of dataset", "64"):
        resolve(dataset="mnist", model="dnn", image_size=64)


def test_smoothed_loss_is_the_cross_entropy_of_the_smoothed_labels():
    logits = tf.constant(np.random.default_rng(0).normal(size=(5, 4)), tf.float32)
    labels = tf.constant([0, 1, 2, 3, 0])
    targets = tf.one_hot(labels, 4) * 0.9 + 0.1 / 4
    expected = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
    found = smooth(row_losses("cross-entropy", labels, logits), logits, 0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
