"""The yardstick of `make gpu-check`: a plain TensorFlow loop of a network on one GPU; prints images per second.

python bare.py NETWORK BATCH STEPS SIZE PRECISION XLA   images of SIZE pixels held on the device; momentum; XLA: 1 or 0

NETWORK is resnet50, or paper A's CNN on images of one channel (cnn-mnist) or three (cnn-cifar10).
"""

import sys
import time

import keras
import tensorflow as tf


def build_network(name: str, size: int) -> tuple[keras.Model, bool]:
    """Return the network, float32 images [rows, size, size, channels] to classes, and whether these are logits."""
    if name == "resnet50":
        return keras.applications.ResNet50(weights=None, classes=1000, input_shape=(size, size, 3)), False
    layers = [keras.Input((size, size, 1 if name == "cnn-mnist" else 3))]
    for filters in (32, 64):
        layers.append(keras.layers.Conv2D(filters, 5, padding="same", activation="relu"))
        layers.append(keras.layers.MaxPooling2D(2))
    layers += [keras.layers.Flatten(), keras.layers.Dense(1024, activation="sigmoid"), keras.layers.Dense(10)]
    return keras.Sequential(layers), True


def main() -> None:
    """Train as the command line asks."""
    network = sys.argv[1]
    batch, steps, size = map(int, sys.argv[2:5])
    precision = sys.argv[5]
    compiled = sys.argv[6] == "1"
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)
    keras.mixed_precision.set_global_policy(precision)
    model, has_logits = build_network(network, size)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    images = tf.random.uniform([4 * batch, *model.input_shape[1:]])
    labels = tf.random.uniform([4 * batch], maxval=model.output_shape[1], dtype=tf.int32)

    @tf.function(jit_compile=compiled)
    def gradients(rows: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs = tf.cast(model(rows, training=True), tf.float32)
            losses = keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=has_logits)
            loss = tf.reduce_mean(losses)
            scaled = optimizer.scale_loss(loss)
        return tape.gradient(scaled, model.trainable_variables)

    @tf.function
    def train(count: tf.Tensor) -> tf.Tensor:
        for step in tf.range(count):
            first = step % 4 * batch
            found = gradients(images[first : first + batch], labels[first : first + batch])
            optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        return model.trainable_variables[0].value[0, 0, 0, 0]

    float(train(tf.constant(5)))
    begin = time.perf_counter()
    float(train(tf.constant(steps)))
    print(f"RATE {batch * steps / (time.perf_counter() - begin)}")


if __name__ == "__main__":
    main()
