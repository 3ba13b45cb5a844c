"""The measured base of a prediction: one workload's launches on the fewest ranks."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.analysis.calls import read_calls
from harness.analysis.frames import launch_frame
from harness.analysis.read_results import Loaded
from harness.analysis.select_sweep import choose
from harness.analysis.stats import median_interval
from harness.base.errors import UserError
from harness.prediction.model import Base
from harness.schema.record import read_run
from harness.schema.sweep import Study

Array = NDArray[np.float64]
_MOST_JITTER = 20_000
_MOST_RUNS = 24  # whose steps are read


def find_launches(results: Path, wanted: Callable[[Study], bool], what: str) -> Loaded:
    """Return the sweep of `results` that answers among those `wanted` (`analysis.choice`).

    `what` names the workload in the error.

    Raises:
        UserError: no such sweep has a valid launch.
    """
    found = choose(results, wanted)
    if found is not None:
        return found.loaded
    raise UserError(
        f"no valid launch of {what} in '{results}' to predict from: run `harness sweep` with --nodes 1 first, "
        "or name another folder with --results"
    )


def measured_base(loaded: Loaded) -> Base:
    """Return the base that the valid launches of a sweep give: those on the fewest ranks."""
    fewest = min(run.point.layout.ranks for run in loaded.valid)
    runs = [run for run in loaded.valid if run.point.layout.ranks == fewest]
    frame = launch_frame(runs, loaded.epochs)
    compute = (frame["seconds"] - frame["sync_seconds"]) / frame["steps"]  # input too: a rank has to do it
    exact = median_interval(compute)
    run, scaling = runs[0], runs[0].point.scaling
    rows = int(frame["all_rows"].iloc[0])
    jitter, imbalance = _unevenness(loaded)
    return Base(
        workload=run.point.workload,
        scaling=scaling,
        ranks=fewest,
        rows=rows if scaling == "strong" else rows // fewest,
        bytes=run.weights.bytes,
        compute_s=float(compute.median()),
        low_s=exact.low if exact else float(compute.min()),
        high_s=exact.high if exact else float(compute.max()),
        jitter=jitter,
        imbalance=imbalance,
        source=f"{len(runs)} launches on {fewest} rank{'s' if fewest > 1 else ''} of {loaded.folder.name}"
        + ("" if exact else ", range of the launches for want of an interval"),
    )


def _unevenness(loaded: Loaded) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the compute times of single steps over their rank's mean, and the ranks' means over that of all ranks.

    Of the launches with most ranks; the times between two synchronisation calls: one rank alone makes none, and
    tells nothing. What one rank always takes longer is in the second, what differs from step to step in the first.
    """
    most = max(run.point.layout.ranks for run in loaded.valid)
    runs = [run for run in loaded.valid if run.point.layout.ranks == most and most > 1][:_MOST_RUNS]
    steps: list[Array] = []
    lasting: list[float] = []
    for run in runs:
        own = _compute_times(loaded.folder / run.point.folder)
        if len(own):
            means = own.mean(axis=0)
            steps.append((own / means).ravel())
            lasting += (means / means.mean()).tolist()
    if not steps:
        return (), ()
    values = np.sort(np.concatenate(steps))
    return tuple(map(float, values[:: max(1, len(values) // _MOST_JITTER)])), tuple(sorted(lasting))


def _compute_times(folder: Path) -> Array:
    """Return the seconds between the synchronisation calls of successive steps, [pairs of calls, ranks]."""
    run = read_run(folder)
    times = [np.zeros((0, len(run.ranks)))]
    with suppress(UserError):  # its record has what all else rests on
        times += [(one.entry[1:] - one.exit[:-1])[np.diff(one.step) == 1] for one in read_calls(folder, run)]
    return np.concatenate(times)
