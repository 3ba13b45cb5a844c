"""The sections of a sweep's page: what was measured and predicted, and the conditions that it was measured under."""

from collections.abc import Sequence

import pandas as pd

from harness.analysis import units
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import Scaling
from harness.prediction.extrapolation import Extrapolation
from harness.report import captions, learning_tables, method_text, sweep_facts, sweep_tables
from harness.report.answer import Card, Element, Items, Section
from harness.report.device_sections import device_sections
from harness.report.failed_ranks import failed_ranks_sections
from harness.report.figures import SweepView, draw_figures
from harness.report.figures.breakdown import EPOCH, LAUNCH, visible
from harness.report.own_rates import own_rates_sections
from harness.report.report_time_sections import report_time_sections
from harness.report.run_words import layout_words, on_one_machine
from harness.why.known_causes import diagnose_sweep

_LAUNCH_PARTS = (
    "Parts of the launch that is the median, or of the mean of the two middle ones: they sum to it. Computation and "
    "synchronisation of a launch are of all its epochs. Parts that take less than 0.01 % of a launch everywhere are "
    "left out."
)


def measured_sections(loaded: Loaded, view: SweepView) -> list[Section]:
    """Return what was measured: scaling, prediction, time, learning."""
    figures = draw_figures(view)
    scaling = [_scaling_table(view), *figures["scaling"]]
    predicted = [sweep_tables.extrapolation_table(series, view.names) for series in view.extrapolations]
    tables: list[Element] = [learning_tables.learning_table(view.final, view.names)]
    if view.runs[0].point.workload.script:
        tables.append(learning_tables.epochs_table(view.curves, view.names))
    if view.targets and view.goal is not None:
        tables.append(learning_tables.targets_table(view.targets, view.scaling, view.goal, view.names))
    learning = [*tables, *figures["learning"]]
    return [
        Section(title="Scaling", name="scaling", elements=scaling),
        *report_time_sections(view.runs[0].point.workload, view.scaling, view.names),
        *own_rates_sections(loaded.valid, view.scaling, view.names),
        *device_sections(loaded.valid, view, loaded.peak_tflops),
        Section(title="Predicted beyond this machine", name="beyond", elements=predicted),
        Section(title="Where the time goes", name="time", elements=[*figures["time"], *_time_tables(loaded, view)]),
        Section(title="Loss and accuracy", name="learning", elements=learning),
    ]


def _scaling_table(view: SweepView) -> Element:
    scaling = view.scaling
    note = f"{scaling.scaling.capitalize()} scaling. {captions.repeats(scaling)} {method_text.method(scaling)}"
    return sweep_tables.scaling_table(scaling, view.names, note, view.extrapolations)


def _time_tables(loaded: Loaded, view: SweepView) -> list[Element]:
    tables: list[Element] = []
    if view.costs:
        sweep = loaded.folder.resolve().name
        tables.append(sweep_tables.overheads_table(view.costs, view.scaling, view.names, sweep))
    launch_parts = visible(view.parts, LAUNCH)
    tables.append(sweep_tables.parts_table("One epoch", view.parts, EPOCH, view.names))
    tables.append(sweep_tables.parts_table("One launch", view.parts, launch_parts, view.names, _LAUNCH_PARTS))
    return tables


def condition_sections(
    loaded: Loaded,
    launches: pd.DataFrame | None,
    scaling: Scaling | None,
    predicted: Sequence[Extrapolation],
    *,
    subject: str,
    launches_link: str,
) -> list[Section]:
    """Return what every page has, also of a sweep without a valid launch: causes, conditions, launches, failures.

    `launches_link` is the way from the page to the sweep's folder.
    """
    findings = diagnose_sweep(loaded)
    causes = sweep_tables.causes_table(findings, "Diagnoses", overheads=False)
    sections = [Section(title="Diagnoses", name="diagnoses", elements=[causes] if findings else [])]
    if launches is not None:
        sections.append(_conditions(loaded, launches))
        if scaling is not None:
            cards = [
                Card(title="Methods", copy=method_text.methods(loaded, scaling)),
                Card(title="References (BibTeX)", copy=method_text.bibtex(loaded.valid)),
            ]
            sections.append(Section(title="For a paper", name="methods", elements=cards))
        sections += failed_ranks_sections(loaded.runs, subject)
        with_failed_ranks = {run.point.folder for run in loaded.runs if run.losses}
        table = sweep_tables.launches_table(launches, launches_link, with_failed_ranks)
        sections.append(Section(title="Launches", name="launches", elements=[table]))
    failures = []
    for failure in loaded.failures:
        launch = f"{units.ranks(failure.point.layout.ranks)}, repeat {failure.point.repeat + 1}"
        end = f"exit code {failure.exit_code}, {units.moment(failure.ended)}"
        failures.append((f"{launch}: {failure.reason} ({end})", failure.tail))
    for title, name, items in (
        ("Asked for and not run", "skipped", Items(texts=_skipped(loaded, predicted))),
        ("Failures", "failures", Items(texts=failures)),
        ("Damaged and left out", "damaged", Items(texts=loaded.damaged)),
    ):
        if items.texts:
            sections.append(Section(title=title, name=name, elements=[items]))
    return sections


def _conditions(loaded: Loaded, launches: pd.DataFrame) -> Section:
    used = loaded.valid or loaded.runs
    machine = (*sweep_facts.machine_facts(used), *sweep_facts.account_facts(loaded.accounts))
    cards = [
        Card(title="Training", facts=sweep_facts.workload_facts(used[0].point.workload, used)),
        Card(title="Data", facts=sweep_facts.data_facts(used, launches)),
        Card(title="Machine and versions", facts=machine),
    ]
    return Section(title="Conditions", name="conditions", elements=cards)


def _skipped(loaded: Loaded, predicted: Sequence[Extrapolation]) -> list[str]:
    """Return the layouts that were asked for and did not run, and why."""
    if not loaded.study:
        return []
    one_machine = on_one_machine(loaded.runs)
    predicted_layouts = {point.layout for series in predicted for point in series.points}
    texts = []
    for skipped in loaded.study.skipped:
        text = f"{layout_words(skipped.layout, one_machine)}: {skipped.reason}"
        texts.append(f"{text}; predicted" if str(skipped.layout) in predicted_layouts else text)
    return texts
