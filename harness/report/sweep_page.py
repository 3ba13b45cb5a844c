"""The report of a sweep: one page that stands alone, its figures as files, the numbers behind each."""

from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis.frames import epoch_frame, launch_frame
from harness.analysis.learning import final_frame
from harness.analysis.load import Loaded, load_sweep
from harness.analysis.scaling import scale
from harness.analysis.split import split_frame
from harness.errors import UserError
from harness.files import folder_atomic
from harness.report import captions, render
from harness.report.page_parts import PAGE, FigureBlock, check_replaceable, relative_link, write_figures
from harness.report.sweep_facts import banners, data_facts, machine_facts, workload_facts
from harness.report.sweep_figures import learning_blocks, scaling_blocks, split_blocks
from harness.spec.record import RunRecord

LAUNCHES = "launches.csv"


def write_report(sweep_folder: Path, reports: Path) -> Path:
    """Write ``REPORTS/<sweep>/index.html`` with its figures and tables, whole or not at all; return its path.

    A sweep without a valid launch still gets a page that lists what failed, was invalid or damaged.

    Raises:
        UserError: the sweep is no folder or holds nothing to report, or the report cannot be written.
    """
    loaded = load_sweep(sweep_folder)
    if not (loaded.runs or loaded.failures or loaded.damaged):
        raise UserError(f"sweep '{sweep_folder}' holds no launch: run `harness sweep` first")
    target = target_folder(reports, sweep_folder)
    with folder_atomic(target) as staging:
        values = _measured(loaded, target, staging) if loaded.runs else _nothing_measured(loaded)
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


def _measured(loaded: Loaded, target: Path, staging: Path) -> dict[str, Any]:
    workload = loaded.runs[0].point.workload
    subject = captions.subject(workload)
    epochs = epoch_frame(loaded.runs)
    launches = launch_frame(loaded.runs, epochs)
    launches.to_csv(staging / LAUNCHES, index=False, lineterminator="\n")
    scaling = scale(launches)
    figures: tuple[FigureBlock, ...] = ()
    learning: tuple[FigureBlock, ...] = ()
    if scaling:
        figures = (
            *scaling_blocks(scaling, loaded.runs, launches, subject),
            *split_blocks(scaling, loaded.runs, launches, subject),
        )
        learning = learning_blocks(scaling, loaded.runs, epochs, subject)
        write_figures(staging, (*figures, *learning))
    used = loaded.valid or loaded.runs
    return {
        "subject": subject,
        "headline": captions.headline(scaling, workload) if scaling else _all_invalid(loaded.runs, subject),
        "scaling": scaling,
        "banners": banners(used),
        "figures": figures,
        "learning": learning,
        "split": _rows(split_frame(launches)) if scaling else (),
        "final": _rows(final_frame(launches)) if scaling else (),
        "launches": _launch_rows(loaded, launches, target),
        "method": captions.method(scaling) if scaling else "",
        "repeats": captions.repeats(scaling) if scaling else "",
        "groups": (
            ("Training", workload_facts(workload, used)),
            ("Data", data_facts(used)),
            ("Machine and versions", machine_facts(used)),
        ),
    }


def _all_invalid(runs: tuple[RunRecord, ...], subject: str) -> str:
    return (
        f"No launch of {subject} is valid, so nothing is said about its scaling: {len(runs)} are listed with why; "
        "the same command runs them again."
    )


def _rows(frame: pd.DataFrame) -> tuple[dict[str, Any], ...]:
    return tuple({str(name): value for name, value in row.items()} for row in frame.to_dict("records"))


def _launch_rows(loaded: Loaded, launches: pd.DataFrame, target: Path) -> tuple[dict[str, Any], ...]:
    links = {run.point.folder: relative_link(loaded.folder / run.point.folder, target) for run in loaded.runs}
    ordered = launches.sort_values(["ranks", "layout", "repeat"], kind="stable")
    return tuple(row | {"link": links[row["run"]]} for row in _rows(ordered))
