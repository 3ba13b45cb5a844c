"""The measured base of a prediction: one workload's launches on the fewest ranks."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from harness.analysis.frames import launch_frame
from harness.analysis.load import Loaded, load_sweep
from harness.analysis.stats import median_interval
from harness.base.errors import UserError
from harness.prediction.model import Base
from harness.schema.record import STEPS_FILE, RunRecord, decode
from harness.schema.sweep import STUDY_FILE, Study, sweep_folders

_MOST_JITTER = 20_000
_MOST_RUNS = 24  # whose steps are read


def find_base(results: Path, wanted: Callable[[Study], bool], what: str) -> Base:
    """Return the base in the newest sweep of `results` that is `wanted` and has valid launches.

    `what` names the workload in the error.

    Raises:
        UserError: no such sweep has a valid launch.
    """
    for folder in sweep_folders(results):
        study = decode((folder / STUDY_FILE).read_bytes(), Study, folder / STUDY_FILE)
        if wanted(study):
            loaded = load_sweep(folder)
            if loaded.valid:
                return measured_base(loaded)
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
    jitter = _jitter(loaded)
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
        source=f"{len(runs)} launches on {fewest} rank{'s' if fewest > 1 else ''} of {loaded.folder.name}"
        + ("" if exact else ", range of the launches for want of an interval"),
    )


def _jitter(loaded: Loaded) -> tuple[float, ...]:
    """Return compute times of single steps, relative to their rank's mean, of the launches with most ranks.

    The time between two synchronisation calls: one rank alone makes none, and tells nothing.
    """
    most = max(run.point.layout.ranks for run in loaded.valid)
    runs = [run for run in loaded.valid if run.point.layout.ranks == most and most > 1][:_MOST_RUNS]
    found = [times for run in runs for times in _compute_times(loaded.folder, run)]
    if not found:
        return ()
    values = np.concatenate(found)
    step = max(1, len(values) // _MOST_JITTER)
    return tuple(map(float, np.sort(values)[::step]))


def _compute_times(folder: Path, run: RunRecord) -> Iterator[np.ndarray]:
    columns = ["epoch", "step", "rank", "entry_s", "exit_s"]
    table = pq.read_table(folder / run.point.folder / STEPS_FILE, columns=columns).to_pandas()
    for _, steps in table.groupby(["epoch", "rank"]):
        ordered = steps.sort_values("step")
        times = ordered["entry_s"].to_numpy()[1:] - ordered["exit_s"].to_numpy()[:-1]
        times = times[np.isfinite(times)]
        if len(times):
            yield times / times.mean()
