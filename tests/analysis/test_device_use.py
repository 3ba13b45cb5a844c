"""What devices do, with planted operations, peaks and energies."""

from dataclasses import replace

import pytest

from harness.analysis.device_use import (
    PEAKS,
    DeviceKind,
    device_uses,
    energy_uses,
    gpu_peak,
    joules_per_row,
    with_device_use,
)
from harness.analysis.scaling import scale
from harness.comm.gpus import Gpu
from harness.schema.record import DeviceEnergy, RunRecord
from tests.labs.factories import launch_frame, make_launch

ROWS = 6400
FLOPS = 2e9
H100 = "NVIDIA H100 80GB HBM3, 81559 MiB, driver 580.159, at most 1980 MHz, 700.00 W"


def used(run: RunRecord, *, gpu: str = "", precision: str = "float32", counted: float | None = 3000.0) -> RunRecord:
    """Return `run` with operations, a GPU and the energy of its device in three epochs."""
    workload = replace(run.point.workload, precision=precision)
    energy = DeviceEnergy(host="n", device="GPU-1", seconds=10.0, samples=11, counter_j=counted)
    ranks = tuple(replace(rank, gpu=gpu) for rank in run.ranks)
    return replace(run, point=replace(run.point, workload=workload), ranks=ranks, flops_per_row=FLOPS, energy=(energy,))


def test_rates_utilisation_and_energy_follow_from_each_other() -> None:
    runs = [used(make_launch(2, repeat, 2.0), gpu=H100, precision="mixed_float16") for repeat in range(6)]
    launches = launch_frame(runs)
    scaling = scale(launches)
    assert scaling
    (use,) = device_uses(runs, launches, scaling, None).values()
    assert use.rows_per_second == pytest.approx(ROWS / 2.0 / 2)
    assert use.tflops == pytest.approx(FLOPS * ROWS / 2.0 / 2 / 1e12)
    assert (use.peak_tflops, use.utilisation) == (989.4, pytest.approx(use.tflops / 989.4))
    assert use.joules_per_row == pytest.approx(3000 / (3 * ROWS))
    assert use.watts == 300
    frame = with_device_use(launches, runs, None)
    assert frame["flop_utilisation"].tolist() == pytest.approx([use.utilisation] * 6)
    assert frame["joules_per_row"].tolist() == pytest.approx([3000 / (3 * ROWS)] * 6)


def test_a_processor_has_a_peak_where_the_user_states_it() -> None:
    runs = [used(make_launch(1, 0, 2.0), counted=None)]
    launches = launch_frame(runs)
    scaling = scale(launches)
    assert scaling
    (unknown,) = device_uses(runs, launches, scaling, None).values()
    assert (unknown.peak_tflops, unknown.utilisation, unknown.joules_per_row) == (None, None, None)
    (stated,) = device_uses(runs, launches, scaling, 0.1).values()
    assert stated.utilisation == pytest.approx(FLOPS * ROWS / 2.0 / 0.1e12)


def test_the_energy_of_a_launch_in_turns_is_its_power_times_its_time() -> None:
    """A launch in turns has counters of 10 s only: 300 W for 4 s of an epoch of 6,400 rows, including interference."""
    runs = [replace(used(make_launch(1, 0, 2.0)), block="b")]
    launches = launch_frame(runs).assign(ran_seconds=4.0)
    assert joules_per_row(launches, runs).tolist() == pytest.approx([300 * 4.0 / ROWS])


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "float32", 494.7),
        ("NVIDIA H100 PCIe", "mixed_bfloat16", 756.5),
        ("NVIDIA H100 NVL", "mixed_float16", 835.5),
        ("NVIDIA H200", "mixed_float16", 989.4),
        ("NVIDIA A100-SXM4-40GB", "mixed_float16", 312.0),
        ("NVIDIA A100 80GB PCIe", "float32", 156.0),
        ("Tesla V100-SXM2-32GB", "mixed_bfloat16", None),
        ("Tesla V100-SXM2-32GB", "float32", 15.7),
        ("NVIDIA L40S", "mixed_float16", 362.0),
        ("NVIDIA L40", "float32", 90.5),
        ("Tesla V100S-PCIE-32GB", "mixed_float16", 130.0),
        ("NVIDIA GH200 120GB", "float32", 494.7),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "mixed_float16", None),
        ("NVIDIA GeForce RTX 3090", "float32", None),
    ],
)
def test_a_gpu_has_its_vendors_peak(name: str, precision: str, peak: float | None) -> None:
    gpu = Gpu(uuid="GPU-1", name=name, driver="1", memory_mib="80000", clock_mhz="1", power_w="1")
    assert gpu_peak(str(gpu), precision) == peak


def test_16_bit_types_are_twice_as_fast_as_tf32() -> None:
    tensor_float = [peak for peak in PEAKS if peak.bfloat16 is not None]
    for peak in tensor_float:
        assert peak.float16 == peak.bfloat16 == pytest.approx(2 * peak.float32, rel=0.015), peak.pattern


# What devices used over the launches of a layout, with planted energies.

GPU = DeviceEnergy(host="node1", device="GPU-1", seconds=10.0, samples=11, counter_j=3000.0)
OTHER_GPU = replace(GPU, device="GPU-2", counter_j=5000.0)
PROCESSOR = DeviceEnergy(host="node1", device="package-0", seconds=10.0, samples=11, counter_j=1000.0)
RUNS = [
    replace(make_launch(2, 0, 1.0), energy=(GPU, OTHER_GPU, PROCESSOR)),
    replace(make_launch(2, 1, 1.0), energy=(GPU, GPU, PROCESSOR)),
    make_launch(1, 0, 2.0),
]


def test_each_kind_of_device_has_its_means() -> None:
    gpus, processors = energy_uses(RUNS)
    assert (gpus.kind, gpus.devices, gpus.launches) == (DeviceKind.GPU, 2, 2)
    assert gpus.joules == pytest.approx((8000 + 6000) / 2)
    assert gpus.watts == pytest.approx((300 + 500 + 300 + 300) / 4)
    assert (processors.kind, processors.joules) == (DeviceKind.PROCESSOR, 1000)


def test_the_energy_of_a_launch_with_a_device_that_is_not_counted_is_not_known() -> None:
    uncounted = replace(OTHER_GPU, counter_j=None)
    (gpus,) = energy_uses([replace(RUNS[0], energy=(GPU, uncounted))])
    assert gpus.joules is None
    assert gpus.watts == 300
