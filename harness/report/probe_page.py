"""The page of a probe: what communication costs here, what was measured to say so, time and bandwidth drawn."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.analysis import numbers
from harness.base.errors import UserError
from harness.base.files import folder_atomic
from harness.report import render
from harness.report.render import PAGE, Banner, FigureBlock, check_replaceable, distinct, facts, write_figures
from harness.report.svg import MUTED, Picture, draw, mark
from harness.schema.message_cost import ALL, ALLREDUCE, NETWORK, NODE, Cost, Estimate, MessageCosts, Probe

_WIDE = (7.2, 4.2)


def rate(seconds_per_byte: float) -> str:
    """Return a bandwidth: ``12.3 GB/s``, or a dash where the time does not grow with the bytes."""
    if seconds_per_byte <= 0:
        return numbers.NONE
    return f"{numbers.significant(1e-9 / seconds_per_byte)} GB/s"


def span(estimate: Estimate) -> str:
    """Return the interval of a duration, a dash where there is none."""
    if estimate.low is None or estimate.high is None:
        return numbers.NONE
    return f"{numbers.seconds(estimate.low)} to {numbers.seconds(estimate.high)}"


def rate_span(estimate: Estimate) -> str:
    """Return the interval of a bandwidth whose seconds per byte are `estimate`."""
    if estimate.low is None or estimate.high is None:
        return numbers.NONE
    return f"{rate(estimate.high)} to {rate(estimate.low)}"


def doubt(cost: Cost) -> str:
    """Return what is wrong with the line, an empty text where it fits."""
    if cost.good:
        return ""
    return f"bad fit: off by {numbers.percent(cost.worst_error)} at {cost.worst_bytes:,} B; use the times themselves"


def headline(probe: Probe) -> str:
    """Return what a sum over all ranks takes, of the smallest and of the largest message that was measured."""
    usual = probe.by_setting[0]
    cost = usual.find(ALLREDUCE, _widest(usual)) or usual.costs[0]
    small, large = (
        f"{size.bytes:,} B {numbers.seconds(size.seconds.value)} (95 % interval {span(size.seconds)})"
        for size in (cost.sizes[0], cost.sizes[-1])
    )
    return f"{cost.operation.capitalize()} over {numbers.ranks(cost.ranks)}: {small}, {large}."


def write_probe_page(probe: Probe, folder: Path, reports: Path) -> Path:
    """Write ``REPORTS/probes/<name>/index.html`` with its figures and tables, whole or not at all; return its path.

    `folder` holds the probe's record.

    Raises:
        UserError: the page cannot be written, or its folder holds something else.
    """
    target = reports / "probes" / folder.name
    if target.resolve() == folder.resolve():
        raise UserError(f"reports '{reports}' would replace the probe in '{folder}': choose another folder")
    check_replaceable(target)
    blocks = _blocks(probe)
    with folder_atomic(target) as staging:
        write_figures(staging, blocks)
        content = render.page(
            "probe.html.j2",
            headline=headline(probe),
            probe=probe,
            costs=probe.by_setting[0].costs,
            figures=blocks,
            banners=_banners(probe),
            groups=(("Where and with what", _facts(probe)),),
            words={"doubt": doubt, "rate": rate, "rate_span": rate_span, "span": span},
        )
        (staging / PAGE).write_text(content, encoding="utf-8")
    return target / PAGE


def _blocks(probe: Probe) -> tuple[FigureBlock, ...]:
    usual = probe.by_setting[0]
    where = (
        f"{numbers.ranks(probe.ranks)} on {numbers.plural(len(set(probe.hosts)), 'host')}, {probe.mpi_library}. "
        f"Medians of {distinct({len(size.launches) for cost in usual.costs for size in cost.sizes}, ' to ')} launches "
        "each, vertical strokes: 95 % interval; the slowest rank counts."
    )
    texts = {
        "probe-time": (
            "Time",
            f"Time of one call over the bytes of its message; dashed: alpha + beta x bytes. {where}",
        ),
        "probe-bandwidth": ("Bandwidth", f"Bytes of the message over the time of the call. {where}"),
    }
    table = cost_table([usual])
    blocks = [
        FigureBlock(picture=picture, title=texts[picture.name][0], caption=texts[picture.name][1], table=table)
        for picture in cost_pictures(usual.costs)
    ]
    if len(probe.by_setting) > 1:
        level = _widest(usual)
        caption = f"MPI_Allreduce under each setting over the default's time, level {level}. {where}"
        picture = setting_picture(probe.by_setting, ALLREDUCE, level)
        blocks.append(
            FigureBlock(picture=picture, title="Settings", caption=caption, table=cost_table(probe.by_setting))
        )
    return tuple(blocks)


def _widest(network: MessageCosts) -> str:
    return next(level for level in (ALL, NETWORK, NODE) if level in network.levels)


def _banners(probe: Probe) -> Sequence[Banner]:
    doubts = [f"The times are not valid: {reason}." for reason in probe.invalid]
    bad = [cost for cost in probe.by_setting[0].costs if not cost.good]
    if bad:
        names = distinct(f"{cost.operation} ({cost.level})" for cost in bad)
        doubts.append(f"No straight line describes {names}: use the measured times, not alpha and beta.")
    notes = [note[0].upper() + note[1:] + "." for note in probe.notes]
    return tuple(Banner(kind="warning", text=text) for text in (*doubts, *notes))


def _facts(probe: Probe) -> object:
    machine = probe.machine
    return facts(
        [
            ("Measured (UTC)", numbers.moment(probe.measured)),
            ("Hosts", distinct(f"{host} ({numbers.ranks(probe.hosts.count(host))})" for host in probe.hosts)),
            ("Processor", f"{machine.cpu}, {numbers.plural(machine.cores, 'core')}"),
            ("System", machine.os),
            ("MPI", probe.mpi_library),
            ("Launcher", probe.launcher),
            ("Settings", distinct(network.setting.name for network in probe.by_setting)),
        ]
    )


def cost_pictures(costs: Sequence[Cost]) -> tuple[Picture, ...]:
    """Return ``probe-time`` and ``probe-bandwidth`` of every operation and level."""
    return (
        draw("probe-time", "Time of a message over its size", lambda axes: _times(axes, costs), _WIDE),
        draw("probe-bandwidth", "Bandwidth over message size", lambda axes: _bandwidths(axes, costs), _WIDE),
    )


def setting_picture(networks: Sequence[MessageCosts], operation: str, level: str) -> Picture:
    """Return ``probe-settings``: the time of `operation` under each setting over that under the default."""

    def paint(axes: Axes) -> None:
        base = networks[0].find(operation, level)
        assert base is not None
        axes.axhline(1.0, color=MUTED.light, linewidth=1.0)
        for number, network in enumerate(networks[1:]):
            cost = network.find(operation, level)
            if cost is None:
                continue
            usual = {size.bytes: size.seconds.value for size in base.sizes}
            x = [size.bytes for size in cost.sizes if size.bytes in usual]
            y = [size.seconds.value / usual[size.bytes] for size in cost.sizes if size.bytes in usual]
            look = mark(number)
            axes.plot(
                x, y, color=look.colour, marker=look.marker, linestyle=look.dashes, markersize=3.5,
                label=network.setting.name,
            )  # fmt: skip
        _size_axis(axes)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_ylabel("Time over the default's")

    return draw("probe-settings", f"Settings of the MPI library compared by {operation}", paint, _WIDE)


def cost_table(networks: Iterable[MessageCosts]) -> pd.DataFrame:
    """Return one row for each setting, operation, level and size: bytes, median seconds, interval, the line's value."""
    rows = [
        {"setting": network.setting.name, "operation": cost.operation, "level": cost.level, "ranks": cost.ranks}
        | {"bytes": size.bytes, "launches": len(size.launches), "seconds": size.seconds.value}
        | {"low": size.seconds.low, "high": size.seconds.high, "line_seconds": cost.line(size.bytes)}
        for network in networks
        for cost in network.costs
        for size in cost.sizes
    ]
    return pd.DataFrame(rows)


def _times(axes: Axes, costs: Sequence[Cost]) -> None:
    def line(cost: Cost, colour: str) -> None:
        x = [size.bytes for size in cost.sizes]
        axes.plot(x, [cost.line(count) * 1e6 for count in x], color=colour, linewidth=0.8, linestyle=(0, (4, 2)))

    _curves(axes, costs, lambda count, seconds: seconds * 1e6, line)
    axes.set_yscale("log")
    axes.set_ylabel("Time of a call (µs)")


def _bandwidths(axes: Axes, costs: Sequence[Cost]) -> None:
    _curves(axes, costs, lambda count, seconds: count / seconds / 1e9, None)
    axes.set_ylabel("Bytes of the message over its time (GB/s)")
    axes.set_ylim(bottom=0)


def _curves(
    axes: Axes,
    costs: Sequence[Cost],
    value: Callable[[int, float], float],
    extra: Callable[[Cost, str], None] | None,
) -> None:
    """Draw the median of every size with its interval."""
    for number, cost in enumerate(costs):
        look = mark(number)
        x = [size.bytes for size in cost.sizes]
        y = [value(size.bytes, size.seconds.value) for size in cost.sizes]
        label = f"{cost.operation}, {cost.level}"
        axes.plot(
            x, y, color=look.colour, marker=look.marker, markersize=3.2, linewidth=1.0, linestyle=look.dashes,
            label=label,
        )  # fmt: skip
        for size in cost.sizes:
            if size.seconds.low is not None and size.seconds.high is not None:
                ends = [value(size.bytes, size.seconds.low), value(size.bytes, size.seconds.high)]
                axes.plot([size.bytes, size.bytes], ends, color=look.colour, linewidth=1.0)
        if extra:
            extra(cost, look.colour)
    _size_axis(axes)


def _size_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _bytes(value)))
    axes.set_xlabel("Message size")


def _bytes(value: float) -> str:
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{numbers.count(value / size)} {unit}"
    return f"{numbers.count(value)} B"
