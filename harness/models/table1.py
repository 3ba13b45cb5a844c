"""The networks of paper A, Table 1. All end in logits: softmax is part of the loss and of the evaluation."""

import math

import keras
from keras import layers

_HIDDEN = {"higgs": (1024,)}  # one wide hidden layer; every other data set has two
_HIDDEN_OTHER = (200, 100)
_FILTERS = (32, 64)
_FULL = 1024


def dnn(dataset: str, features: tuple[int, ...], classes: int, kernel: keras.Initializer) -> keras.Model:
    """Return Table 1's DNN: fully connected layers (200-100; HIGGS 1024), sigmoid.

    The paper speaks of sigmoid neurons for fully connected layers (section 4.1) and not of the DNNs' by name: that
    theirs are is our reading.
    Input float32 [rows, *features], output logits float32 [rows, classes].
    """
    hidden = _HIDDEN.get(dataset, _HIDDEN_OTHER)
    return keras.Sequential(
        [
            keras.Input(features),
            *([layers.Reshape((math.prod(features),))] if len(features) > 1 else []),
            *(layers.Dense(units, activation="sigmoid", kernel_initializer=_fresh(kernel)) for units in hidden),
            layers.Dense(classes, kernel_initializer=_fresh(kernel)),
        ],
        name="dnn",
    )


def cnn(features: tuple[int, ...], classes: int, kernel: keras.Initializer, *, full: str) -> keras.Model:
    """Return Table 1's CNN: 5x5 stride 1 ReLU convolutions (32, 64), each with 2x2 max-pooling, then 1024 `full`.

    That is the activation of the fully connected layer, ``sigmoid`` in the paper (section 4.1), which does not state
    the padding. Here convolutions keep the image's size, which makes 13 MB (MNIST) and 17 MB (CIFAR10) of weights.
    Input float32 [rows, height, width, channels], output logits float32 [rows, classes].
    """
    stages: list[keras.Layer] = []
    for filters in _FILTERS:
        stages.append(layers.Conv2D(filters, 5, padding="same", activation="relu", kernel_initializer=_fresh(kernel)))
        stages.append(layers.MaxPooling2D(2))
    return keras.Sequential(
        [
            keras.Input(features),
            *stages,
            layers.Flatten(),
            layers.Dense(_FULL, activation=full, kernel_initializer=_fresh(kernel)),
            layers.Dense(classes, kernel_initializer=_fresh(kernel)),
        ],
        name="cnn",
    )


def _fresh(kernel: keras.Initializer) -> keras.Initializer:
    """Return a copy without a seed of its own, so that layers of one shape do not start from equal weights."""
    return type(kernel).from_config(kernel.get_config() | {"seed": None})
