"""The network's input from stored rows."""

import numpy as np
import pytest

from harness.train.step import prepare_input

tf = pytest.importorskip("tensorflow")


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_standardised_in_one_pass_or_three(channels):
    rows = np.arange(256, dtype=np.uint8).repeat(channels).reshape(4, 8, 8, channels)
    shift, factor = np.array([33.3, 0.0, 120.0], np.float32)[:channels], np.array([0.0127, 1, 3], np.float32)[:channels]
    found = tf.function(lambda images: prepare_input(images, shift, factor))(tf.constant(rows)).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, (rows.astype(np.float64) - shift) * factor, rtol=1e-6, atol=2e-5)


def test_rows_already_standardised_stay() -> None:
    rows = tf.constant([[1.0, -2.0]])
    assert prepare_input(rows, None, None) is rows
