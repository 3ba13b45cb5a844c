"""What a probe found, as an answer: what messages cost here, the best setting of each workload, time and bandwidth."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from harness.analysis import units
from harness.base.exit_codes import UNDECIDED
from harness.base.own_matplotlib import Axes, ticker
from harness.probe.tuning import TunedSetting, fastest_allreduce
from harness.report.answer import (
    Answer,
    Banner,
    Cell,
    Fact,
    PageFigure,
    Section,
    Table,
    distinct,
    facts,
)
from harness.report.run_words import commit_words, core_hours, machine_words
from harness.report.svg import MUTED, Picture, draw, mark
from harness.schema.claim import EXPERIMENTS
from harness.schema.message_cost import ALLREDUCE, Estimate, MessageCost, MessageCosts, Probe

_WIDE = (7.2, 4.2)  # inches
_FIT_NOTE = (
    "Seconds of a call = alpha + beta x bytes, fitted to the medians with equal relative weights. For a collective "
    "they are of the whole call on these ranks, for point-to-point of one message. A line that is off by more than "
    "25 % somewhere does not describe the operation."
)


def probe_answer(probe: Probe, folder: Path, best: Mapping[str, TunedSetting]) -> Answer:
    """Return what `probe`, whose record is in `folder`, says; `best` are the `best_settings` of workloads."""
    costs = probe.by_setting[0].costs
    is_one_host = len(set(probe.hosts)) == 1
    chosen = [
        {"workload": name, "bytes": EXPERIMENTS[name].weights_bytes, "seconds": choice.seconds}
        | {"usual_s": choice.usual_s, "environment": choice.environment}
        for name, choice in best.items()
    ]
    texts = [f"The times are not valid: {reason}." for reason in probe.invalid]
    bad = [cost for cost in probe.by_setting[0].costs if not cost.good]
    if bad:
        names = distinct(
            f"{cost.name} ({cost.where}, off by {units.percent(cost.worst_error)} at {cost.worst_bytes:,} B)"
            for cost in bad
        )
        texts.append(f"No straight line describes {names}: use the measured times, not alpha and beta.")
    texts += [note[0].upper() + note[1:] + "." for note in probe.notes]
    return Answer(
        question="What do messages between ranks cost here?",
        sentence=_headline(probe),
        code=UNDECIDED if probe.invalid else 0,
        table=_cost_table(costs),
        data={"probe": folder, "costs": costs, "best": chosen, "invalid": probe.invalid},
        banners=tuple(Banner(kind="warning", text=text) for text in texts),
        tiles=[
            Fact(
                name=f"{cost.name}, {cost.where}",
                value=_rate(cost.beta_s_per_byte.value),
                detail=f"latency {Cell(text=units.seconds(cost.alpha_s.value), note=_span(cost.alpha_s))}",
            )
            for cost in costs[:5]
        ],
        facts=_probe_facts(probe),
        sections=[
            Section(title="Latency and bandwidth", name="fits", elements=[_cost_table(costs), *_figures(probe)]),
            Section(title="Best settings", name="best", elements=[settings_table(best)] if best else []),
        ],
        command=f"harness probe --ranks {probe.ranks}" if is_one_host else "",
        kind="probe",
        place=f"probes/{folder.name}",
        title=f"Messages between {units.ranks(probe.ranks)}",
        when=probe.measured,
        machine=machine_words(probe.machine),
    )


def _probe_facts(probe: Probe) -> tuple[Fact, ...]:
    return facts(
        [
            ("Machine", machine_words(probe.machine)),
            ("Date", f"{units.moment(probe.measured)} UTC"),
            ("Hosts", distinct(f"{host} ({units.ranks(probe.hosts.count(host))})" for host in probe.hosts)),
            ("System", probe.machine.os),
            ("MPI", probe.mpi_library),
            ("Launcher", probe.launcher),
            ("Settings", distinct(network.setting.name for network in probe.by_setting)),
            ("Commit", commit_words(probe)),
            ("Cost", core_hours(probe.core_seconds) if probe.core_seconds else ""),
        ]
    )


def best_settings(probe: Probe, workloads: Sequence[str]) -> dict[str, TunedSetting]:
    """Return the best setting of each of the `workloads` whose number of bytes was measured, none of invalid times.

    Raises:
        UserError: the probe holds no allreduce.
    """
    if probe.invalid:
        return {}
    measured = max(size.bytes for cost in probe.by_setting[0].costs for size in cost.sizes)
    sizes = {name: EXPERIMENTS[name].weights_bytes for name in workloads}
    return {name: fastest_allreduce(probe, size) for name, size in sizes.items() if size <= measured}


def settings_table(best: Mapping[str, TunedSetting]) -> Table:
    """Return the best setting of each workload and what an allreduce of its gradients takes with it."""
    rows = []
    for name, choice in best.items():
        low, high = (choice.gain.interval.low, choice.gain.interval.high) if choice.gain else (1.0, 1.0)
        times = f", {choice.usual_s / choice.seconds:.2f} times as fast ({1 / high:.2f} to {1 / low:.2f})"
        gain = times if choice.gain else ""
        size = units.count(EXPERIMENTS[name].weights_bytes)
        rows.append((name, size, units.seconds(choice.seconds), f"{choice}{gain}"))
    return Table(title="Best settings", headings=("Workload", "Bytes", "An allreduce", "Best setting"), rows=rows)


def _headline(probe: Probe) -> str:
    """Return what an allreduce over all ranks takes, of the smallest and of the largest message that was measured."""
    if probe.invalid:
        return f"No times are valid, so none are used and no setting is recommended: {probe.invalid[0]}. Probe again."
    usual = probe.by_setting[0]
    cost = usual.find(ALLREDUCE, usual.widest) or usual.costs[0]
    few = f"{units.plural(len(cost.sizes[0].launches), 'launch')}, too few for an interval"
    small, large = (
        f"{_size_words(size.bytes)} take {units.seconds(size.seconds.value)} "
        f"({f'95 % CI {_span(size.seconds)}' if _span(size.seconds) else few})"
        for size in (cost.sizes[0], cost.sizes[-1])
    )
    return f"{cost.operation.capitalize()} over {units.ranks(cost.ranks)}: {small}, {large}."


def _rate(seconds_per_byte: float) -> str:
    """Return a bandwidth: ``12.3 GB/s``, or a dash where the time does not grow with the bytes."""
    if seconds_per_byte <= 0:
        return units.NONE
    return f"{units.significant(1e-9 / seconds_per_byte)} GB/s"


def _span(estimate: Estimate, words: Callable[[float], str] = units.seconds) -> str:
    """Return the interval of a duration, or with `_rate` of a bandwidth; empty where there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    low, high = (estimate.high, estimate.low) if words is _rate else (estimate.low, estimate.high)
    return f"{words(low)} to {words(high)}"


def fit_warning(cost: MessageCost) -> str:
    """Return what is wrong with the line, empty where it fits."""
    if cost.good:
        return ""
    worst = f"off by {units.percent(cost.worst_error)} at {cost.worst_bytes:,} B"
    return f"no single latency and bandwidth describe this: {worst}"


def _cost_table(costs: Iterable[MessageCost]) -> Table:
    return Table(
        title="Latency and bandwidth",
        headings=(
            "Operation",
            "Where",
            "Ranks",
            "Latency\n(alpha)",
            "Bandwidth\n(1 / beta)",
            "Largest error\nof the line",
            "Remarks",
        ),
        rows=[
            (
                cost.name,
                cost.where,
                str(cost.ranks),
                Cell(text=units.seconds(cost.alpha_s.value), note=_span(cost.alpha_s), value=cost.alpha_s.value),
                Cell(
                    text=_rate(cost.beta_s_per_byte.value),
                    note=_span(cost.beta_s_per_byte, _rate),
                    value=-cost.beta_s_per_byte.value,
                ),
                units.percent(cost.worst_error),
                fit_warning(cost),
            )
            for cost in costs
        ],
        left=2,
        note=_FIT_NOTE,
        wide=(5, 6),
    )


def _figures(probe: Probe) -> Iterator[PageFigure]:
    usual = probe.by_setting[0]
    where = (
        f"{units.ranks(probe.ranks)} on {units.plural(len(set(probe.hosts)), 'host')}, {probe.mpi_library}. "
        f"Medians of {distinct({len(size.launches) for cost in usual.costs for size in cost.sizes}, ' to ')} launches "
        "each, error bars: 95 % CI of this session only; the slowest rank counts."
    )
    table = _times_frame([usual])
    yield PageFigure(
        picture=_cost_picture(usual.costs, bandwidth=False),
        title="Time",
        caption=f"Time of one call over the bytes of its message; dashed: alpha + beta x bytes. {where}",
        table=table,
    )
    yield PageFigure(
        picture=_cost_picture(usual.costs, bandwidth=True),
        title="Bandwidth",
        caption=f"Bytes of the message over the time of the call. {where}",
        table=table,
    )
    if len(probe.by_setting) > 1:
        yield PageFigure(
            picture=_setting_picture(probe.by_setting),
            title="Settings",
            caption=f"MPI_Allreduce under each setting over the default's time, level {usual.widest}. {where}",
            table=_times_frame(probe.by_setting),
        )


def _cost_picture(costs: Sequence[MessageCost], *, bandwidth: bool) -> Picture:
    """Return ``probe-time`` or ``probe-bandwidth``: the median of every size, with its interval, of every operation."""

    def value(count: int, seconds: float) -> float:
        return count / seconds / 1e9 if bandwidth else seconds * 1e6

    def paint(axes: Axes) -> None:
        for number, cost in enumerate(costs):
            style = mark(number)
            sizes = [size.bytes for size in cost.sizes]
            axes.plot(
                sizes,
                [value(size.bytes, size.seconds.value) for size in cost.sizes],
                color=style.colour,
                marker=style.marker,
                markersize=3.2,
                linewidth=1.0,
                linestyle=style.dashes,
                label=f"{cost.name}, {cost.where}",
            )
            for size in cost.sizes:
                if size.seconds.low is not None and size.seconds.high is not None:
                    ends = [value(size.bytes, size.seconds.low), value(size.bytes, size.seconds.high)]
                    axes.plot([size.bytes, size.bytes], ends, color=style.colour, linewidth=1.0)
            if not bandwidth:
                line = [cost.line(count) * 1e6 for count in sizes]
                axes.plot(sizes, line, color=style.colour, linewidth=0.8, linestyle=(0, (4, 2)))
        _size_axis(axes)
        if bandwidth:
            axes.set_ylim(bottom=0)
        else:
            axes.set_yscale("log")
        axes.set_ylabel("Bytes of the message over its time (GB/s)" if bandwidth else "Time of a call (µs)")

    spoken = []
    for cost in costs:
        size = cost.sizes[-1]
        rate = f"{units.significant(size.bytes / size.seconds.value / 1e9)} GB/s"
        value_words = rate if bandwidth else units.seconds(size.seconds.value)
        spoken.append(f"{cost.name}, {cost.where}, {_size_words(size.bytes)}: {value_words}")
    name, title = (
        ("bandwidth", "Bandwidth over message size") if bandwidth else ("time", "Time of a message over its size")
    )
    return draw(f"probe-{name}", title, paint, _WIDE, numbers="; ".join(spoken))


def _setting_picture(networks: Sequence[MessageCosts]) -> Picture:
    """Return ``probe-settings``: the time of an allreduce under each setting over that under the default."""

    def paint(axes: Axes) -> None:
        level = networks[0].widest
        base = networks[0].find(ALLREDUCE, level)
        assert base is not None
        axes.axhline(1.0, color=MUTED.light, linewidth=1.0)
        for number, network in enumerate(networks[1:]):
            cost = network.find(ALLREDUCE, level)
            if cost is None:
                continue
            usual = {size.bytes: size.seconds.value for size in base.sizes}
            x = [size.bytes for size in cost.sizes if size.bytes in usual]
            y = [size.seconds.value / usual[size.bytes] for size in cost.sizes if size.bytes in usual]
            style = mark(number)
            axes.plot(
                x,
                y,
                color=style.colour,
                marker=style.marker,
                linestyle=style.dashes,
                markersize=3.5,
                label=network.setting.name,
            )
        _size_axis(axes)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_ylabel("Time over the default's")

    return draw("probe-settings", f"Settings of the MPI library compared by {ALLREDUCE}", paint, _WIDE)


def _times_frame(networks: Iterable[MessageCosts]) -> pd.DataFrame:
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


def _size_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(ticker.LogLocator(base=2, numticks=9))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _size_words(value)))
    axes.set_xlabel("Message size")


def _size_words(value: float) -> str:
    """Return a message's size: ``64 KiB``."""
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{units.count(value / size)} {unit}"
    return f"{units.count(value)} B"
