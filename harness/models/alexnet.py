"""AlexNet (Krizhevsky, Sutskever, Hinton 2012), as one tower or as the original two."""

import keras
import tensorflow as tf
from keras import layers

# For layers with ReLU (He et al. 2015): without batch normalisation, Glorot's weights halve the signal layer by layer.
HE = "he_normal"


class LocalResponse(layers.Layer):
    """Local response normalisation over five neighbouring maps: k = 2, alpha = 1e-4, beta = 0.75 (section 3.3)."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return float maps [rows, height, width, channels] of the same shape; computed in float32."""
        maps = tf.cast(inputs, tf.float32)
        return tf.cast(tf.nn.local_response_normalization(maps, 2, bias=2.0, alpha=1e-4, beta=0.75), inputs.dtype)


def alexnet(features: tuple[int, ...], classes: int, *, towers: int) -> keras.Model:
    """Return AlexNet with logits [rows, classes] for images [rows, height, width, 3].

    One tower: every convolution sees all maps (62,378,344 parameters at 227 pixels and 1,000 classes). Two
    towers: the second, fourth and fifth see the maps of their own half, as on the paper's two GPUs (60,965,224).
    """
    inputs = keras.Input(features)
    maps = _pool(LocalResponse()(_convolve(inputs, 96, 11, strides=4, padding="valid")))
    maps = _pool(LocalResponse()(_convolve(maps, 256, 5, towers=towers)))
    maps = _convolve(maps, 384, 3)
    maps = _convolve(maps, 384, 3, towers=towers)
    maps = layers.Flatten()(_pool(_convolve(maps, 256, 3, towers=towers)))
    for _ in range(2):
        maps = layers.Dropout(0.5)(layers.Dense(4096, activation="relu", kernel_initializer=HE)(maps))
    return keras.Model(inputs, layers.Dense(classes, dtype="float32")(maps), name="alexnet")


def _convolve(
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


def _pool(maps: keras.KerasTensor) -> keras.KerasTensor:
    """Pool overlapping windows of 3 at stride 2; maps smaller than a window, from small images, are padded."""
    return layers.MaxPooling2D(3, strides=2, padding="valid" if min(maps.shape[1:3]) >= 3 else "same")(maps)
