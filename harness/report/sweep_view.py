"""All numbers that a sweep's page shows, computed once: for its sections, tiles and figures."""

import pandas as pd

from harness.analysis.accuracy_times import TimeToAccuracy, default_accuracy, speedups_to_accuracy, times_to_accuracy
from harness.analysis.launch_frames import curve_frame, final_frame
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import Scaling, parts_of_points, ratios_frame
from harness.analysis.time_parts import EPOCH_PARTS, breakdown_frame
from harness.prediction.extrapolation import Extrapolation
from harness.report.figures import SweepView
from harness.report.run_words import layout_words, on_one_machine
from harness.report.sweep_sentences import subject
from harness.why.overheads import PARTS, overheads


def view_of(
    loaded: Loaded, launches: pd.DataFrame, scaling: Scaling, predicted: tuple[Extrapolation, ...]
) -> SweepView:
    """Return what the page of `loaded` shows; `launches` is the `launch_frames.launch_frame` that `scaling` is of."""
    workload = loaded.runs[0].point.workload
    goal = None if workload.sync == "none" else default_accuracy(launches, scaling.base.layout)
    targets: tuple[TimeToAccuracy, ...] = ()
    if goal is not None:
        times = times_to_accuracy(loaded.epochs, goal)
        targets = speedups_to_accuracy(times, times[times["layout"] == scaling.base.layout])
    # A reader's words for every layout that ran or was asked for.
    layouts = [run.point.layout for run in loaded.runs]
    if loaded.study:
        layouts += [skipped.layout for skipped in loaded.study.skipped]
    one_machine = on_one_machine(loaded.runs)
    layout_names = {str(layout): layout_words(layout, one_machine) for layout in layouts}
    return SweepView(
        folder=loaded.folder,
        subject=subject(workload),
        names=layout_names,
        runs=loaded.runs,
        launches=launches,
        ratios=ratios_frame(scaling, launches),
        parts=parts_of_points(scaling, breakdown_frame(launches), EPOCH_PARTS),
        curves=curve_frame(loaded.epochs),
        final=final_frame(launches),
        scaling=scaling,
        extrapolations=predicted,
        costs=overheads(scaling, launches, PARTS),
        goal=goal,
        targets=targets,
    )
