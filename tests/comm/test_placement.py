"""Ranks that share a GPU test function, never speed."""

from dataclasses import replace

from harness.comm.placement import shared_gpus
from tests.labs.factories import make_ranks


def test_ranks_on_one_gpu_are_a_test_of_function() -> None:
    ranks = make_ranks(4, 64, 1)
    devices = ("GPU-a", "GPU-b", "GPU-a", "GPU-b")
    hosts = ("n1", "n1", "n1", "n2")
    placed = [replace(rank, device=device, host=host) for rank, device, host in zip(ranks, devices, hosts, strict=True)]
    (fault,) = shared_gpus(placed)
    assert fault.startswith("ranks 0 and 2 share GPU GPU-a on n1")
    assert shared_gpus(placed[1:]) == ()
    assert shared_gpus(ranks) == ()
