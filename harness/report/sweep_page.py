"""The report of a sweep: one page that stands alone, its figures as files, the numbers behind each."""

import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from harness.analysis.frames import launch_frame
from harness.analysis.laws import fit_laws
from harness.analysis.learning import (
    curve_frame,
)
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import Scaling, ratios_frame, scale
from harness.analysis.time_parts import breakdown_frame
from harness.base.errors import UserError
from harness.prediction.forecast import network_reference
from harness.report import captions
from harness.report.failed_ranks_page import FOLDER as FAILED_RANKS
from harness.report.failed_ranks_page import failed_ranks_answer
from harness.report.figures import SECTIONS, SweepView, draw_figures
from harness.report.launch_summary import (
    account_facts,
    data_words,
    layout_words,
    machine_words,
    on_one_machine,
    run_facts,
)
from harness.report.provenance import sweeps_origin
from harness.report.publish import Page, PageSummary, publish, write_page
from harness.report.render import PAGE, SCREEN, Head, check_replaceable, relative_link
from harness.report.sweep_facts import banners, data_facts, machine_facts, other_code, workload_facts
from harness.report.sweep_numbers import numbers_of, rows_of
from harness.schema.presets import study_name, sweep_command
from harness.why.known_causes import diagnose_sweep

LAUNCHES = "launches.csv"


def write_report(sweep_folder: Path, reports: Path, *, base: int | None = None, style: str = SCREEN) -> Path:
    """Write ``REPORTS/<sweep>/index.html`` with its figures and tables, whole or not at all; return its path.

    Ratios are over `base` ranks, by default over the smallest count. A sweep without a valid launch still gets
    a page that lists what failed, was invalid or damaged. `style` as in `render.write_figures`.

    Raises:
        UserError: the sweep is no folder or holds nothing to report, `base` has no valid launch, or the report
            cannot be written.
    """
    loaded = load_sweep(sweep_folder)
    if not (loaded.runs or loaded.failures or loaded.damaged or loaded.other_code):
        raise UserError(f"sweep '{sweep_folder}' holds no launch: run `harness sweep` first")
    target = target_folder(reports, sweep_folder)
    values = _measured(loaded, target, base) if loaded.runs else _nothing_measured(loaded)
    values["banners"] = (*other_code(loaded), *values["banners"])
    table, head = values.pop("table"), _repeatable(values.pop("head"), loaded)
    drawn_by = _drawn_by(target.name, base, style)
    page = Page(
        place=target.name,
        template="sweep.html.j2",
        summary=_summary(loaded, target.name, head),
        head=head,
        values=values | _always(loaded),
        figures=[block for section in SECTIONS for block in values["figures"][section]],
        files={} if table is None else {LAUNCHES: table.to_csv(index=False, lineterminator="\n")},
        origin=sweeps_origin(drawn_by, [loaded]),
    )
    drawn = publish(page, reports, sweep_folder.resolve().parent, style=style)
    failed = failed_ranks_answer(loaded, head.command, head.remark, drawn_by)
    if failed is not None:
        write_page(failed, reports, style=style)
    return drawn


def _drawn_by(name: str, base: int | None, style: str) -> str:
    words = [*(["--base", str(base)] if base else []), *(["--style", style] if style != SCREEN else [])]
    return shlex.join(["harness", "report", name, *words])


def _summary(loaded: Loaded, name: str, head: Head) -> PageSummary:
    """Return the sweep's line of the index."""
    runs = loaded.valid or loaded.runs
    times = [run.started for run in loaded.runs] + [failure.ended for failure in loaded.failures]
    return PageSummary(
        kind="sweep",
        title=study_name(loaded.study.sweep) if loaded.study else name,
        name=name,
        answer=head.answer,
        when=max(times, default=datetime.fromtimestamp(loaded.folder.stat().st_mtime, UTC)),
        machine=machine_words(runs[0].provenance.machine) if runs else "",
        data=data_words(runs[0]) if runs else "",
    )


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
        "findings": diagnose_sweep(loaded),
        "names": _names(loaded),
        "layout_words": lambda layout: layout_words(layout, on_one_machine(loaded.runs)),
    }


def _names(loaded: Loaded) -> dict[str, str]:
    """Return a reader's words for every layout that was launched."""
    alone = on_one_machine(loaded.runs)
    return {str(run.point.layout): layout_words(run.point.layout, alone) for run in loaded.runs}


def _repeatable(head: Head, loaded: Loaded) -> Head:
    """Return `head` with the command that gives the launches of `loaded` again, and what it needs."""
    if loaded.study is None:
        return head
    real = any(run.data.kind == "real" and not run.point.workload.data_file for run in loaded.runs)
    remark = "It needs the same original files: DATA_DIR=folder says where they are." if real else ""
    return replace(head, command=sweep_command(loaded.study.sweep), remark=remark)


def _nothing_measured(loaded: Loaded) -> dict[str, Any]:
    return {
        "subject": _subject(loaded),
        "head": Head(question=f"How does {_subject(loaded)} scale?", answer=headline(loaded, None)),
        "table": None,
        "methods": "",
        "references": "",
        "scaling": None,
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


def _measured(loaded: Loaded, target: Path, base: int | None) -> dict[str, Any]:
    workload = loaded.runs[0].point.workload
    subject = captions.subject(workload)
    launches = launch_frame(loaded.runs, loaded.epochs)
    scaling = scale(launches, base_ranks=base)
    used = loaded.valid or loaded.runs
    about: dict[str, Any] = {
        "subject": subject,
        "table": launches,
        "banners": banners(used, launches),
        "launches": _launch_rows(loaded, launches, target),
        "groups": (
            ("Training", workload_facts(workload, used)),
            ("Data", data_facts(used, launches)),
            ("Machine and versions", (*machine_facts(used), *account_facts(loaded.accounts))),
        ),
    }
    if scaling is None:
        question = f"How does {subject} scale?"
        invalid = Head(question=question, answer=headline(loaded, None), facts=run_facts(used, loaded.runs))
        return _nothing_measured(loaded) | about | {"head": invalid}
    view = SweepView(
        folder=loaded.folder,
        subject=subject,
        names=_names(loaded),
        runs=loaded.runs,
        launches=launches,
        ratios=ratios_frame(scaling, launches),
        parts=breakdown_frame(launches),
        curves=curve_frame(loaded.epochs),
        scaling=scaling,
        fits=fit_laws(scaling, launches),
        reference=network_reference(loaded, scaling),
    )
    return about | numbers_of(loaded, view) | {"figures": draw_figures(view)}


def _launch_rows(loaded: Loaded, launches: pd.DataFrame, target: Path) -> tuple[dict[str, Any], ...]:
    sweep = relative_link(loaded.folder, target)
    ordered = launches.sort_values(["ranks", "layout", "repeat"], kind="stable")
    timelines = {
        run.point.folder: f"../{FAILED_RANKS}/{quote(target.name)}/{PAGE}" for run in loaded.runs if run.losses
    }
    return tuple(
        row | {"link": f"{sweep}/{row['run']}", "timeline": timelines.get(row["run"], "")} for row in rows_of(ordered)
    )
