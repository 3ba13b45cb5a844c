"""The networks of paper A, Table 1: every layer's shape and every parameter count."""

import pytest

from harness import datasets, models
from tests.labs.networks import EXPECTED
from tests.labs.sentences import refuses


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
            ("MODEL=cnn-relu",),
        ),
        ("tests.no_such_module:network", ("write package.module:name",)),
        ("tests.mpi.faulty:no_such_function", ("no function or class",)),
        ("tests.models.test_models:not_a_model", ("must return a keras.Model",)),
        (
            "tests.models.test_models:wrong_width",
            ("must return a built", "2"),
        ),
        ("tests.models.test_models:softmax", ("softmax, and the loss",)),
        ("tests.models.test_models:softmax_within", ("softmax, and the loss",)),
    ],
)
def test_a_network_that_cannot_be_used_is_one_sentence(name, refusal):
    with refuses(*refusal):
        models.build_network(name, dataset="adult", features=(123,), classes=2, init="glorot")


def test_a_users_own_network_is_built():
    network = models.build_network(
        "tests.models.test_models:own", dataset="adult", features=(123,), classes=2, init="glorot"
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
