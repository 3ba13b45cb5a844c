"""GoogLeNet (Szegedy et al. 2014, "Going deeper with convolutions"), with its two auxiliary classifiers."""

import keras
from keras import layers

from harness.models.alexnet import HE, LocalResponse

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


def googlenet(features: tuple[int, ...], classes: int) -> keras.Model:
    """Return GoogLeNet for images [rows, height, width, 3].

    Its outputs are three logits [rows, classes]: the network's own, and the auxiliary classifiers' behind
    inception (4a) and (4d), which count in training only. 13,378,280 parameters at 1,000 classes, 6,998,552 of
    them without the auxiliary classifiers.
    """
    inputs = keras.Input(features)
    maps = LocalResponse()(_pool(_convolve(inputs, 64, 7, strides=2)))
    maps = _pool(LocalResponse()(_convolve(_convolve(maps, 64, 1), 192, 3)))
    for filters in _THIRD:
        maps = _inception(maps, filters)
    maps = _pool(maps)
    sides = []
    for number, filters in enumerate(_FOURTH):
        maps = _inception(maps, filters)
        if number in (0, 3):
            sides.append(_auxiliary(maps, classes))
    maps = _pool(maps)
    for filters in _FIFTH:
        maps = _inception(maps, filters)
    maps = layers.Dropout(0.4)(layers.GlobalAveragePooling2D()(maps))
    return keras.Model(inputs, [_logits(maps, classes), *sides], name="googlenet")


def _inception(maps: keras.KerasTensor, filters: tuple[int, ...]) -> keras.KerasTensor:
    one, reduce_three, three, reduce_five, five, projection = filters
    branches = [
        _convolve(maps, one, 1),
        _convolve(_convolve(maps, reduce_three, 1), three, 3),
        _convolve(_convolve(maps, reduce_five, 1), five, 5),
        _convolve(layers.MaxPooling2D(3, strides=1, padding="same")(maps), projection, 1),
    ]
    return layers.Concatenate()(branches)


def _auxiliary(maps: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    window = min(5, *maps.shape[1:3])  # small images have smaller maps than the window
    maps = _convolve(layers.AveragePooling2D(window, strides=3)(maps), 128, 1)
    full = layers.Dense(1024, activation="relu", kernel_initializer=HE)(layers.Flatten()(maps))
    return _logits(layers.Dropout(0.7)(full), classes)


def _logits(maps: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    return layers.Dense(classes, dtype="float32")(maps)


def _convolve(maps: keras.KerasTensor, filters: int, size: int, strides: int = 1) -> keras.KerasTensor:
    convolve = layers.Conv2D(filters, size, strides=strides, padding="same", activation="relu", kernel_initializer=HE)
    return convolve(maps)


def _pool(maps: keras.KerasTensor) -> keras.KerasTensor:
    return layers.MaxPooling2D(3, strides=2, padding="same")(maps)
