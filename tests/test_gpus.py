"""Which rank gets which GPU, up to the device boundary: no GPU is needed here."""

import os

import pytest

from harness.base.errors import UserError
from harness.comm.gpus import assign, parse_gpus, select_visible, visible_gpus
from harness.schema.layout import Layout

ANSWER = """\
GPU-aaaa1111-0000, NVIDIA A100-SXM4-40GB, 535.129.03, 40960, 1410, 400.00
GPU-bbbb2222-0000, NVIDIA A100-SXM4-40GB, 535.129.03, 40960, 1410, 400.00
GPU-cccc3333-0000, NVIDIA A100-SXM4-40GB, 535.129.03, 40960, 1410, [N/A]
"""
GPUS = parse_gpus(ANSWER)


def test_the_drivers_answer_is_read():
    assert len(GPUS) == 3
    assert str(GPUS[0]) == "NVIDIA A100-SXM4-40GB, 40960 MiB, driver 535.129.03, at most 1410 MHz, 400.00 W"
    assert parse_gpus("") == ()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, [0, 1, 2]), ("2,0", [2, 0]), ("GPU-bbbb2222", [1]), ("", []), ("-1", []), ("1,-1,0", [1])],
)
def test_visible_devices_are_honoured_in_their_order(visible, expected):
    assert select_visible(GPUS, visible) == tuple(GPUS[number] for number in expected)


def test_a_visible_device_that_is_not_there_is_named():
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES=0,7 names '7', of 3 GPUs here"):
        select_visible(GPUS, "0,7")


def test_ranks_that_see_the_same_gpus_take_one_each_by_local_rank():
    pools = [GPUS] * 3
    assert [assign(pools, rank, host="node1", shared=False) for rank in range(3)] == list(GPUS)


def test_ranks_with_gpus_of_their_own_keep_them():
    pools = [(GPUS[2],), (GPUS[0],)]
    assert [assign(pools, rank, host="node1", shared=False) for rank in range(2)] == [GPUS[2], GPUS[0]]


def test_fewer_gpus_than_ranks_are_refused_or_shared_on_request():
    pools = [GPUS[:2]] * 4
    with pytest.raises(UserError, match="4 ranks on node1 for 2 GPUs: use at most 2 ranks per node"):
        assign(pools, 0, host="node1", shared=False)
    assert [assign(pools, rank, host="node1", shared=True) for rank in range(4)] == [*GPUS[:2]] * 2


def test_a_rank_that_sees_no_gpu_says_so():
    with pytest.raises(UserError, match="local rank 1 on node1 sees none"):
        assign([GPUS[:1], ()], 1, host="node1", shared=False)


def test_no_driver_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="nvidia-smi does not start"):
        visible_gpus()


def test_the_driver_is_asked_and_visible_devices_limit_its_answer(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'X'\n{ANSWER}X\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible_gpus() == (GPUS[1],)


def test_a_rank_has_one_gpu_or_none():
    with pytest.raises(UserError, match="gpus per rank 2 is out of range"):
        Layout(nodes=1, gpus_per_rank=2)
