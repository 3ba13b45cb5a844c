"""A sweep's answer: how its workload scales, with everything that stands behind it, as one page that stands alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis import numbers
from harness.analysis.accuracy_times import TimeToAccuracy, default_accuracy, speedups_to_accuracy, times_to_accuracy
from harness.analysis.frames import curve_frame, final_frame, launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import Scaling, needed_launches, parts_of_points, ratios_frame, scale
from harness.analysis.scaling_laws import fit_laws
from harness.analysis.time_parts import EPOCH_PARTS, breakdown_frame
from harness.base.errors import UserError
from harness.prediction.extrapolation import Extrapolation, extrapolate
from harness.prediction.kept_extrapolation import keep_extrapolation, score_extrapolation, stated_before
from harness.prediction.network_cost import Uncertain
from harness.prediction.network_reference import network_reference
from harness.report import sweep_facts, sweep_sentences
from harness.report import sweep_tables as tables
from harness.report.answer import NOTHING_VALID, Answer, Block, Card, Fact, Items, Section
from harness.report.failed_ranks import failed_ranks_sections
from harness.report.figures import SweepView, draw_figures
from harness.report.figures.breakdown import EPOCH, LAUNCH, visible
from harness.report.predict_page import beyond_scores, beyond_table, reference_table
from harness.report.publish import SCREEN, check_replaceable, relative_link, write_page
from harness.report.sweep_sentences import last_point, target_of
from harness.schema.command_lines import repeat_command
from harness.schema.setting_words import study_name
from harness.schema.workload import is_script
from harness.why.known_causes import diagnose_sweep
from harness.why.overheads import PARTS, overheads

LAUNCHES = "launches.csv"
_LAUNCH_PARTS = (
    "Parts of the launch that is the median, or of the mean of the two middle ones: they sum to it. Computation and "
    "synchronisation of a launch are of all its epochs. Parts that take less than 0.01 % of a launch everywhere are "
    "left out."
)
Network = tuple[Uncertain, str]


def report_sweep(
    sweep_folder: Path,
    reports: Path,
    *,
    base: int | None = None,
    style: str = SCREEN,
    network: Network | None = None,
    keep: bool = False,
) -> Answer:
    """Write ``REPORTS/<sweep>/index.html`` with its figures and tables, whole or not at all; return what it says.

    Ratios are over `base` ranks, by default over the smallest count. A sweep without a valid launch still gets a page
    that lists what failed, was invalid or damaged; its exit code is `NOTHING_VALID`, but for a sweep that was asked to
    oversubscribe. `style` as in `publish.write_page`. Counts that could not run are predicted, also over a `network`
    and what it is; `keep` writes that into the sweep's folder, to be scored by what is measured later.

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
    check_replaceable(target)
    ahead = _ahead(loaded, base, network)
    if keep:
        keep_extrapolation(loaded, ahead.series)
    answer = _answer(loaded, target, ahead)
    return write_page(answer, reports, style=style)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ahead:
    """The launches' frame, how they scale, what is predicted beyond them, and why nothing is."""

    launches: pd.DataFrame | None
    scaling: Scaling | None
    series: tuple[Extrapolation, ...] = ()
    why: str = ""


def _ahead(loaded: Loaded, base: int | None, network: Network | None) -> _Ahead:
    launches = launch_frame(loaded.runs, loaded.epochs) if loaded.runs else None
    scaling = None if launches is None else scale(launches, base_ranks=base)
    if scaling is None:
        return _Ahead(launches=launches, scaling=scaling)
    last, skipped = last_point(scaling), [one.layout for one in (loaded.study.skipped if loaded.study else ())]
    if skipped and last and (last.efficiency or 0) > sweep_facts.DOUBTFUL:
        return _Ahead(launches=launches, scaling=scaling, why="Nothing is predicted from it.")
    series, why = extrapolate(loaded, scaling, skipped, *(network or ()))
    if network is None:
        series += stated_before(loaded, scaling)
    return _Ahead(launches=launches, scaling=scaling, series=series, why=why)


def _answer(loaded: Loaded, target: Path, ahead: _Ahead) -> Answer:
    launches, scaling = ahead.launches, ahead.scaling
    used = loaded.valid or loaded.runs
    study = loaded.study.sweep if loaded.study else None
    real = any(run.data.kind == "real" and not run.point.workload.data_file for run in loaded.runs)
    times = [run.started for run in loaded.runs] + [failure.ended for failure in loaded.failures]
    if scaling is not None and launches is not None:
        content = _measured(loaded, launches, scaling, ahead)
    else:
        oversubscribed = any(run.point.oversubscribe for run in loaded.runs)
        content = {
            "question": f"How does {_subject(loaded)} scale?",
            "sentence": headline(loaded, None),
            "data": {"sweep": loaded.folder.name, "scaling": None},
            "facts": sweep_facts.run_facts(used, loaded.launched, loaded.failed) if loaded.runs else (),
            "code": NOTHING_VALID if loaded.runs and not oversubscribed else 0,
            "sections": [],
        }
    content["sections"] += _conditions(loaded, ahead, target)
    return Answer(
        banners=sweep_facts.sweep_warnings(loaded, scaling, launches),
        command=repeat_command(loaded.folder, study) if study else "",
        remark="It needs the same original files: DATA_DIR=folder says where they are." if study and real else "",
        kind="sweep",
        place=target.name,
        title=study_name(study) if study else target.name,
        when=max(times, default=datetime.fromtimestamp(loaded.folder.stat().st_mtime, UTC)),
        name=target.name,
        machine=sweep_facts.machine_words(used[0].provenance.machine) if used else "",
        trained_on=sweep_facts.data_words(used[0]) if used else "",
        files={} if launches is None else {LAUNCHES: launches_csv(launches)},
        **content,
    )


def headline(loaded: Loaded, scaling: Scaling | None) -> str:
    """Return what the sweep has shown in one sentence; `scaling` is None where no launch is valid."""
    if scaling is not None:
        return sweep_sentences.headline(scaling, loaded.runs[0].point.workload)
    if loaded.runs:
        return (
            f"No launch of {_subject(loaded)} is valid, so nothing is said about its scaling: "
            f"{numbers.plural(len(loaded.runs), 'launch')} ended with times that do not count, mostly: "
            f"{sweep_facts.main_reason(loaded.runs)}. The same command runs them again."
        )
    failed = len(loaded.failures) + len(loaded.damaged)
    return f"No launch of {_subject(loaded)} can be read: {failed} failed or damaged, listed below."


def _subject(loaded: Loaded) -> str:
    workloads = [run.point.workload for run in loaded.runs] + [one.point.workload for one in loaded.failures]
    if loaded.study:
        workloads.append(loaded.study.sweep.workload)
    return sweep_sentences.subject(workloads[0]) if workloads else "the sweep"


def _measured(loaded: Loaded, launches: pd.DataFrame, scaling: Scaling, ahead: _Ahead) -> dict[str, Any]:
    workload = loaded.runs[0].point.workload
    alone, skipped = sweep_facts.on_one_machine(loaded.runs), loaded.study.skipped if loaded.study else ()
    layouts = (*(run.point.layout for run in loaded.runs), *(one.layout for one in skipped))
    goal = None if workload.sync == "none" else default_accuracy(launches, scaling.base.layout)
    targets: tuple[TimeToAccuracy, ...] = ()
    if goal is not None:
        reached = times_to_accuracy(loaded.epochs, goal)
        targets = speedups_to_accuracy(reached, reached[reached["layout"] == scaling.base.layout])
    final = final_frame(launches)
    view = SweepView(
        folder=loaded.folder,
        subject=sweep_sentences.subject(workload),
        names={str(one): sweep_facts.layout_words(one, alone) for one in layouts},
        runs=loaded.runs,
        launches=launches,
        ratios=ratios_frame(scaling, launches),
        parts=parts_of_points(scaling, breakdown_frame(launches), EPOCH_PARTS),
        curves=curve_frame(loaded.epochs),
        final=final,
        scaling=scaling,
        fits=fit_laws(scaling, launches),
        reference=network_reference(loaded, scaling),
        beyond=ahead.series,
        costs=overheads(scaling, launches, PARTS),
        goal=goal,
        targets=targets,
    )
    standing_in = "The rows are synthetic." if any(run.data.kind == "synthetic" for run in loaded.valid) else ""
    told = sweep_sentences.headline(scaling, workload, ahead.series)
    sentences = (told, sweep_sentences.to_accuracy(scaling, targets, goal), ahead.why, standing_in)
    accuracy = final.set_index("layout")["test_accuracy"].to_dict()
    return {
        "question": sweep_sentences.question(scaling, workload),
        "sentence": " ".join(filter(None, sentences)),
        "table": tables.terminal_table(scaling, final, ahead.series),
        "data": {"sweep": loaded.folder.name, "scaling": scaling, "test_accuracy": accuracy, "predicted": ahead.series},
        "tiles": tuple(_tiles(view)),
        "facts": sweep_facts.run_facts(loaded.valid, loaded.launched, loaded.failed),
        "sections": _sections(loaded, view),
    }


def _sections(loaded: Loaded, view: SweepView) -> list[Section]:
    """Return what was measured: scaling, time, laws, prediction, learning."""
    scaling, names, figures = view.scaling, view.names, draw_figures(view)
    how = f"{scaling.scaling.capitalize()} scaling. {sweep_sentences.repeats(scaling)} "
    how += sweep_sentences.method(scaling)
    time: list[Block] = [*figures["time"]]
    if view.costs:
        time.append(tables.overheads_table(view.costs, scaling, names, loaded.folder.resolve().name))
    time += [
        tables.parts_table("One epoch", view.parts, EPOCH, names),
        tables.parts_table("One launch", view.parts, visible(view.parts, LAUNCH), names, _LAUNCH_PARTS),
    ]
    laws: list[Block] = [tables.laws_table(view.fits, scaling)] if view.fits else []
    if scaling.others and view.reference:
        laws.append(reference_table(view.reference))
    ahead: list[Block] = [beyond_table(one, names) for one in view.beyond]
    loss: list[Block] = [tables.learning_table(view.final, names)]
    if is_script(view.runs[0].point.workload):
        loss.append(tables.epochs_table(view.curves, names))
    if view.targets and view.goal is not None:
        loss.append(tables.targets_table(view.targets, scaling, view.goal, names))
    return [
        Section(
            title="Scaling",
            name="scaling",
            blocks=[tables.scaling_table(scaling, names, how, view.beyond), *figures["scaling"]],
        ),
        Section(title="Predicted beyond this machine", name="beyond", blocks=ahead),
        Section(title="Where the time goes", name="time", blocks=time),
        Section(title="Laws" if view.fits else "", name="fits", blocks=[*laws, *figures["laws"]]),
        Section(title="Prediction, made before", name="prediction", blocks=_prediction(loaded, view)),
        Section(title="Loss and accuracy", name="learning", blocks=[*loss, *figures["learning"]]),
    ]


def _prediction(loaded: Loaded, view: SweepView) -> list[Block]:
    """Return the kept prediction of counts that could not run, scored by what was measured since."""
    first = view.launches[view.launches["valid"]].groupby("layout")["started"].min()
    starts = {str(layout): start for layout, start in first.items()}
    since = score_extrapolation(loaded, view.scaling, starts)
    return [beyond_scores(since)] if since else []


def _conditions(loaded: Loaded, ahead: _Ahead, target: Path) -> list[Section]:
    """Return what every page has, also of a sweep without a valid launch: causes, conditions, launches, failures."""
    launches, scaling = ahead.launches, ahead.scaling
    used = loaded.valid or loaded.runs
    alone = sweep_facts.on_one_machine(loaded.runs)
    findings = diagnose_sweep(loaded)
    causes = tables.causes_table(findings, "Diagnoses", overheads=False)
    sections = [Section(title="Diagnoses", name="diagnoses", blocks=[causes] if findings else [])]
    if launches is not None:
        cards = [
            Card(title="Training", facts=sweep_facts.workload_facts(used[0].point.workload, used)),
            Card(title="Data", facts=sweep_facts.data_facts(used, launches)),
            Card(
                title="Machine and versions",
                facts=(*sweep_facts.machine_facts(used), *sweep_facts.account_facts(loaded.accounts)),
            ),
        ]
        sections.append(Section(title="Conditions", name="conditions", blocks=cards))
        if scaling is not None:
            paper = [
                Card(title="Methods", copy=sweep_sentences.methods(loaded, scaling)),
                Card(title="References (BibTeX)", copy=sweep_sentences.bibtex(loaded.valid)),
            ]
            sections.append(Section(title="For a paper", name="methods", blocks=paper))
        sections += failed_ranks_sections(loaded.runs, _subject(loaded))
        failed = {run.point.folder for run in loaded.runs if run.losses}
        table = tables.launches_table(launches, relative_link(loaded.folder, target), failed)
        sections.append(Section(title="Launches", name="launches", blocks=[table]))
    predicted = {point.layout for one in ahead.series for point in one.points}
    skipped = [
        f"{sweep_facts.layout_words(one.layout, alone)}: {one.reason}"
        + ("; predicted" if str(one.layout) in predicted else "")
        for one in (loaded.study.skipped if loaded.study else ())
    ]
    failures = [
        (
            f"{numbers.ranks(one.point.layout.ranks)}, repeat {one.point.repeat + 1}: {one.reason} (exit code "
            f"{one.exit_code}, {numbers.moment(one.ended)})",
            one.tail,
        )
        for one in loaded.failures
    ]
    for title, name, texts in (
        ("Asked for and not run", "skipped", skipped),
        ("Failures", "failures", failures),
        ("Damaged and left out", "damaged", loaded.damaged),
    ):
        if texts:
            sections.append(Section(title=title, name=name, blocks=[Items(texts=texts)]))
    return sections


def _tiles(view: SweepView) -> Iterator[Fact]:
    """Yield speedup, speedup to equal accuracy, efficiency, the largest overhead, accuracy and the launches."""
    scaling, goal = view.scaling, view.goal
    last, base, doubt = last_point(scaling), scaling.base, "95 % interval "
    if last is None:
        detail = f"{numbers.ranks(base.ranks)}, median of {numbers.plural(base.launches, 'launch')}"
        yield Fact(name="Epoch time", value=numbers.seconds(base.seconds), detail=detail)
    else:
        assert last.speedup is not None and last.efficiency is not None
        missing = f"no interval: {numbers.plural(needed_launches(scaling), 'launch')} too few"
        if last.other_session:
            missing = "no interval: launched in another session than the base"
        known = doubt + numbers.ratio_span(last.speedup_interval) if last.speedup_interval else missing
        detail = f"{numbers.ranks(last.ranks)} over {numbers.ranks(base.ranks)}; {known}"
        yield Fact(name=sweep_sentences.speedup_label(scaling), value=f"{last.speedup:.2f}", detail=detail)
    found = target_of(scaling, view.targets)
    if found is not None and goal is not None:
        known = f"reached by {found.reached} of {numbers.plural(found.launches, 'launch')}"
        if found.speedup is not None:
            known = doubt + numbers.ratio_span(found.interval) if found.interval else f"no interval; {known}"
        detail = f"to {numbers.percent(goal, 1)} test accuracy{', ' if found.speedup is None else '; '}{known}"
        value = "none" if found.speedup is None else f"{found.speedup:.2f}"
        yield Fact(name="Speedup to equal accuracy", value=value, detail=detail)
    if last is not None and last.efficiency is not None:
        known = doubt + numbers.percent_span(last.efficiency_interval) if last.efficiency_interval else missing
        yield Fact(name="Efficiency", value=numbers.percent(last.efficiency), detail=known)
    if view.costs:
        largest = view.costs[-1].largest
        value, detail = "none", "no part takes 1 % more than its ideal share"
        if largest:
            known = f", {doubt}{numbers.ratio_span(largest.speedup_interval)}" if largest.speedup_interval else ""
            value = largest.cause.name
            detail = (
                f"{numbers.percent(largest.fraction)} of the epoch at {numbers.ranks(view.costs[-1].ranks)}; "
                f"without it the speedup would be at most about {largest.speedup_without:.2f}{known}"
            )
        yield Fact(name="Largest overhead", value=value, detail=detail)
    rows = tables.rows_of(view.final[view.final["test_accuracy"].notna()])
    if rows:
        most, fewest = rows[-1], rows[0]
        detail = f"{numbers.ranks(most['ranks'])}, after {numbers.plural(int(most['epochs']), 'epoch')}"
        if len(rows) > 1:
            detail += f"; {numbers.ranks(fewest['ranks'])}: {numbers.percent(fewest['test_accuracy'], 2)}"
        yield Fact(name="Test accuracy", value=numbers.percent(most["test_accuracy"], 2), detail=detail)
    invalid, strange = sum(bool(run.invalid) for run in view.runs), sum(point.outliers for point in scaling.points)
    detail = f"{numbers.span(*scaling.repeats)} per point"
    detail += f"; {numbers.plural(invalid, 'launch')} invalid and excluded" if invalid else ""
    detail += f"; {numbers.plural(strange, 'outlier')}, counted and marked" if strange else ""
    yield Fact(name="Valid launches", value=numbers.count(len(view.runs) - invalid), detail=detail)


def launches_csv(launches: pd.DataFrame) -> str:
    """Return `launches` (`frames.launch_frame`) as CSV: every cell one number, one word or one sentence."""
    return launches.drop(columns="turn_block").to_csv(index=False, lineterminator="\n")
