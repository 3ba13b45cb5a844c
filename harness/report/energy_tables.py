"""The energy of a sweep's devices, and the clocks of its GPUs, as tables."""

from collections.abc import Mapping, Sequence

from harness.analysis import units
from harness.analysis.energy_use import DeviceKind, EnergyUse
from harness.report.answer import Cell, Table
from harness.report.table_cells import NOT_MEASURED, seconds_cell

_MINUS = "\N{MINUS SIGN}"
_ENERGY = (
    "Means over launches, from before the first epoch to after the last, evaluations included. Energy is that of all "
    "devices by their own counters (NVML, RAPL), where a GPU has none by the integral of its power, sampled once a "
    "second. The last column is how far that integral is from the counter, where it is most."
)
_CLOCK = (
    "Means over GPUs and launches. The clock is that of the multiprocessors; it was held down by the reasons named, in "
    "so much of the time."
)


def energy_table(uses: Sequence[EnergyUse], names: Mapping[str, str]) -> Table:
    """Return a line for every layout and kind of device that has counters; `names` are the layouts' on the page."""
    rows: list[list[str | Cell]] = []
    for use in uses:
        joules = NOT_MEASURED if use.joules is None else _number(use.joules)
        row: list[str | Cell] = [str(use.ranks), names[use.layout], units.plural(use.devices, use.kind), joules]
        rows.append(
            [*row, seconds_cell(use.seconds), _number(use.watts), _number(use.limit_w), _signed(use.difference)]
        )
    headings = (
        "Ranks",
        "Layout",
        "Devices",
        "Energy\nin J",
        "Time",
        "W of a\ndevice",
        "Limit\nin W",
        "Integral\nto counter",
    )
    return Table(title="Energy of a launch", headings=headings, rows=rows, left=0, texts=(1, 2), note=_ENERGY)


def clock_table(uses: Sequence[EnergyUse], names: Mapping[str, str]) -> Table:
    """Return a line for every layout whose GPUs' clock is known."""
    rows: list[list[str | Cell]] = []
    for use in uses:
        if use.kind is not DeviceKind.GPU or not use.clock_mhz:
            continue
        reasons = [f"{reason} {units.percent(share)}" for reason, share in use.held_down.items()]
        rows.append([str(use.ranks), names[use.layout], _number(use.clock_mhz), ", ".join(reasons) or "never"])
    headings = ("Ranks", "Layout", "Clock\nin MHz", "Held down by")
    return Table(title="Clocks of GPUs", headings=headings, rows=rows, left=0, texts=(1, -1), note=_CLOCK)


def _number(value: float | None) -> Cell:
    return NOT_MEASURED if value is None else Cell(text=units.significant(value), value=value)


def _signed(value: float | None) -> Cell:
    """Return a relative difference in percent with its sign."""
    return NOT_MEASURED if value is None else Cell(text=f"{100 * value:+.1f} %".replace("-", _MINUS), value=value)
