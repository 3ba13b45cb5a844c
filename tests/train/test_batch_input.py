"""The network's input from stored rows."""

from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from harness.comm.native_library import find_library
from harness.train.batch_input import flip_salt, prepare_input, resident_batch
from tests.labs.sentences import refuses

tf = pytest.importorskip("tensorflow")


@pytest.mark.parametrize(("channels", "gpus"), [(1, []), (1, ["GPU:0"]), (3, [])])
def test_images_are_standardised_in_one_pass_or_three(channels, gpus, monkeypatch):
    """By what a GPU has no kernel for only where there is none."""
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    rows = np.arange(256, dtype=np.uint8).repeat(channels).reshape(4, 8, 8, channels)
    shift, factor = np.array([33.3, 0.0, 120.0], np.float32)[:channels], np.array([0.0127, 1, 3], np.float32)[:channels]
    prepare = tf.function(lambda images: prepare_input(images, shift, factor))
    operations = {
        operation.type for operation in prepare.get_concrete_function(tf.constant(rows)).graph.get_operations()
    }
    assert ("Dequantize" in operations) == (channels == 1 and not gpus)
    found = prepare(tf.constant(rows)).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, (rows.astype(np.float64) - shift) * factor, rtol=1e-6, atol=2e-5)


def test_rows_already_standardised_stay() -> None:
    rows = tf.constant([[1.0, -2.0]])
    assert prepare_input(rows, None, None) is rows


@pytest.mark.parametrize("kind", ["one value", "channels", "features", "floats"])
@pytest.mark.parametrize("mirror", [False, True])
def test_the_native_batch_is_the_plain_one(kind: str, mirror: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if mirror and kind == "floats":
        pytest.skip("only images are mirrored")
    random = np.random.default_rng(3)
    rows = random.integers(0, 256, (40, 5, 6, 3)).astype(np.uint8)
    shape: tuple[int, ...] = {"one value": (1,), "channels": (3,), "features": (5, 6, 3), "floats": (1,)}[kind]
    shift, factor = (None, None) if kind == "floats" else (random.random((2, *shape), np.float32) + 0.5)
    data = SimpleNamespace(
        train_x=random.random((40, 7), np.float32) if kind == "floats" else rows,
        train_y=np.arange(40, dtype=np.int32),
        shift=shift,
        factor=factor,
    )
    order = np.stack([random.permutation(40)[:9] for _ in range(4)]).astype(np.int32)
    assert find_library().library is not None, "there is a compiler where tests run"

    def batches() -> list[npt.NDArray[np.float32]]:
        make = tf.function(resident_batch(data, first=1000, mirror=mirror))
        return [
            part.numpy()
            for step in range(4)
            for part in make(tf.constant(order), tf.constant(step), tf.constant(flip_salt(1, 2), tf.uint32))
        ]

    native = batches()
    monkeypatch.setenv("HARNESS_REDUCTION", "bridge")
    for one, other in zip(native, batches(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert native[0].shape == (9, *data.train_x.shape[1:])
    monkeypatch.delenv("HARNESS_REDUCTION")
    with refuses("there is no", "40", error=tf.errors.InvalidArgumentError):
        resident_batch(data, first=0, mirror=mirror)(tf.constant([[40]]), tf.constant(0), tf.constant(0, tf.uint32))
