"""NumPy asks objects for `__array__` only where their type hands out no memory."""

import array

import numpy as np
import pytest

from harness.transparent.buffer_slot import BufferSlot


class Numbers(array.array):
    def __array__(self, dtype=None, copy=None):
        return np.array([7.0])


@pytest.mark.parametrize("owner", [bytes, bytearray, memoryview, array.array, np.ndarray])
def test_types_with_memory_have_a_function(owner):
    assert BufferSlot(owner).function


@pytest.mark.parametrize("owner", [int, dict, type("Plain", (), {})])
def test_types_without_memory_have_none(owner):
    assert BufferSlot(owner).function is None


def test_without_it_numpy_asks_the_object_and_with_it_again_no_more():
    slot = BufferSlot(Numbers)
    function = slot.function
    numbers = Numbers("d", [1.0, 2.0])
    slot.function = None
    asked = np.asarray(numbers)
    slot.function = function
    assert asked.tolist() == [7.0]
    assert np.asarray(numbers).tolist() == [1.0, 2.0]
