"""The papers' networks. All end in logits: softmax is part of the loss and of the evaluation."""

import math
from dataclasses import dataclass

import keras
import tensorflow as tf
from keras import layers


@dataclass(frozen=True, slots=True)
class Shape:
    """The `features` of a row that a network takes, of an image (height, width, channels), and its `classes`."""

    features: tuple[int, ...]
    classes: int


_HIDDEN = {"higgs": (1024,)}  # one wide hidden layer; every other data set has two
_HIDDEN_OTHER = (200, 100)
_FILTERS = (32, 64)
_FULL = 1024


def dnn(dataset: str, shape: Shape, kernel: keras.Initializer) -> keras.Model:
    """Return the DNN of paper A, Table 1: fully connected layers (200-100; HIGGS 1024), sigmoid.

    The paper speaks of sigmoid neurons for fully connected layers (section 4.1), without naming the DNNs': that theirs
    are sigmoid too is our reading.
    Input float32 [rows, *features], output logits float32 [rows, classes].
    """
    hidden = _HIDDEN.get(dataset, _HIDDEN_OTHER)
    return keras.Sequential(
        [
            keras.Input(shape.features),
            *([layers.Reshape((math.prod(shape.features),))] if len(shape.features) > 1 else []),
            *(layers.Dense(units, activation="sigmoid", kernel_initializer=_fresh(kernel)) for units in hidden),
            layers.Dense(shape.classes, kernel_initializer=_fresh(kernel)),
        ],
        name="dnn",
    )


def cnn(shape: Shape, kernel: keras.Initializer, *, full: str) -> keras.Model:
    """Return the CNN of paper A, Table 1: 5x5 ReLU convolutions (32, 64), each with 2x2 max-pooling, then 1024 `full`.

    The stride is 1. `full` is the activation of the fully connected layer, ``sigmoid`` in the paper (section 4.1),
    which does not state the padding. Here convolutions keep the image's size, which makes 13 MB (MNIST) and 17 MB
    (CIFAR10) of weights.
    Input float32 [rows, height, width, channels], output logits float32 [rows, classes].
    """
    stages: list[keras.Layer] = []
    for filters in _FILTERS:
        stages.append(layers.Conv2D(filters, 5, padding="same", activation="relu", kernel_initializer=_fresh(kernel)))
        stages.append(layers.MaxPooling2D(2))
    return keras.Sequential(
        [
            keras.Input(shape.features),
            *stages,
            layers.Flatten(),
            layers.Dense(_FULL, activation=full, kernel_initializer=_fresh(kernel)),
            layers.Dense(shape.classes, kernel_initializer=_fresh(kernel)),
        ],
        name="cnn",
    )


def wide(features: tuple[int, ...], classes: int) -> keras.Model:
    """Return a DNN of four times paper A's units (800-400), for its claim about larger networks.

    Input float32 [rows, *features], output logits float32 [rows, classes].
    """
    hidden = (layers.Dense(4 * units, activation="sigmoid") for units in _HIDDEN_OTHER)
    return keras.Sequential([keras.Input(features), layers.Flatten(), *hidden, layers.Dense(classes)], name="wide")


def _fresh(kernel: keras.Initializer) -> keras.Initializer:
    """Return a copy without a seed of its own, so that layers of one shape do not start from equal weights."""
    return type(kernel).from_config(kernel.get_config() | {"seed": None})


# For layers with ReLU (He et al. 2015): without batch normalisation, Glorot's weights halve the signal layer by layer.
HE = "he_normal"


class LocalResponse(layers.Layer):
    """Local response normalisation over five neighbouring maps: k = 2, alpha = 1e-4, beta = 0.75 (section 3.3)."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return float maps [rows, height, width, channels] of the same shape; computed in float32."""
        maps = tf.cast(inputs, tf.float32)
        return tf.cast(tf.nn.local_response_normalization(maps, 2, bias=2.0, alpha=1e-4, beta=0.75), inputs.dtype)


def alexnet(shape: Shape, *, towers: int) -> keras.Model:
    """Return AlexNet (Krizhevsky, Sutskever, Hinton 2012) for images [rows, height, width, 3]; logits [rows, classes].

    One tower: every convolution sees all maps (62,378,344 parameters at 227 pixels and 1,000 classes). Two
    towers: the second, fourth and fifth see the maps of their own half, as on the paper's two GPUs (60,965,224).
    """
    inputs = keras.Input(shape.features)
    maps = _pool_overlapping(LocalResponse()(_convolve_towers(inputs, 96, 11, strides=4, padding="valid")))
    maps = _pool_overlapping(LocalResponse()(_convolve_towers(maps, 256, 5, towers=towers)))
    maps = _convolve_towers(maps, 384, 3)
    maps = _convolve_towers(maps, 384, 3, towers=towers)
    maps = layers.Flatten()(_pool_overlapping(_convolve_towers(maps, 256, 3, towers=towers)))
    for _ in range(2):
        maps = layers.Dropout(0.5)(layers.Dense(4096, activation="relu", kernel_initializer=HE)(maps))
    return keras.Model(inputs, layers.Dense(shape.classes, dtype="float32")(maps), name="alexnet")


def _convolve_towers(
    maps: keras.KerasTensor, filters: int, size: int, *, strides: int = 1, padding: str = "same", towers: int = 1
) -> keras.KerasTensor:
    # Not Conv2D(groups=2): TensorFlow has no gradient of a grouped convolution on CPUs.
    parts = keras.ops.split(maps, towers, axis=-1) if towers > 1 else [maps]
    outputs = [
        layers.Conv2D(
            filters // towers, size, strides=strides, padding=padding, activation="relu", kernel_initializer=HE
        )(part)
        for part in parts
    ]
    return layers.Concatenate()(outputs) if towers > 1 else outputs[0]


def _pool_overlapping(maps: keras.KerasTensor) -> keras.KerasTensor:
    """Pool overlapping windows of 3 at stride 2; maps smaller than a window, from small images, are padded."""
    return layers.MaxPooling2D(3, strides=2, padding="valid" if min(maps.shape[1:3]) >= 3 else "same")(maps)


# Table 1: filters of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection.
_THIRD = ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64))
_FOURTH = (
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
)
_FIFTH = ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128))


def googlenet(shape: Shape) -> keras.Model:
    """Return GoogLeNet (Szegedy et al. 2014, "Going deeper with convolutions") for images [rows, height, width, 3].

    Its outputs are three logits [rows, classes]: the network's own, and those of the auxiliary classifiers after
    inception (4a) and (4d), which count in training only. 13,378,280 parameters at 1,000 classes, 6,998,552 of them
    without the auxiliary classifiers.
    """
    inputs = keras.Input(shape.features)
    maps = LocalResponse()(_pool(_convolve(inputs, 64, 7, strides=2)))
    maps = _pool(LocalResponse()(_convolve(_convolve(maps, 64, 1), 192, 3)))
    for filters in _THIRD:
        maps = _inception(maps, filters)
    maps = _pool(maps)
    sides = []
    for number, filters in enumerate(_FOURTH):
        maps = _inception(maps, filters)
        if number in (0, 3):
            sides.append(_auxiliary(maps, shape))
    maps = _pool(maps)
    for filters in _FIFTH:
        maps = _inception(maps, filters)
    maps = layers.Dropout(0.4)(layers.GlobalAveragePooling2D()(maps))
    return keras.Model(inputs, [_logits(maps, shape), *sides], name="googlenet")


def _inception(maps: keras.KerasTensor, filters: tuple[int, ...]) -> keras.KerasTensor:
    single, reduce_three, three, reduce_five, five, projection = filters
    branches = [
        _convolve(maps, single, 1),
        _convolve(_convolve(maps, reduce_three, 1), three, 3),
        _convolve(_convolve(maps, reduce_five, 1), five, 5),
        _convolve(layers.MaxPooling2D(3, strides=1, padding="same")(maps), projection, 1),
    ]
    return layers.Concatenate()(branches)


def _auxiliary(maps: keras.KerasTensor, shape: Shape) -> keras.KerasTensor:
    window = min(5, *maps.shape[1:3])  # small images have smaller maps than the window
    maps = _convolve(layers.AveragePooling2D(window, strides=3)(maps), 128, 1)
    full = layers.Dense(1024, activation="relu", kernel_initializer=HE)(layers.Flatten()(maps))
    return _logits(layers.Dropout(0.7)(full), shape)


def _logits(maps: keras.KerasTensor, shape: Shape) -> keras.KerasTensor:
    return layers.Dense(shape.classes, dtype="float32")(maps)


def _convolve(maps: keras.KerasTensor, filters: int, size: int, strides: int = 1) -> keras.KerasTensor:
    convolve = layers.Conv2D(filters, size, strides=strides, padding="same", activation="relu", kernel_initializer=HE)
    return convolve(maps)


def _pool(maps: keras.KerasTensor) -> keras.KerasTensor:
    return layers.MaxPooling2D(3, strides=2, padding="same")(maps)


_LAST_OF_BLOCK = "_3_bn"  # in ResNet-50; InceptionV3 has no such layer


def imagenet_network(name: str, shape: Shape) -> keras.Model:
    """Return the network `name` (`harness.schema.workload.IMAGE_NETWORKS`) with logits [rows, classes].

    InceptionV3 and ResNet-50 are those of `keras.applications`, the first without its auxiliary classifier.
    """
    match name:
        case "alexnet":
            return alexnet(shape, towers=1)
        case "alexnet-grouped":
            return alexnet(shape, towers=2)
        case "googlenet":
            return googlenet(shape)
        case "inceptionv3":
            return _application(keras.applications.InceptionV3, shape)
        case "resnet50":
            return _application(keras.applications.ResNet50, shape)
    raise AssertionError(name)


def _application(build: "type[keras.Model]", shape: Shape) -> keras.Model:
    model = build(weights=None, input_shape=shape.features, classes=shape.classes, classifier_activation=None)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            # Goyal et al. 2017, section 5.1. Keras's 0.99 forgets the initial values in hundreds of steps only.
            layer.momentum = 0.9
            if layer.name.endswith(_LAST_OF_BLOCK):  # the same section: each residual block begins as the identity
                layer.gamma.assign(keras.ops.zeros_like(layer.gamma))
    return model
