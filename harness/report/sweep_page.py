"""The report of a sweep: one page that stands alone, its figures as files, the numbers behind each."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis.breakdown import EPOCH_PARTS, caps, split_frame
from harness.analysis.frames import launch_frame
from harness.analysis.laws import fit_laws
from harness.analysis.learning import ToTarget, default_target, final_frame, times_to, to_target
from harness.analysis.load import Loaded, load_sweep
from harness.analysis.scaling import Scaling, other_bases, scale
from harness.base.errors import UserError
from harness.base.files import folder_atomic, resource
from harness.prediction.bound import machine_bound
from harness.prediction.forecast import read_prediction, score
from harness.report import captions, render
from harness.report.breakdown_figures import EPOCH, LAUNCH, visible
from harness.report.law_figures import law_block
from harness.report.render import PAGE, FigureBlock, check_replaceable, relative_link, write_figures
from harness.report.sweep_facts import banners, data_facts, machine_facts, workload_facts
from harness.report.sweep_figures import learning_blocks, scaling_blocks, split_blocks
from harness.report.sweep_verdict import part_name, tiles
from harness.schema.claim import CLAIMS_FILE, Claim, read_published
from harness.schema.record import RunRecord
from harness.schema.workload import Workload

LAUNCHES = "launches.csv"


def write_report(sweep_folder: Path, reports: Path, *, base: int | None = None) -> Path:
    """Write ``REPORTS/<sweep>/index.html`` with its figures and tables, whole or not at all; return its path.

    Ratios are over `base` ranks, by default over the smallest count. A sweep without a valid launch still gets
    a page that lists what failed, was invalid or damaged.

    Raises:
        UserError: the sweep is no folder or holds nothing to report, `base` has no valid launch, or the report
            cannot be written.
    """
    loaded = load_sweep(sweep_folder)
    if not (loaded.runs or loaded.failures or loaded.damaged):
        raise UserError(f"sweep '{sweep_folder}' holds no launch: run `harness sweep` first")
    target = target_folder(reports, sweep_folder)
    with folder_atomic(target) as staging:
        values = _measured(loaded, target, staging, base) if loaded.runs else _nothing_measured(loaded)
        content = render.page("sweep.html.j2", **values, **_always(loaded))
        (staging / PAGE).write_text(content, encoding="utf-8")
    return target / PAGE


def target_folder(reports: Path, sweep_folder: Path) -> Path:
    """Return the folder of the sweep's report, which is replaced as a whole.

    Raises:
        UserError: it is the sweep's own folder, or a folder that holds something else than a report.
    """
    target = reports / sweep_folder.resolve().name
    if target.resolve() == sweep_folder.resolve():
        raise UserError(f"reports '{reports}' would replace the records in '{sweep_folder}': choose another folder")
    check_replaceable(target)
    return target


def _always(loaded: Loaded) -> dict[str, Any]:
    return {
        "sweep": loaded.folder.resolve().name,
        "skipped": loaded.study.skipped if loaded.study else (),
        "failures": loaded.failures,
        "damaged": loaded.damaged,
        "part_name": part_name,
    }


def _nothing_measured(loaded: Loaded) -> dict[str, Any]:
    workloads = [failure.point.workload for failure in loaded.failures]
    if loaded.study:
        workloads.append(loaded.study.sweep.workload)
    subject = captions.subject(workloads[0]) if workloads else "Sweep"
    lost = len(loaded.failures) + len(loaded.damaged)
    return {
        "subject": subject,
        "headline": f"No launch of {subject} can be read: {lost} failed or damaged, listed below.",
        "scaling": None,
        "tiles": (),
        "fits": (),
        "bound": None,
        "targets": (),
        "target": None,
        "scores": (),
        "prediction": None,
        "law_figure": None,
        "others": (),
        "caps": (),
        "banners": (),
        "figures": (),
        "learning": (),
        "split": (),
        "final": (),
        "launches": (),
        "method": "",
        "repeats": "",
        "groups": (),
    }


def _measured(loaded: Loaded, target: Path, staging: Path, base: int | None) -> dict[str, Any]:
    workload = loaded.runs[0].point.workload
    subject = captions.subject(workload)
    epochs = loaded.epochs
    launches = launch_frame(loaded.runs, epochs)
    launches.to_csv(staging / LAUNCHES, index=False, lineterminator="\n")
    scaling = scale(launches, base_ranks=base)
    fits = fit_laws(scaling, launches) if scaling else ()
    bound = machine_bound(loaded, scaling) if scaling else None
    figures, learning = _draw(scaling, loaded, launches, subject) if scaling else ((), ())
    law_figure = law_block(scaling, fits, bound, loaded.runs, subject) if scaling else None
    write_figures(staging, (*figures, *learning, *([law_figure] if law_figure else [])))
    used = loaded.valid or loaded.runs
    split = _rows(split_frame(launches)) if scaling else ()
    capped = caps(scaling, split, EPOCH_PARTS) if scaling else ()
    final = final_frame(launches)
    prediction = read_prediction(loaded.folder)
    goal = default_target(launches, scaling.base.layout) if scaling else None
    return {
        "subject": subject,
        "headline": captions.headline(scaling, workload) if scaling else _all_invalid(loaded.runs, subject),
        "scaling": scaling,
        "tiles": tiles(scaling, capped, final, loaded.runs) if scaling else (),
        "others": other_bases(launches, scaling, _claims(workload)) if scaling else (),
        "caps": capped,
        "fits": fits,
        "bound": bound,
        "target": goal,
        "targets": _targets(epochs, scaling, goal) if scaling and goal is not None else (),
        "prediction": prediction,
        "scores": score(prediction, scaling.points, _first_starts(launches)) if scaling and prediction else (),
        "law_figure": law_figure,
        "banners": banners(used, launches, loaded.slow),
        "figures": figures,
        "learning": learning,
        "split": split,
        "epoch_parts": EPOCH,
        "launch_parts": visible(split_frame(launches), LAUNCH) if scaling else (),
        "final": _rows(final) if scaling else (),
        "launches": _launch_rows(loaded, launches, target),
        "method": captions.method(scaling) if scaling else "",
        "repeats": captions.repeats(scaling) if scaling else "",
        "groups": (
            ("Training", workload_facts(workload, used)),
            ("Data", data_facts(used, launches)),
            ("Machine and versions", machine_facts(used)),
        ),
    }


def _draw(
    scaling: Scaling, loaded: Loaded, launches: pd.DataFrame, subject: str
) -> tuple[tuple[FigureBlock, ...], tuple[FigureBlock, ...]]:
    """Return the figures of the epochs' times, and those of loss and accuracy."""
    figures = (
        *scaling_blocks(scaling, loaded.runs, launches, subject),
        *split_blocks(scaling, loaded.runs, launches, subject),
    )
    return figures, learning_blocks(scaling, loaded.runs, loaded.epochs, subject)


def _first_starts(launches: pd.DataFrame) -> dict[str, datetime]:
    """Return when the first valid launch of each layout began."""
    starts = launches[launches["valid"]].groupby("layout")["started"].min()
    return {str(layout): start for layout, start in starts.items()}


def _targets(epochs: pd.DataFrame, scaling: Scaling, goal: float) -> tuple[ToTarget, ...]:
    """Return every layout's time to the accuracy `goal` over the base's."""
    times = times_to(epochs, goal)
    return to_target(times, times[times["layout"] == scaling.base.layout])


def _claims(workload: Workload) -> tuple[Claim, ...]:
    """Return the published claims about `workload`."""
    published = read_published(resource(CLAIMS_FILE))
    return tuple(claim for claim in published.claims if claim.experiment == workload.name)


def _all_invalid(runs: tuple[RunRecord, ...], subject: str) -> str:
    return (
        f"No launch of {subject} is valid, so nothing is said about its scaling: {len(runs)} are listed with why; "
        "the same command runs them again."
    )


def _rows(frame: pd.DataFrame) -> tuple[dict[str, Any], ...]:
    return tuple({str(name): value for name, value in row.items()} for row in frame.to_dict("records"))


def _launch_rows(loaded: Loaded, launches: pd.DataFrame, target: Path) -> tuple[dict[str, Any], ...]:
    sweep = relative_link(loaded.folder, target)
    ordered = launches.sort_values(["ranks", "layout", "repeat"], kind="stable")
    return tuple(row | {"link": f"{sweep}/{row['run']}"} for row in _rows(ordered))
