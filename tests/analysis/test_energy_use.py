"""What devices used over the launches of a layout, with planted energies."""

from dataclasses import replace

import pytest

from harness.analysis.energy_use import DeviceKind, energy_uses
from harness.report.energy_tables import energy_table
from harness.schema.energy import DeviceEnergy
from tests.labs.factories import make_launch

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


def test_the_table_has_a_line_for_each_layout_and_kind() -> None:
    names = {str(RUNS[0].point.layout): "2 ranks"}
    energy = energy_table(energy_uses(RUNS), names)
    assert [row[2] for row in energy.rows] == ["2\N{NO-BREAK SPACE}GPUs", "1\N{NO-BREAK SPACE}processor"]
    assert all(len(row) == len(energy.headings) for row in energy.rows)
