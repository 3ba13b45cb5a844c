"""Sections of a sweep's page."""

from dataclasses import replace

from harness.analysis.device_use import (
    energy_uses,
)
from harness.report.sweep_sections import energy_table
from harness.schema.record import DeviceEnergy
from tests.labs.factories import make_launch

# What devices used over the launches of a layout, with planted energies.

GPU = DeviceEnergy(host="node1", device="GPU-1", seconds=10.0, samples=11, counter_j=3000.0)
OTHER_GPU = replace(GPU, device="GPU-2", counter_j=5000.0)
PROCESSOR = DeviceEnergy(host="node1", device="package-0", seconds=10.0, samples=11, counter_j=1000.0)
RUNS = [
    replace(make_launch(2, 0, 1.0), energy=(GPU, OTHER_GPU, PROCESSOR)),
    replace(make_launch(2, 1, 1.0), energy=(GPU, GPU, PROCESSOR)),
    make_launch(1, 0, 2.0),
]


def test_the_table_has_a_line_for_each_layout_and_kind() -> None:
    names = {str(RUNS[0].point.layout): "2 ranks"}
    energy = energy_table(energy_uses(RUNS), names)
    assert [row[2] for row in energy.rows] == ["2\N{NO-BREAK SPACE}GPUs", "1\N{NO-BREAK SPACE}processor"]
    assert all(len(row) == len(energy.headings) for row in energy.rows)
