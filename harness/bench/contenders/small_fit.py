"""A user's small script, a second of training, whose start is what one waits for; it imports nothing of the harness."""

import keras
import numpy as np


def main() -> None:
    """Train a small network on a few rows."""
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(1)
    rows = random.normal(size=(2048, 16)).astype(np.float32)
    labels = (rows[:, 0] > 0).astype(np.int32)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss)
    model.fit(rows, labels, batch_size=64, epochs=2, verbose=0)


if __name__ == "__main__":
    main()
