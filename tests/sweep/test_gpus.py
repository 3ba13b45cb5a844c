"""Which rank gets which GPU, up to the device boundary: no GPU is needed here."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.common_options import parse_counts
from harness.comm.gpus import (
    assign,
    choose_near,
    cuda_devices,
    near_node,
    node_of_cores,
    parse_gpus,
    select_visible,
    visible_gpus,
    with_instances,
)
from harness.schema.layout import Layout
from harness.schema.record import read_run
from harness.sweep.plan import Axes, combine
from harness.sweep.schedulers import local as local_scheduler
from harness.sweep.schedulers.local import Scheduler
from tests.labs.sentences import refuses, says

ANSWER = """\
GPU-aaaa1111-0000, NVIDIA A100-SXM4-40GB, 535.129.03, 40960, 1410, 400.00, 00000000:17:00.0
GPU-bbbb2222-0000, NVIDIA A100-SXM4-40GB, 535.129.03, 40960, 1410, 400.00, 00000000:65:00.0
GPU-cccc3333-0000, NVIDIA A100-SXM4-40GB, 535.129.03, 40960, 1410, [N/A], 00000000:B3:00.0
"""
GPUS = parse_gpus(ANSWER)


def test_the_drivers_answer_is_read():
    assert len(GPUS) == 3
    gpu = GPUS[0]
    facts = (gpu.name, gpu.memory_mib, gpu.driver, gpu.clock_mhz, gpu.power_w)
    assert facts == ("NVIDIA A100-SXM4-40GB", "40960", "535.129.03", "1410", "400.00")
    says(f"{gpu}", "MiB, driver", *facts[1:])
    assert str(gpu).startswith(gpu.name)
    assert parse_gpus("") == ()


def test_what_a_gpu_is_cut_into_takes_its_place():
    listing = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa1111-0000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb2222-0000)
  MIG 3g.20gb     Device  0: (UUID: MIG-dddd4444-0000)
  MIG 1g.5gb+me   Device  1: (UUID: MIG-eeee5555-0000)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-cccc3333-0000)
"""
    found = with_instances(GPUS, listing)
    assert [gpu.uuid[:5] for gpu in found] == ["GPU-a", "MIG-d", "MIG-e", "GPU-c"]
    assert (found[2].name, found[2].memory_mib) == (f"{GPUS[1].name} MIG 1g.5gb+me", "5120")
    assert select_visible(found, "MIG-eeee5555-0000,MIG-dddd4444-0000") == (found[2], found[1])
    assert with_instances(GPUS, "") == GPUS


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, [0, 1, 2]), ("2,0", [2, 0]), ("GPU-bbbb2222", [1]), ("", []), ("-1", []), ("1,-1,0", [1])],
)
def test_visible_devices_are_honoured_in_their_order(visible, expected):
    assert select_visible(GPUS, visible) == tuple(GPUS[number] for number in expected)


def test_a_visible_device_that_is_not_there_is_named():
    with refuses("CUDA_VISIBLE_DEVICES=0", "7", "3"):
        select_visible(GPUS, "0,7")


def test_ranks_that_see_the_same_gpus_take_one_each_by_local_rank():
    pools = [GPUS] * 3
    assert [assign(pools, rank, host="node1", shared=False) for rank in range(3)] == list(GPUS)


def test_ranks_with_gpus_of_their_own_keep_them():
    pools = [(GPUS[2],), (GPUS[0],)]
    assert [assign(pools, rank, host="node1", shared=False) for rank in range(2)] == [GPUS[2], GPUS[0]]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([0, 0, 1], [0, 2, 1]),  # GPU 1 is on node 1, the others on node 0
        ([1, 0, 0], [1, 0, 2]),
        ([1, 1, 0], [1, 2, 0]),  # the second rank takes what is left
        ([None, None, None], [0, 1, 2]),
        ([3, 1], [0, 1]),
    ],
)
def test_a_rank_takes_a_gpu_near_its_cores(nodes, expected):
    gpus = [replace(gpu, node=node) for gpu, node in zip(GPUS, (0, 1, 0), strict=True)]
    assert choose_near(gpus, nodes) == [gpus[number] for number in expected]
    pools = [tuple(gpus)] * len(nodes)
    assert [assign(pools, rank, host="n", shared=False, nodes=nodes) for rank in range(len(nodes))] == [
        gpus[number] for number in expected
    ]


def test_the_system_says_where_cores_and_gpus_are(tmp_path):
    for node, cores in (("node0", "0-3,8\n"), ("node1", "4-7\n")):
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(cores)
    nodes = [node_of_cores(frozenset(cores), tmp_path) for cores in ({1, 8}, {4}, {3, 4}, {9})]
    assert nodes == [0, 1, None, None]
    for bus, number in (("0000:b3:00.0", "1\n"), ("0000:17:00.0", "-1\n")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "numa_node").write_text(number)
    assert [near_node(gpu.bus, tmp_path) for gpu in GPUS] == [None, None, 1]


def test_cuda_sees_all_gpus_of_the_node_but_of_scripts_and_instances():
    seen = tuple(gpu.uuid for gpu in GPUS)
    gpu = replace(GPUS[1], seen=seen)
    assert cuda_devices(gpu, alone=False) == seen
    assert cuda_devices(gpu, alone=True) == (gpu.uuid,)
    assert cuda_devices(GPUS[1], alone=False) == (gpu.uuid,)
    instance = replace(gpu, uuid="MIG-1", seen=("MIG-1", "MIG-2"))
    assert cuda_devices(instance, alone=False) == ("MIG-1",)


def test_fewer_gpus_than_ranks_are_refused_or_shared_on_request():
    pools = [GPUS[:2]] * 4
    with refuses("GPUs: use at most", "4", "2"):
        assign(pools, 0, host="node1", shared=False)
    assert [assign(pools, rank, host="node1", shared=True) for rank in range(4)] == [*GPUS[:2]] * 2


def test_a_rank_that_sees_no_gpu_says_so():
    with refuses("asked for, but local", "1"):
        assign([GPUS[:1], ()], 1, host="node1", shared=False)


def test_no_driver_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with refuses("for, but the driver"):
        visible_gpus()


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """Put a driver that knows of three GPUs first on PATH."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'X'\n{ANSWER}X\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_the_driver_is_asked_and_visible_devices_limit_its_answer(monkeypatch, driver):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible_gpus() == (GPUS[1],)


@pytest.mark.parametrize(("counts", "ranks"), [("2", [2]), ("1..3", [1, 2, 3])])
def test_a_sweep_on_this_machine_takes_as_many_gpus_as_the_driver_shows(driver, counts, ranks):
    local = Scheduler()
    layouts, _ = combine(Axes(gpus=parse_counts("GPUS", counts)), local.limit())
    assert [(each.nodes, each.ranks, each.gpus_per_rank) for each in layouts] == [(1, count, 1) for count in ranks]
    many = Layout(nodes=1, ranks_per_node=4, gpus_per_rank=1)
    says(local.refusal(many), "a GPU for every", 4, 3)
    assert local.refusal(Layout(nodes=1)) is None


def test_without_a_driver_no_layout_with_gpus_can_run(monkeypatch):
    monkeypatch.setattr(local_scheduler, "visible_gpus", lambda: select_visible((), "0"))
    local = Scheduler(oversubscribe=True)
    says(local.refusal(Layout(nodes=1, gpus_per_rank=1)), "for every rank", "GPU", 1, 0)
    with refuses("--gpus", "--ranks-per-node:"):
        combine(Axes(gpus=(1, 2)), local.limit())


# In the place of CUDA's libraries: TensorFlow says that it sees whichever GPU the process may use.
SEEN = """
import os
if "OMPI_COMM_WORLD_RANK" in os.environ:
    import keras
    import tensorflow as tf
    config, look = tf.config, tf.config.list_physical_devices
    gpu = config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    def find(kind=None):
        return [gpu] * os.environ["CUDA_VISIBLE_DEVICES"].startswith("GPU-") if kind == "GPU" else look(kind)
    config.list_physical_devices, config.experimental.set_memory_growth = find, lambda device, on: None
"""
SCRIPT = Path(__file__).parents[1] / "scripts" / "fit_arrays.py"


def run(tmp_path, ranks, script):
    switches = ("-n", ranks, "--gpus-per-rank", "1", "--unjudged", "--record", "record")
    words = (sys.executable, "-m", "harness", "run", *switches, script)
    changes = {"PYTHONPATH": f"{tmp_path}:{SCRIPT.parents[2]}", "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "2,0"}
    return subprocess.run(
        words, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **changes}, check=False
    )


@pytest.mark.mpi
@pytest.mark.e2e
def test_each_rank_of_a_script_takes_a_gpu_of_its_own_whatever_the_script_chooses(driver, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SEEN)
    script = tmp_path / "train.py"
    script.write_text("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\n" + SCRIPT.read_text())
    finished = run(tmp_path, "2", script)
    assert finished.returncode == 0, finished.stderr[-3000:]
    record = read_run(tmp_path / "record")
    assert [(rank.device, rank.gpu) for rank in record.ranks] == [(gpu.uuid, str(gpu)) for gpu in (GPUS[2], GPUS[0])]
    assert record.point.layout.gpus_per_rank == 1
    assert record.provenance.machine.gpus == (str(GPUS[2]), str(GPUS[0]))


def test_a_rank_has_one_gpu_or_none():
    with refuses("of range: a rank", "2"):
        Layout(nodes=1, gpus_per_rank=2)
