"""The efficiencies of GPUs, of planted parts of the time in which kernels ran."""

from dataclasses import replace

import pytest

from harness.report.device_sections import device_efficiency_table
from harness.schema.energy import DeviceEnergy
from harness.schema.record import RunRecord
from harness.why.device_efficiencies import device_efficiencies, kernel_shares
from tests.labs.factories import make_launch


def busy(run: RunRecord, *shares: float) -> RunRecord:
    """Return `run` with a GPU for each of `shares`, the part of the time in which it ran kernels."""
    gpu = DeviceEnergy(host="n", device="", seconds=10.0, samples=11)
    gpus = [
        replace(gpu, device=f"GPU-{number}", utilisation={"kernels": share, "sm": 0.1})
        for number, share in enumerate(shares)
    ]
    return replace(run, energy=(*gpus, replace(gpu, device="package-0")))


def test_the_parallel_efficiency_is_that_of_the_busiest_times_the_balance() -> None:
    runs = [busy(make_launch(2, 0, 1.0), 0.8, 0.4), busy(make_launch(2, 1, 1.0), 0.5, 0.7), make_launch(2, 2, 1.0)]
    alone, two = device_efficiencies([*runs, busy(make_launch(1, 0, 2.0), 0.9)])
    assert (alone.parallel, alone.load_balance, alone.busiest) == (0.9, 1.0, 0.9)
    assert (two.ranks, two.launches) == (2, 2)
    assert two.parallel == pytest.approx((0.6 + 0.6) / 2)
    assert two.busiest == pytest.approx((0.8 + 0.7) / 2)
    assert two.load_balance * two.busiest == pytest.approx(two.parallel)


def test_a_launch_with_a_gpu_of_unknown_use_has_none() -> None:
    run = busy(make_launch(2, 0, 1.0), 0.8, 0.4)
    unknown = replace(run.energy[1], utilisation={})
    assert kernel_shares(run) == (0.8, 0.4)
    assert kernel_shares(replace(run, energy=(run.energy[0], unknown))) == ()
    assert kernel_shares(make_launch(1, 0, 1.0)) == ()
    assert device_efficiencies([make_launch(1, 0, 1.0)]) == ()


def test_the_table_is_empty_without_gpus_and_has_a_column_for_each_layout() -> None:
    assert device_efficiency_table(()).rows == []
    table = device_efficiency_table(device_efficiencies([busy(make_launch(1, 0, 2.0), 0.9)]))
    assert [len(row) for row in table.rows] == [len(table.headings)] * 3
