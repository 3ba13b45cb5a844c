"""The figures of a probe: time and bandwidth over message size, and settings of the MPI library side by side."""

from collections.abc import Callable, Iterable, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.analysis import numbers
from harness.report.svg import MUTED, Picture, draw, mark
from harness.schema.message_cost import MessageCost, MessageCosts

_WIDE = (7.2, 4.2)


def cost_pictures(costs: Sequence[MessageCost]) -> tuple[Picture, ...]:
    """Return ``probe-time`` and ``probe-bandwidth`` of every operation and level."""
    largest = [(f"{cost.name}, {cost.where}, {size_words(cost.sizes[-1].bytes)}", cost.sizes[-1]) for cost in costs]
    times = "; ".join(f"{name}: {numbers.seconds(size.seconds.value)}" for name, size in largest)
    rates = "; ".join(
        f"{name}: {numbers.significant(size.bytes / size.seconds.value / 1e9)} GB/s" for name, size in largest
    )
    return (
        draw("probe-time", "Time of a message over its size", lambda axes: _times(axes, costs), _WIDE, numbers=times),
        draw(
            "probe-bandwidth",
            "Bandwidth over message size",
            lambda axes: _bandwidths(axes, costs),
            _WIDE,
            numbers=rates,
        ),
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


def _times(axes: Axes, costs: Sequence[MessageCost]) -> None:
    def line(cost: MessageCost, colour: str) -> None:
        x = [size.bytes for size in cost.sizes]
        axes.plot(x, [cost.line(count) * 1e6 for count in x], color=colour, linewidth=0.8, linestyle=(0, (4, 2)))

    _curves(axes, costs, lambda count, seconds: seconds * 1e6, line)
    axes.set_yscale("log")
    axes.set_ylabel("Time of a call (µs)")


def _bandwidths(axes: Axes, costs: Sequence[MessageCost]) -> None:
    _curves(axes, costs, lambda count, seconds: count / seconds / 1e9, None)
    axes.set_ylabel("Bytes of the message over its time (GB/s)")
    axes.set_ylim(bottom=0)


def _curves(
    axes: Axes,
    costs: Sequence[MessageCost],
    value: Callable[[int, float], float],
    extra: Callable[[MessageCost, str], None] | None,
) -> None:
    """Draw the median of every size with its interval."""
    for number, cost in enumerate(costs):
        look = mark(number)
        x = [size.bytes for size in cost.sizes]
        y = [value(size.bytes, size.seconds.value) for size in cost.sizes]
        label = f"{cost.name}, {cost.where}"
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
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_words(value)))
    axes.set_xlabel("Message size")


def size_words(value: float) -> str:
    """Return a message's size: ``64 KiB``."""
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{numbers.count(value / size)} {unit}"
    return f"{numbers.count(value)} B"
