"""Models for tests that are no failures, for `--model tests.mpi.networks:NAME`."""

import keras
from keras import layers


def normalised(features, classes):
    """Return a network whose result depends on how its rows are divided, unless normalisation is synchronised."""
    stages = [stage for _ in range(2) for stage in (layers.Conv2D(8, 3, 4), layers.BatchNormalization(), layers.ReLU())]
    return keras.Sequential([keras.Input(features), *stages, layers.Flatten(), layers.Dense(classes)])


def forgetful(features, classes):
    """Return a network with dropout, noise of each rank's own and statistics of each rank's own."""
    stages = [
        layers.Dense(32),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Dropout(0.2),
        layers.GaussianNoise(0.1),
    ]
    return keras.Sequential([keras.Input(features), layers.Flatten(), *stages, layers.Dense(classes)])
