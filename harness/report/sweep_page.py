"""The report of a sweep: one page that stands alone, its figures as files, the numbers behind each."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis.breakdown import breakdown_frame, caps
from harness.analysis.frames import launch_frame
from harness.analysis.laws import fit_laws
from harness.analysis.learning import (
    TimeToAccuracy,
    curve_frame,
    default_accuracy,
    final_frame,
    speedups_to_accuracy,
    times_to_accuracy,
)
from harness.analysis.load import Loaded, load_sweep
from harness.analysis.scaling import Scaling, ratios_frame, reference_points, scale
from harness.base.errors import UserError
from harness.base.files import folder_atomic, resource
from harness.prediction.forecast import read_prediction, score
from harness.prediction.links import network_reference
from harness.report import captions, render
from harness.report.captions import part_name, tiles
from harness.report.figures import SECTIONS, SweepView, draw_figures
from harness.report.figures.breakdown import EPOCH, LAUNCH, visible
from harness.report.render import PAGE, check_replaceable, relative_link, write_figures
from harness.report.sweep_facts import banners, data_facts, machine_facts, other_code, workload_facts
from harness.schema.claim import CLAIMS_FILE, Claim, read_published
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
    if not (loaded.runs or loaded.failures or loaded.damaged or loaded.other_code):
        raise UserError(f"sweep '{sweep_folder}' holds no launch: run `harness sweep` first")
    target = target_folder(reports, sweep_folder)
    with folder_atomic(target) as staging:
        values = _measured(loaded, target, staging, base) if loaded.runs else _nothing_measured(loaded)
        values["banners"] = (*other_code(loaded), *values["banners"])
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


def headline(loaded: Loaded, scaling: Scaling | None) -> str:
    """Return what the sweep has shown in one sentence; `scaling` is None where no launch is valid."""
    if scaling is not None:
        return captions.headline(scaling, loaded.runs[0].point.workload)
    if loaded.runs:
        return (
            f"No launch of {captions.subject(loaded.runs[0].point.workload)} is valid, so nothing is said about its "
            f"scaling. Invalid launches, listed with the reason: {len(loaded.runs)}; the same command runs them again."
        )
    lost = len(loaded.failures) + len(loaded.damaged)
    return f"No launch of {_subject(loaded)} can be read: {lost} failed or damaged, listed below."


def _subject(loaded: Loaded) -> str:
    workloads = [failure.point.workload for failure in loaded.failures]
    if loaded.study:
        workloads.append(loaded.study.sweep.workload)
    return captions.subject(workloads[0]) if workloads else "the sweep"


def _always(loaded: Loaded) -> dict[str, Any]:
    return {
        "sweep": loaded.folder.resolve().name,
        "skipped": loaded.study.skipped if loaded.study else (),
        "failures": loaded.failures,
        "damaged": loaded.damaged,
        "part_name": part_name,
    }


def _nothing_measured(loaded: Loaded) -> dict[str, Any]:
    return {
        "subject": _subject(loaded),
        "headline": headline(loaded, None),
        "scaling": None,
        "tiles": (),
        "fits": (),
        "reference": None,
        "targets": (),
        "target": None,
        "scores": (),
        "prediction": None,
        "others": (),
        "caps": (),
        "banners": (),
        "figures": dict.fromkeys(SECTIONS, ()),
        "breakdown": (),
        "final": (),
        "launches": (),
        "method": "",
        "repeats": "",
        "groups": (),
    }


def _measured(loaded: Loaded, target: Path, staging: Path, base: int | None) -> dict[str, Any]:
    workload = loaded.runs[0].point.workload
    subject = captions.subject(workload)
    launches = launch_frame(loaded.runs, loaded.epochs)
    launches.to_csv(staging / LAUNCHES, index=False, lineterminator="\n")
    scaling = scale(launches, base_ranks=base)
    used = loaded.valid or loaded.runs
    about: dict[str, Any] = {
        "subject": subject,
        "banners": banners(used, launches, loaded.slow),
        "launches": _launch_rows(loaded, launches, target),
        "groups": (
            ("Training", workload_facts(workload, used)),
            ("Data", data_facts(used, launches)),
            ("Machine and versions", machine_facts(used)),
        ),
    }
    if scaling is None:
        return _nothing_measured(loaded) | about
    view = SweepView(
        subject=subject,
        runs=loaded.runs,
        launches=launches,
        ratios=ratios_frame(scaling, launches),
        parts=breakdown_frame(launches),
        curves=curve_frame(loaded.epochs),
        scaling=scaling,
        fits=fit_laws(scaling, launches),
        reference=network_reference(loaded, scaling),
    )
    figures = draw_figures(view)
    write_figures(staging, [block for section in SECTIONS for block in figures[section]])
    return about | _numbers(loaded, view) | {"figures": figures}


def _numbers(loaded: Loaded, view: SweepView) -> dict[str, Any]:
    """Return what the tables of a sweep with valid launches show."""
    scaling, workload = view.scaling, loaded.runs[0].point.workload
    breakdown = _rows(view.parts)
    capped = caps(scaling, view.launches)
    final = final_frame(view.launches)
    prediction = read_prediction(loaded.folder)
    goal = default_accuracy(view.launches, scaling.base.layout)
    return {
        "headline": headline(loaded, scaling),
        "scaling": scaling,
        "tiles": tiles(scaling, capped, final, loaded.runs),
        "others": reference_points(view.launches, scaling, _claims(workload)),
        "caps": capped,
        "fits": view.fits,
        "reference": view.reference,
        "target": goal,
        "targets": _targets(loaded.epochs, scaling, goal) if goal is not None else (),
        "prediction": prediction,
        "scores": score(prediction, scaling.points, _first_starts(view.launches)) if prediction else (),
        "breakdown": breakdown,
        "epoch_parts": EPOCH,
        "launch_parts": visible(view.parts, LAUNCH),
        "final": _rows(final),
        "method": captions.method(scaling),
        "repeats": captions.repeats(scaling),
    }


def _first_starts(launches: pd.DataFrame) -> dict[str, datetime]:
    """Return when the first valid launch of each layout began."""
    starts = launches[launches["valid"]].groupby("layout")["started"].min()
    return {str(layout): start for layout, start in starts.items()}


def _targets(epochs: pd.DataFrame, scaling: Scaling, goal: float) -> tuple[TimeToAccuracy, ...]:
    """Return every layout's time to the accuracy `goal` over the base's."""
    times = times_to_accuracy(epochs, goal)
    return speedups_to_accuracy(times, times[times["layout"] == scaling.base.layout])


def _claims(workload: Workload) -> tuple[Claim, ...]:
    """Return the published claims about `workload`."""
    published = read_published(resource(CLAIMS_FILE))
    return tuple(claim for claim in published.claims if claim.experiment == workload.name)


def _rows(frame: pd.DataFrame) -> tuple[dict[str, Any], ...]:
    return tuple({str(name): value for name, value in row.items()} for row in frame.to_dict("records"))


def _launch_rows(loaded: Loaded, launches: pd.DataFrame, target: Path) -> tuple[dict[str, Any], ...]:
    sweep = relative_link(loaded.folder, target)
    ordered = launches.sort_values(["ranks", "layout", "repeat"], kind="stable")
    return tuple(row | {"link": f"{sweep}/{row['run']}"} for row in _rows(ordered))
