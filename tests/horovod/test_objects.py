"""Python objects exchanged between ranks."""

import pytest

from harness.horovod.objects import allgather_object, broadcast_object, broadcast_object_fn

pytestmark = pytest.mark.usefixtures("two_ranks")


def test_an_object_is_the_roots_and_all_are_gathered():
    assert broadcast_object({"epoch": 3}, root_rank=1) == {"epoch": 3}
    assert broadcast_object_fn(root_rank=1)([1]) == [1]
    assert allgather_object("a") == ["a", "a"]
