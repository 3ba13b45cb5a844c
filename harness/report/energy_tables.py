"""The energy of a sweep's devices as a table."""

from collections.abc import Mapping, Sequence

from harness.analysis import units
from harness.analysis.energy_use import EnergyUse
from harness.report.answer import Cell, Table
from harness.report.table_cells import NOT_MEASURED, seconds_cell

_ENERGY = (
    "Means over launches, from before the first epoch to after the last, evaluations included; of launches in turns in "
    "their turns. Energy is that of all devices by their own counters (NVML, RAPL)."
)


def energy_table(uses: Sequence[EnergyUse], names: Mapping[str, str]) -> Table:
    """Return a line for every layout and kind of device that has counters; `names` are the layouts' on the page."""
    rows: list[list[str | Cell]] = []
    for use in uses:
        devices = units.plural(use.devices, use.kind)
        place: list[str | Cell] = [str(use.ranks), names[use.layout], devices]
        rows.append([*place, _number(use.joules), seconds_cell(use.seconds), _number(use.watts)])
    headings = ("Ranks", "Layout", "Devices", "Energy\nin J", "Time", "W of a\ndevice")
    return Table(title="Energy of a launch", headings=headings, rows=rows, left=0, texts=(1, 2), note=_ENERGY)


def _number(value: float | None) -> Cell:
    return NOT_MEASURED if value is None else Cell(text=units.significant(value), value=value)
