"""Mirrored images: half of them, by row, seed and epoch alone."""

import numpy as np
import tensorflow as tf

from harness.train.batch_input import flip, flip_salt


def mirrored(rows: np.ndarray, epoch: int, seed: int = 0) -> np.ndarray:
    """Return which of `rows` are mirrored in `epoch`; all others must be untouched."""
    images = np.broadcast_to(np.arange(6, dtype=np.uint8).reshape(1, 1, 2, 3), (len(rows), 1, 2, 3))
    result = flip(tf.constant(images), tf.constant(rows), tf.constant(flip_salt(seed, epoch), tf.uint32)).numpy()
    turned = (result == images[:, :, ::-1]).all(axis=(1, 2, 3))
    assert ((result == images).all(axis=(1, 2, 3)) ^ turned).all()
    return turned


def test_half_of_the_images_are_mirrored_and_others_in_the_next_epoch():
    rows = np.arange(50_000, dtype=np.int32)
    epochs = np.array([mirrored(rows, epoch) for epoch in range(6)])
    assert np.abs(epochs.mean(axis=1) - 0.5).max() < 0.02
    agreement = np.corrcoef(epochs.astype(float))[np.triu_indices(6, 1)]
    assert np.abs(agreement).max() < 0.05
    assert np.abs(np.corrcoef(epochs[:, :-1].ravel(), epochs[:, 1:].ravel())[0, 1]) < 0.05


def test_a_row_is_mirrored_whatever_batch_it_comes_in():
    rows = np.random.default_rng(0).permutation(1000).astype(np.int32)
    together = mirrored(rows, 3)
    assert np.array_equal(together, np.concatenate([mirrored(part, 3) for part in np.split(rows, 4)]))
    assert not np.array_equal(together, mirrored(rows, 3, seed=1))
