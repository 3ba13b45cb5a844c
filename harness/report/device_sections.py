"""What the ranks' devices do, on a sweep's page."""

from collections.abc import Mapping, Sequence

from harness.analysis import units
from harness.analysis.device_use import DeviceUse, EnergyUse, device_uses, energy_uses
from harness.analysis.scaling import PointScaling
from harness.report.answer import Cell, Section, Table
from harness.report.figures import SweepView
from harness.report.table_cells import NOT_MEASURED, percent_cell, seconds_cell
from harness.schema.record import RunRecord

# The energy of a sweep's devices as a table.

_ENERGY_NOTE = (
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
    return Table(title="Energy of a launch", headings=headings, rows=rows, left=0, texts=(1, 2), note=_ENERGY_NOTE)


def _number(value: float | None) -> Cell:
    return NOT_MEASURED if value is None else Cell(text=units.significant(value), value=value)


_TITLE = "What a device does"
_RATE = "A rank's device is its GPU, or the cores that it trains on. "
_FLOPS = (
    "TFLOP/s: the matrix products and convolutions of a training step, forward and backward, counted in its traced "
    "graph, times rows per second. "
)
_ENERGY = "Energy from before the first epoch to after the last, evaluations included: of a row of all ranks, and the "
_ENERGY += "mean power of a device."


def device_sections(runs: Sequence[RunRecord], view: SweepView, stated: float | None) -> list[Section]:
    """Return the section of the devices of `runs`, valid ones; none where neither operations nor energy are known.

    `stated` is the peak of a device in TFLOP/s that the user has given.
    """
    scaling = view.scaling
    uses = device_uses(runs, view.launches, scaling, stated)
    has_flops = any(use.tflops is not None for use in uses.values())
    has_energy = any(use.joules_per_row is not None for use in uses.values())
    if not (has_flops or has_energy):
        return []
    headings = ["Ranks", "Layout", "Rows/s\nof a rank"]
    headings += ["TFLOP/s\nof a rank", "Of the\npeak"] if has_flops else []
    headings += ["J a row", "W of a\ndevice"] if has_energy else []
    rows = []
    for point in scaling.points:
        rows.append(_row(point, uses[point.layout], view.names, has_flops=has_flops, has_energy=has_energy))
    note = _RATE
    note += f"{_FLOPS}{_peak_words(runs, list(uses.values()))}" if has_flops else ""
    note += _ENERGY if has_energy else ""
    table = Table(title=_TITLE, headings=headings, rows=rows, left=0, texts=(1,), note=note)
    energy = energy_table(energy_uses(runs), view.names)
    return [Section(title=_TITLE, name="devices", elements=[table, energy] if energy.rows else [table])]


def _row(
    point: PointScaling, use: DeviceUse, names: Mapping[str, str], *, has_flops: bool, has_energy: bool
) -> list[str | Cell]:
    row: list[str | Cell] = [str(point.ranks), names[point.layout], _number(use.rows_per_second)]
    row += [_number(use.tflops), percent_cell(use.utilisation, 1)] if has_flops else []
    row += [_number(use.joules_per_row), _number(use.watts)] if has_energy else []
    return row


def _peak_words(runs: Sequence[RunRecord], uses: Sequence[DeviceUse]) -> str:
    """Return what the peak is, or how one is stated."""
    peaks = {use.peak_tflops for use in uses if use.peak_tflops is not None}
    if not peaks:
        device = runs[0].ranks[0].gpu.partition(",")[0] or runs[0].provenance.machine.cpu
        return f"No peak is known for {device}: PEAK_TFLOPS= states that of a rank's device. "
    words = " and ".join(units.significant(peak) for peak in sorted(peaks))
    return f"The peak of a rank's device is {words} TFLOP/s, of dense matrix products in {_type(runs[0])}. "


def _type(run: RunRecord) -> str:
    precision = run.point.workload.precision.removeprefix("mixed_")
    is_on_gpu = bool(run.ranks[0].gpu)
    return "float32 (TF32 where the GPU has it)" if precision == "float32" and is_on_gpu else precision
