"""A sweep's answer: how its workload scales, with everything that it rests on, as one page that stands alone."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from harness.analysis import units
from harness.analysis.accuracy_times import (
    IMAGES,
    TimeToAccuracy,
    default_accuracy,
    has_report_time,
    report_times,
    speedups_to_accuracy,
    times_to_accuracy,
)
from harness.analysis.device_use import device_uses, energy_uses, with_device_use
from harness.analysis.launch_frames import curve_frame, final_frame, launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import Scaling, parts_of_points, ratios_frame, scale
from harness.analysis.time_parts import EPOCH_PARTS, breakdown_frame
from harness.base.errors import UserError
from harness.base.exit_codes import UNDECIDED
from harness.base.parallel_work import is_worth_sharing
from harness.base.removal import check_folder
from harness.prediction.extrapolation import Extrapolation, extrapolate
from harness.prediction.network_cost import Uncertain
from harness.report import sweep_sentences
from harness.report.answer import Answer
from harness.report.figures import SweepView, draw_figures
from harness.report.formats import launches_as_tests
from harness.report.html_pages import SCREEN, csv_text, relative_link, write_page
from harness.report.run_words import data_words, layout_words, machine_words, on_one_machine
from harness.report.sweep_facts import run_facts
from harness.report.sweep_sections import condition_sections, measured_sections, sweep_tiles
from harness.report.sweep_sentences import subject
from harness.report.sweep_tables import terminal_table
from harness.report.sweep_warnings import DOUBTFUL, main_reason, sweep_warnings
from harness.schema.command_lines import repeat_command
from harness.schema.setting_words import study_name
from harness.schema.study_text import page_studies
from harness.why.overheads import PARTS, overheads

# All numbers that a sweep's page shows, computed once: for its sections, tiles and figures.


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
        costs=overheads(scaling, launches, PARTS, in_full=False),
        devices=device_uses(loaded.valid, launches, scaling, loaded.peak_tflops),
        goal=goal,
        targets=targets,
    )


LAUNCHES = "launches.csv"
Network = tuple[Uncertain, str]


def report_sweep(
    sweep_folder: Path,
    reports: Path,
    *,
    base: int | None = None,
    style: str = SCREEN,
    network: Network | None = None,
) -> Answer:
    """Write ``REPORTS/<sweep>/index.html`` with its figures and tables, whole or not at all; return what it says.

    Ratios are over `base` ranks, by default over the smallest count. A sweep without a valid launch still gets a page
    that lists what failed, was invalid or damaged; its exit code is `UNDECIDED`, but for a sweep that was asked to
    oversubscribe. `style` as in `html_pages.write_page`. Counts that could not run are predicted, also over a `network`
    and what it is.

    Raises:
        UserError: the sweep is not a folder or holds nothing to report, `base` has no valid launch, or the report
            cannot be written.
    """
    loaded = load_sweep(sweep_folder)
    if not (loaded.runs or loaded.failures or loaded.damaged or loaded.other_code):
        raise UserError(f"sweep '{sweep_folder}' holds no launch: run `harness sweep` first")
    target = reports / sweep_folder.resolve().name
    if target.resolve() == sweep_folder.resolve():
        raise UserError(f"reports '{reports}' would replace the records in '{sweep_folder}': choose another folder")
    check_folder(target, "report")
    measured = _measure(loaded, base, network)
    answer = _answer(loaded, target, measured)
    return write_page(answer, reports, style=style, shared=is_worth_sharing(len(loaded.runs)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    """The launches' frame, how they scale, what is predicted beyond them, and why nothing is.

    `launches` is None where no launch has a record, `scaling` where none is valid.
    """

    launches: pd.DataFrame | None = None
    scaling: Scaling | None = None
    predicted: tuple[Extrapolation, ...] = ()
    why_not_predicted: str = ""


def _measure(loaded: Loaded, base: int | None, network: Network | None) -> _Measured:
    if not loaded.runs:
        return _Measured()
    launches = launch_frame(loaded.runs, loaded.epochs)
    scaling = scale(launches, base_ranks=base)
    if scaling is None:
        return _Measured(launches=launches)
    last = sweep_sentences.last_point(scaling)
    skipped = [layout.layout for layout in loaded.study.skipped] if loaded.study else []
    if skipped and last and (last.efficiency or 0) > DOUBTFUL:
        return _Measured(launches=launches, scaling=scaling, why_not_predicted="Nothing is predicted from it.")
    predicted, why_not = extrapolate(loaded, scaling, skipped, *(network or ()))
    return _Measured(launches=launches, scaling=scaling, predicted=predicted, why_not_predicted=why_not)


def _answer(loaded: Loaded, target: Path, measured: _Measured) -> Answer:
    """Return what the page of `loaded` at `target` says: what was measured, how, and how to repeat it."""
    launches = measured.launches
    scaling = measured.scaling
    if launches is None or scaling is None:
        oversubscribed = any(run.point.oversubscribe for run in loaded.runs)
        answer = Answer(
            question=f"How does {_subject(loaded)} scale?",
            sentence=page_sentence(loaded, None),
            data={"sweep": loaded.folder.name, "scaling": None},
            facts=run_facts(loaded.valid or loaded.runs, loaded.launched, loaded.failed) if loaded.runs else (),
            code=UNDECIDED if loaded.runs and not oversubscribed else 0,
        )
    else:
        answer = _measured_answer(loaded, launches, scaling, measured)
    conditions = condition_sections(
        loaded,
        launches,
        scaling,
        measured.predicted,
        subject=_subject(loaded),
        launches_link=relative_link(loaded.folder, target),
    )
    used = loaded.valid or loaded.runs
    study = loaded.study.sweep if loaded.study else None
    remark = ""
    if study:
        remark = _how_to_repeat(loaded)
    if study and any(run.data.kind == "real" and run.point.workload.has_known_data for run in loaded.runs):
        remark += " It needs the same original files: --data-dir FOLDER says where they are."
    study_files = _study_files(loaded)
    times = [run.started for run in loaded.runs] + [failure.ended for failure in loaded.failures]
    return replace(
        answer,
        banners=sweep_warnings(loaded, scaling, launches),
        sections=[*answer.sections, *conditions],
        command=repeat_command(loaded.folder, study) if study else "",
        remark=remark,
        kind="sweep",
        place=target.name,
        title=study_name(study) if study else target.name,
        when=max(times, default=datetime.fromtimestamp(loaded.folder.stat().st_mtime, UTC)),
        name=target.name,
        machine=machine_words(used[0].provenance.machine) if used else "",
        trained_on=data_words(used[0]) if used else "",
        files={**({} if launches is None else {LAUNCHES: launches_csv(loaded, launches)}), **study_files},
        studies=tuple(study_files),
        suite=launches_as_tests(loaded),
    )


def _how_to_repeat(loaded: Loaded) -> str:
    """Return where the command trains again, and what compares with the records of the sweep `loaded`."""
    has_nodes = any(run.point.layout.nodes > 1 for run in loaded.runs)
    nodes = "On one machine a core stands for a node. " if has_nodes and on_one_machine(loaded.runs) else ""
    return (
        f"{nodes}Beside these results the command trains only what is missing; in another folder it trains everything "
        f"again. harness reproduce {loaded.folder.name} trains one launch of each rank count again and compares it "
        "with its record."
    )


def _study_files(loaded: Loaded) -> dict[str, str]:
    """Return the files, by name, that give the sweep again: one, or one for each part of its layouts."""
    if loaded.study is None:
        return {}
    texts = page_studies(loaded.folder, loaded.study.sweep)
    if len(texts) == 1:
        return {"study.toml": texts[0]}
    return {f"study-{number}.toml": text for number, text in enumerate(texts, start=1)}


def _measured_answer(loaded: Loaded, launches: pd.DataFrame, scaling: Scaling, measured: _Measured) -> Answer:
    """Return what a sweep with valid launches says."""
    workload = loaded.runs[0].point.workload
    view = view_of(loaded, launches, scaling, measured.predicted)
    is_synthetic = any(run.data.kind == "synthetic" for run in loaded.valid)
    details = (
        *sweep_sentences.details(scaling, measured.predicted),
        sweep_sentences.to_accuracy(scaling, workload, view.targets, view.goal),
        measured.why_not_predicted,
        "The samples are synthetic." if is_synthetic else "",
    )
    accuracy = view.final.set_index("layout")["test_accuracy"].to_dict()
    figures = draw_figures(view)
    speedup_figure, *scaling_figures = figures["scaling"]
    return Answer(
        question=sweep_sentences.question(scaling, workload),
        sentence=sweep_sentences.headline(scaling, workload, measured.predicted),
        details=tuple(filter(None, details)),
        table=terminal_table(scaling, view.final, measured.predicted),
        data={
            "sweep": loaded.folder.name,
            "scaling": scaling,
            "test_accuracy": accuracy,
            "predicted": measured.predicted,
            "devices": view.devices,
            "energy": energy_uses(loaded.valid),
            **({"time_to_report": report_times(scaling)} if has_report_time(workload) else {}),
        },
        tiles=tuple(sweep_tiles(view)),
        facts=run_facts(loaded.valid, loaded.launched, loaded.failed),
        figure=speedup_figure,
        sections=measured_sections(loaded, view, {**figures, "scaling": scaling_figures}),
    )


def page_sentence(loaded: Loaded, scaling: Scaling | None) -> str:
    """Return what the sweep has shown in one sentence; `scaling` is None where no launch is valid."""
    if scaling is not None:
        return sweep_sentences.headline(scaling, loaded.runs[0].point.workload)
    if loaded.runs:
        return (
            f"No launch of {_subject(loaded)} is valid, so nothing is said about its scaling: "
            f"{units.plural(len(loaded.runs), 'launch')} ended with times that do not count, mostly: "
            f"{main_reason(loaded.runs)}. The same command runs them again."
        )
    failed = len(loaded.failures) + len(loaded.damaged)
    return f"No launch of {_subject(loaded)} can be read: {failed} failed or damaged, listed below."


def _subject(loaded: Loaded) -> str:
    workloads = [run.point.workload for run in loaded.runs]
    workloads += [failure.point.workload for failure in loaded.failures]
    if loaded.study:
        workloads.append(loaded.study.sweep.workload)
    return sweep_sentences.subject(workloads[0]) if workloads else "the sweep"


def launches_csv(loaded: Loaded, launches: pd.DataFrame) -> str:
    """Return `launches` (`launch_frames.launch_frame`) as CSV: every cell one number, one word or one sentence.

    Beside its columns are those of `device_use.with_device_use`, and with JUPITER's preset time_to_report_s, the
    suite's metric in seconds.
    """
    frame = with_device_use(launches.drop(columns="turn_block"), loaded.runs, loaded.peak_tflops)
    if has_report_time(loaded.runs[0].point.workload):
        frame["time_to_report_s"] = IMAGES / frame["rows_per_second"]
    return csv_text(frame)
