"""What a sweep launches, in which order, and how long the rest will take.

Pure, but for `build_sweep`, which looks at the data to fingerprint it, and `current`, which looks at the code.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from harness.base.errors import UserError
from harness.comm.launcher import mpi_version
from harness.datasets import locate
from harness.schema.identity import code_identity
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.sweep import Skipped, Sweep
from harness.schema.workload import Workload


def build_sweep(
    workload: Workload,
    *,
    nodes: tuple[int, ...] = (),
    layouts: tuple[Layout, ...] = (),
    repeats: int = 3,
    scaling: str = "strong",
    data_dir: Path | None = None,
    oversubscribe: bool = False,
    settings: tuple[tuple[str, str], ...] = (),
) -> Sweep:
    """Return the sweep of `workload` over `layouts`, or over `nodes` of one rank with one thread each.

    It has the fingerprint of the data found in `data_dir`.

    Raises:
        UserError: a count is out of range, the data is wrong.
    """
    return Sweep(
        workload=workload,
        layouts=layouts or tuple(Layout(nodes=count) for count in nodes),
        repeats=repeats,
        scaling=scaling,
        data_id=locate(workload, data_dir).data_id,
        oversubscribe=oversubscribe,
        settings=settings,
    )


def current(sweep: Sweep) -> Sweep:
    """Return `sweep` of the code as it is now, so that no launch of other code counts as done.

    Raises:
        UserError: a file of the user's code cannot be read.
    """
    return replace(sweep, code=code_identity(sweep.workload, mpi_version()))


def parse_shares(text: str) -> tuple[int, ...]:
    """Parse ``2:1:1``, one part of the rows per rank.

    Raises:
        UserError: it is not a list of counts of at least 1.
    """
    parts = text.split(":")
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UserError(f"SHARES={text} is no list of parts: write one count of at least 1 per rank, such as 2:1:1")
    return tuple(int(part) for part in parts)


def divide(
    layouts: Iterable[Layout], refusal: Callable[[Layout], str | None]
) -> tuple[tuple[Layout, ...], tuple[Skipped, ...]]:
    """Return the layouts that can run and those that cannot; `refusal` gives the reason or None."""
    runnable: list[Layout] = []
    skipped: list[Skipped] = []
    for layout in layouts:
        reason = refusal(layout)
        if reason is None:
            runnable.append(layout)
        else:
            skipped.append(Skipped(layout=layout, reason=reason))
    return tuple(runnable), tuple(skipped)


def launch_order(sweep: Sweep, runnable: Sequence[Layout]) -> tuple[Point, ...]:
    """Return every point of the `runnable` layouts once, in blocks of one repeat each, shuffled inside the block.

    So slow drift of the machine falls on all layouts alike (Hoefler & Belli, SC'15, rule 9). The order is a
    function of the study and the layouts: the same command again goes on where it stopped.
    """
    points = [point for point in sweep.points() if point.layout in runnable]
    ordered: list[Point] = []
    for repeat in range(sweep.repeats):
        block = [point for point in points if point.repeat == repeat]
        random.Random(f"{sweep.name}/{repeat}").shuffle(block)
        ordered += block
    return tuple(ordered)


def time_left(remaining: Iterable[Point], seconds: Mapping[Layout, Sequence[float]]) -> float | None:
    """Return the seconds that `remaining` will take, None before the first launch has ended.

    `seconds` holds the durations of finished launches. A layout takes its own median; one that has not run
    yet, the mean of the other medians.
    """
    medians = {layout: median(values) for layout, values in seconds.items() if values}
    if not medians:
        return None
    other = fmean(medians.values())
    return sum(medians.get(point.layout, other) for point in remaining)


def format_seconds(seconds: float) -> str:
    """Return a duration as people say it: ``42 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
