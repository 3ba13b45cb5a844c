"""The page of a probe: what communication costs here, what was measured to say so, time and bandwidth drawn."""

from collections.abc import Sequence
from pathlib import Path

from harness.analysis import numbers
from harness.base.errors import UserError
from harness.report.answer import Banner, Fact, FigureBlock, Tile, facts
from harness.report.launch_summary import commit_words, core_hours, machine_words
from harness.report.probe_figures import cost_pictures, cost_table, setting_picture, size_words
from harness.report.publish import Page, PageSummary, publish
from harness.report.render import Head, distinct
from harness.schema.message_cost import ALL, ALLREDUCE, NETWORK, NODE, Estimate, MessageCost, MessageCosts, Probe


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


def doubt(cost: MessageCost) -> str:
    """Return what is wrong with the line, an empty text where it fits."""
    if cost.good:
        return ""
    return f"bad fit: off by {numbers.percent(cost.worst_error)} at {cost.worst_bytes:,} B; use the times themselves"


def headline(probe: Probe) -> str:
    """Return what a sum over all ranks takes, of the smallest and of the largest message that was measured."""
    usual = probe.by_setting[0]
    cost = usual.find(ALLREDUCE, _widest(usual)) or usual.costs[0]
    small, large = (
        f"{size_words(size.bytes)} take {numbers.seconds(size.seconds.value)} (95 % interval {span(size.seconds)})"
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
    blocks = _blocks(probe)
    head = _head(probe)
    page = Page(
        place=f"probes/{folder.name}",
        template="probe.html.j2",
        summary=PageSummary(
            kind="probe", title=f"Messages between {numbers.ranks(probe.ranks)}", answer=head.answer,
            when=probe.measured, machine=machine_words(probe.machine),
        ),
        head=head,
        values={
            "probe": probe,
            "costs": probe.by_setting[0].costs,
            "figures": blocks,
            "banners": _banners(probe),
            "words": {"doubt": doubt, "rate": rate, "rate_span": rate_span, "span": span},
        },
        figures=blocks,
    )  # fmt: skip
    return publish(page, reports, folder.resolve().parents[1])


def _head(probe: Probe) -> Head:
    """Return the first screen: what the allreduce over all ranks costs."""
    return Head(
        question="What do messages between ranks cost here?",
        answer=headline(probe),
        tiles=tuple(
            Tile(name=f"{one.name}, {one.where}", value=rate(one.beta_s_per_byte.value), detail=_latency(one))
            for one in probe.by_setting[0].costs[:5]
        ),
        facts=_facts(probe),
        command=f"make probe RANKS={probe.ranks}" if len(set(probe.hosts)) == 1 else "",
    )


def _latency(cost: MessageCost) -> str:
    found = span(cost.alpha_s)
    return f"latency {numbers.seconds(cost.alpha_s.value)}" + (f" ({found})" if found != numbers.NONE else "")


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
        names = distinct(f"{cost.name} ({cost.where})" for cost in bad)
        doubts.append(f"No straight line describes {names}: use the measured times, not alpha and beta.")
    notes = [note[0].upper() + note[1:] + "." for note in probe.notes]
    return tuple(Banner(kind="warning", text=text) for text in (*doubts, *notes))


def _facts(probe: Probe) -> tuple[Fact, ...]:
    machine = probe.machine
    return facts(
        [
            ("Machine", machine_words(machine)),
            ("Date", f"{numbers.moment(probe.measured)} UTC"),
            ("Hosts", distinct(f"{host} ({numbers.ranks(probe.hosts.count(host))})" for host in probe.hosts)),
            ("System", machine.os),
            ("MPI", probe.mpi_library),
            ("Launcher", probe.launcher),
            ("Settings", distinct(network.setting.name for network in probe.by_setting)),
            ("Commit", commit_words(probe)),
            ("MessageCost", core_hours(probe.core_seconds) if probe.core_seconds else ""),
        ]
    )
