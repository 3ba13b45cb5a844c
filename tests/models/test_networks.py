"""The networks of both papers: every layer's shape, parameter counts, outputs, starts; and a user's own."""

import keras
import numpy as np
import pytest

from harness import datasets, models
from harness.schema.workload import IMAGE_NETWORKS
from tests.labs.networks import EXPECTED
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


def build(dataset, model):
    info = datasets.dataset_info(dataset)
    return models.build_network(model, dataset=dataset, features=info.features, classes=info.classes, init="glorot")


@pytest.mark.parametrize(("dataset", "model"), EXPECTED)
def test_layer_shapes_and_parameters_are_those_of_table_1(dataset, model):
    network = build(dataset, model)
    shapes, parameters = EXPECTED[dataset, model]
    assert [tuple(variable.shape) for variable in network.trainable_variables] == shapes
    assert network.count_params() == parameters


@pytest.mark.parametrize(("dataset", "model"), EXPECTED)
def test_activations_are_those_of_table_1(dataset, model):
    """ReLU convolutions, sigmoid full layers (4.1); logits at the end, softmax being part of the loss."""
    layers = [layer for layer in build(dataset, model).layers if layer.weights]
    hidden = ["relu" if type(layer).__name__ == "Conv2D" else "sigmoid" for layer in layers[:-1]]
    assert [layer.activation.__name__ for layer in layers] == [*hidden, "linear"]


def test_another_activation_is_a_model_of_another_name():
    paper, relu = (build("mnist", name) for name in ("cnn", "cnn-relu"))
    assert [layer.activation.__name__ for layer in relu.layers if layer.weights] == ["relu"] * 3 + ["linear"]
    assert [v.shape for v in relu.trainable_variables] == [v.shape for v in paper.trainable_variables]


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_every_convolution_is_followed_by_two_by_two_pooling(dataset):
    kinds = [type(layer).__name__ for layer in build(dataset, "cnn").layers]
    assert kinds == ["Conv2D", "MaxPooling2D"] * 2 + ["Flatten", "Dense", "Dense"]
    pools = [layer for layer in build(dataset, "cnn").layers if type(layer).__name__ == "MaxPooling2D"]
    assert [pool.pool_size for pool in pools] == [(2, 2), (2, 2)]


def test_layers_of_one_shape_start_from_different_weights():
    network = models.build_network("dnn", dataset="file", features=(200,), classes=2, init="fan-in")
    first, second = (variable.numpy() for variable in network.trainable_variables[0:4:2])
    assert abs(first[:, :100] - second).max() > 0.01


def test_fan_in_initialisation_has_the_papers_variance():
    network = models.build_network("dnn", dataset="mnist", features=(784,), classes=10, init="fan-in")
    assert network.trainable_variables[0].numpy().var() == pytest.approx(1 / 784, rel=0.05)


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        (
            "dmn",
            ("did you mean", "dnn"),
        ),
        ("cnn", ("images, but this data",)),
        (
            "cnn-relu",
            ("--model cnn-relu",),
        ),
        ("tests.no_such_module:network", ("write package.module:name",)),
        ("tests.mpi.faulty:no_such_function", ("no function or class",)),
        ("tests.models.test_networks:not_a_model", ("must return a keras.Model",)),
        (
            "tests.models.test_networks:wrong_width",
            ("must return a built", "2"),
        ),
        ("tests.models.test_networks:softmax", ("softmax, and the loss",)),
        ("tests.models.test_networks:softmax_within", ("softmax, and the loss",)),
    ],
)
def test_a_network_that_cannot_be_used_is_one_sentence(name, refusal):
    with refuses(*refusal):
        models.build_network(name, dataset="adult", features=(123,), classes=2, init="glorot")


def test_a_users_own_network_is_built():
    network = models.build_network(
        "tests.models.test_networks:own", dataset="adult", features=(123,), classes=2, init="glorot"
    )
    assert network.count_params() == 123 * 2 + 2


def own(features, classes):
    """Return the smallest network there is."""
    import keras

    return keras.Sequential([keras.Input(features), keras.layers.Dense(classes)])


def wrong_width(features, classes):
    """Return a network with one output too many."""
    return own(features, classes + 1)


def softmax(features, classes):
    """Return a network of probabilities."""
    import keras

    return keras.Sequential([keras.Input(features), keras.layers.Dense(classes, activation="softmax")])


def softmax_within(features, classes):
    """Return a network whose last layer is one with a layer of its own for it."""
    import keras

    return keras.Sequential([keras.Input(features), keras.Sequential([own(features, classes), keras.layers.Softmax()])])


def not_a_model(features, classes):
    """Return no network at all."""
    return "a network"


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
    scales = {
        layer.name: layer.gamma.numpy() for layer in build_for_images("resnet50", 64).layers if hasattr(layer, "gamma")
    }
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
