"""The yardstick of `make gpu-check`: a plain TensorFlow loop of ResNet-50 on one GPU; prints images per second.

python bare.py BATCH STEPS SIZE PRECISION XLA   images of SIZE pixels held on the device; momentum; XLA is 1 or 0
"""

import sys
import time

import keras
import tensorflow as tf


def main() -> None:
    """Train as the command line asks."""
    batch, steps, size = map(int, sys.argv[1:4])
    precision = sys.argv[4]
    compiled = sys.argv[5] == "1"
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)
    keras.mixed_precision.set_global_policy(precision)
    model = keras.applications.ResNet50(weights=None, classes=1000, input_shape=(size, size, 3))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    images = tf.random.uniform([4 * batch, size, size, 3])
    labels = tf.random.uniform([4 * batch], maxval=1000, dtype=tf.int32)

    @tf.function(jit_compile=compiled)
    def gradients(rows: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs = tf.cast(model(rows, training=True), tf.float32)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(targets, outputs))
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
