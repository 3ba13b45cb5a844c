"""The sections of a sweep's page: what was measured and predicted, and the conditions that it was measured under."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from harness.analysis import units
from harness.analysis.accuracy_times import has_report_time, report_times
from harness.analysis.device_use import DeviceUse, EnergyUse, by_layout, energy_uses
from harness.analysis.launch_frames import final_frame
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import PointScaling, Scaling, needed_launches
from harness.prediction.extrapolation import Extrapolation
from harness.report import captions, learning_tables, method_text, sweep_facts, sweep_tables
from harness.report.answer import Card, Cell, Element, Fact, Items, PageFigure, Section, Table
from harness.report.figures import SweepView
from harness.report.figures.breakdown import EPOCH, LAUNCH, visible
from harness.report.run_words import layout_words, on_one_machine
from harness.report.sweep_sentences import details, headline, last_point, speedup_label, target_of
from harness.report.sweep_tables import failed_ranks_sections, rows_of
from harness.report.table_cells import NOT_MEASURED, percent_cell, seconds_cell
from harness.schema.presets import JUPITER, SUBJECTS
from harness.schema.record import RunRecord
from harness.schema.workload import IMAGE_NETWORKS, Workload, image_size
from harness.why.known_causes import diagnose_sweep

# What the ranks' devices do, on a sweep's page.

# The energy of a sweep's devices as a table.

_ENERGY_NOTE = (
    "Means over launches, from before the first epoch to after the last, evaluations included; of interleaved "
    "launches in their slices. Energy is that of all devices by their own counters (NVML, RAPL)."
)


def energy_table(uses: Sequence[EnergyUse], names: Mapping[str, str]) -> Table:
    """Return a line for every layout and kind of device that has counters; `names` are the layouts' on the page."""
    rows: list[list[str | Cell]] = []
    for use in uses:
        devices = units.plural(use.devices, use.kind)
        place: list[str | Cell] = [str(use.ranks), names[use.layout], devices]
        rows.append([*place, _number(use.joules), seconds_cell(use.seconds), _number(use.watts)])
    headings = ("Ranks", "Layout", "Devices", "Energy\nin J", "Time", "W of a\ndevice")
    return Table(title="Energy of a launch", headings=headings, rows=rows, left=0, texts=(1, 2), note=_ENERGY_NOTE)


def _number(value: float | None) -> Cell:
    return NOT_MEASURED if value is None else Cell(text=units.significant(value), value=value)


_DEVICES = "What a device does"
_RATE = "A rank's device is its GPU, or the cores that it trains on. "
_FLOPS = (
    "TFLOP/s: the matrix products and convolutions of a training step, forward and backward, counted in its traced "
    "graph, times samples per second. "
)
_ENERGY = (
    "Energy from before the first epoch to after the last, evaluations included: of a sample of all ranks, and the "
)
_ENERGY += "mean power of a device."


def device_sections(runs: Sequence[RunRecord], view: SweepView) -> list[Section]:
    """Return the section of the devices of `runs`, valid ones; none where neither operations nor energy are known."""
    scaling = view.scaling
    uses = view.devices
    has_flops = any(use.tflops is not None for use in uses.values())
    has_energy = any(use.joules_per_row is not None for use in uses.values())
    if not (has_flops or has_energy):
        return []
    headings = ["Ranks", "Layout", "Samples/s\nof a rank"]
    headings += ["TFLOP/s\nof a rank", "Of the\npeak"] if has_flops else []
    headings += ["J a\nsample", "W of a\ndevice"] if has_energy else []
    rows = []
    for point in scaling.points:
        rows.append(_device_row(point, uses[point.layout], view.names, has_flops=has_flops, has_energy=has_energy))
    note = _RATE
    note += f"{_FLOPS}{_peak_words(runs, list(uses.values()))}" if has_flops else ""
    note += _ENERGY if has_energy else ""
    table = Table(title=_DEVICES, headings=headings, rows=rows, left=0, texts=(1,), note=note)
    energy = energy_table(energy_uses(runs), view.names)
    return [Section(title=_DEVICES, name="devices", elements=[table, energy] if energy.rows else [table])]


def _device_row(
    point: PointScaling, use: DeviceUse, names: Mapping[str, str], *, has_flops: bool, has_energy: bool
) -> list[str | Cell]:
    row: list[str | Cell] = [str(point.ranks), names[point.layout], _number(use.rows_per_second)]
    row += [_number(use.tflops), percent_cell(use.utilisation, 1)] if has_flops else []
    row += [_number(use.joules_per_row), _number(use.watts)] if has_energy else []
    return row


def _peak_words(runs: Sequence[RunRecord], uses: Sequence[DeviceUse]) -> str:
    """Return what the peak is, or how one is stated."""
    peaks = {use.peak_tflops for use in uses if use.peak_tflops is not None}
    if not peaks:
        device = runs[0].ranks[0].gpu.partition(",")[0] or runs[0].provenance.machine.cpu
        return f"No peak is known for {device}: --peak-tflops states that of a rank's device. "
    words = " and ".join(units.significant(peak) for peak in sorted(peaks))
    precision = runs[0].point.workload.precision.removeprefix("mixed_")
    if precision == "float32" and runs[0].ranks[0].gpu:
        precision = "float32 (TF32 where the GPU has it)"
    return f"The peak of a rank's device is {words} TFLOP/s, of dense matrix products in {precision}. "


# What a script prints of its own speed, beside what was timed of it.

_NOTE = (
    "Timed: samples of all ranks over the time between the steps' gradients, including interference, without those "
    "that begin a slice. Printed: the last number that the script prints where --own-rate finds one, by its own "
    "clocks, which leave out the slices of others; the median over launches."
)


def own_rates_sections(runs: Sequence[RunRecord], scaling: Scaling, names: Mapping[str, str]) -> list[Section]:
    """Return the section of printed rates; none where no launch of `runs`, valid ones, has any."""
    rows = []
    of_layout = by_layout([run for run in runs if run.own_rate is not None])
    for point in scaling.points:
        printed = [run.own_rate for run in of_layout.get(point.layout, ()) if run.own_rate is not None]
        if printed:
            rows.append(_row(point, statistics.median(printed), len(printed), names))
    if not rows:
        return []
    headings = ("Ranks", "Layout", "Launches", "Samples/s\ntimed", "Samples/s\nprinted", "Printed\nagainst timed")
    table = Table(title="The script's own rate", headings=headings, rows=rows, left=0, texts=(1,), note=_NOTE)
    return [Section(title="The script's own rate", name="own-rate", elements=[table])]


def _row(point: PointScaling, printed: float, launches: int, names: Mapping[str, str]) -> list[str | Cell]:
    timed = point.rows / (point.ran_seconds or point.seconds)
    difference = printed / timed - 1
    is_known = point.global_batch > point.ranks  # a batch of one row stands for a batch that nobody named
    compared = Cell(text=f"{100 * difference:+.1f} %", value=difference) if is_known else NOT_MEASURED
    return [
        str(point.ranks),
        names[point.layout],
        str(launches),
        Cell(text=units.significant(timed), value=timed) if is_known else NOT_MEASURED,
        Cell(text=units.significant(printed), value=printed),
        compared,
    ]


# The JUPITER suite's metric on a sweep's page.

_TITLE = "JUPITER's time to report"
_REPORT_TIME_NOTE = (
    "Time to report = 90 x 1,281,167 / images per second: 90 epochs of ImageNet at the rate of an epoch, with the 95 % "
    "interval of that rate."
)


def report_time_sections(workload: Workload, scaling: Scaling, names: Mapping[str, str]) -> list[Section]:
    """Return the section of the metric; none of a workload that has not the suite's preset."""
    if not has_report_time(workload):
        return []
    times = report_times(scaling)
    in_turns = scaling.has_turns
    rows: list[list[str | Cell]] = []
    for point in scaling.points:
        time = times[point.layout]
        as_it_ran = [seconds_cell(time.ran_seconds)] if in_turns else []
        metric = seconds_cell(time.seconds, time.interval)
        rows.append(
            [
                str(point.ranks),
                names[point.layout],
                Cell(text=units.significant(time.images_per_second), value=time.images_per_second),
                metric,
                *as_it_ran,
            ]
        )
    headings = ("Ranks", "Layout", "Images/s", "Time to report", *(["Incl. interference"] if in_turns else []))
    usual = SUBJECTS[JUPITER].model
    size = image_size(workload.model, workload.image_size)
    suite_size = IMAGE_NETWORKS[usual].size
    different = []
    if workload.model != usual:
        different.append(f"the network is {workload.model}")
    if size != suite_size:
        different.append(f"images have {size} x {size} pixels instead of {suite_size} x {suite_size}")
    differences = f"Not comparable with the suite's numbers: {', '.join(different)}." if different else ""
    note = " ".join(filter(None, (_REPORT_TIME_NOTE, differences)))
    table = Table(title=_TITLE, headings=headings, rows=rows, left=0, texts=(1,), note=note)
    return [Section(title=_TITLE, name="time-to-report", elements=[table])]


def report_time_tile(workload: Workload, scaling: Scaling) -> list[Fact]:
    """Return the metric of the most ranks for a page's first screen; none of other workloads."""
    if not has_report_time(workload):
        return []
    point = scaling.points[-1]
    time = report_times(scaling)[point.layout]
    interval = f"95 % CI {units.seconds_span(time.interval)}" if time.interval else "no interval"
    detail = f"{units.ranks(point.ranks)}, {units.significant(time.images_per_second)} images/s; {interval}"
    return [Fact(name="Time to report", value=units.seconds(time.seconds), detail=detail)]


_LAUNCH_PARTS = (
    "Parts of the launch that is the median, or of the mean of the two middle ones: they sum to it. Computation and "
    "synchronisation of a launch are of all its epochs. Parts that take less than 0.01 % of a launch everywhere are "
    "left out."
)


def measured_sections(loaded: Loaded, view: SweepView, figures: Mapping[str, Sequence[PageFigure]]) -> list[Section]:
    """Return what was measured: scaling, prediction, time, learning, each with its `figures` (`draw_figures`)."""
    scaling = [_scaling_table(loaded, view), *figures["scaling"]]
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
        *device_sections(loaded.valid, view),
        Section(title="Predicted beyond this machine", name="beyond", elements=predicted),
        Section(title="Where the time goes", name="time", elements=[*figures["time"], *_time_tables(loaded, view)]),
        Section(title="Loss and accuracy", name="learning", elements=learning),
    ]


def _scaling_table(loaded: Loaded, view: SweepView) -> Element:
    scaling = view.scaling
    sentences = (
        f"{scaling.scaling.capitalize()} scaling.",
        captions.repeats(scaling),
        method_text.method(scaling),
        method_text.allocations(loaded, scaling),
    )
    note = " ".join(filter(None, sentences))
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
                Card(title="Result to quote", copy=_result(loaded, launches, scaling)),
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


def _result(loaded: Loaded, launches: pd.DataFrame, scaling: Scaling) -> str:
    """Return what a paper quotes: the headline, what it rests on, its conditions, and the accuracy beside it."""
    sentences = [headline(scaling, loaded.valid[0].point.workload), *details(scaling)]
    sentences.append(captions.conditions(scaling, loaded.valid))
    if any(run.data.kind == "synthetic" for run in loaded.valid):
        sentences.append("The samples are synthetic.")
    final = final_frame(launches)
    accuracies = [
        f"{units.percent(row['test_accuracy'], 1)} on {units.ranks(row['ranks'])}"
        for row in rows_of(final[final["test_accuracy"].notna()])
    ]
    if accuracies:
        sentences.append(f"Test accuracy: {', '.join(accuracies)}.")
    return " ".join(sentences).replace("\u00a0", " ")


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


# The numbers of a sweep's first screen, each with its doubt.

_INTERVAL = "95 % CI "


def sweep_tiles(view: SweepView) -> Iterator[Fact]:
    """Yield speedup, also to equal accuracy, efficiency, JUPITER's metric, the largest overhead, accuracy, launches."""
    last = last_point(view.scaling)
    yield _epoch_time(view.scaling) if last is None else _speedup(last, view.scaling)
    yield from _speedup_to_accuracy(view)
    if last is not None:
        interval = _no_interval(last, view.scaling)
        if last.efficiency_interval:
            interval = _INTERVAL + units.percent_span(last.efficiency_interval)
        yield Fact(name="Efficiency", value=units.percent(last.efficiency), detail=f"{interval}{_price(last, view)}")
    yield from report_time_tile(view.runs[0].point.workload, view.scaling)
    if view.costs:
        yield _largest_overhead(view)
    yield from _accuracy(view)
    invalid = sum(bool(run.invalid) for run in view.runs)
    outliers = sum(point.outliers for point in view.scaling.points)
    detail = f"{units.span(*view.scaling.repeats)} per rank count; "
    detail += f"{units.plural(invalid, 'launch')} invalid and excluded" if invalid else "none excluded"
    if view.scaling.left_out and not view.scaling.is_as_it_ran:
        left_out = f"{units.percent(view.scaling.left_out)} of their rounds"
        detail += f"; {left_out} excluded, in which other work used more than 5 % of a rank's core"
    if outliers:
        detail += f"; {units.plural(outliers, 'outlier')}, counted and marked"
    yield Fact(name="Valid launches", value=units.count(len(view.runs) - invalid), detail=detail)


def _price(last: PointScaling, view: SweepView) -> str:
    """Return what the same training costs on the most ranks, as the end of a sentence."""
    if not last.efficiency or view.runs[0].point.workload.sync == "none":
        return ""
    device = "GPU" if view.runs[0].point.layout.gpus_per_rank else "core"
    ratio = f"{1 / last.efficiency:.2f} times the {device} time of {units.ranks(view.scaling.base.ranks)}"
    return f"; the same samples cost {ratio}"


def _epoch_time(scaling: Scaling) -> Fact:
    base = scaling.base
    detail = f"{units.ranks(base.ranks)}, mean of {units.plural(base.launches, 'launch')}"
    return Fact(name="Epoch time", value=units.seconds(base.seconds), detail=detail)


def _speedup(last: PointScaling, scaling: Scaling) -> Fact:
    interval = _no_interval(last, scaling)
    if last.speedup_interval:
        sample = f" over {units.plural(last.blocks, 'block')}" if last.blocks else ""
        interval = f"{_INTERVAL}{units.ratio_span(last.speedup_interval)}{sample}"
    base = scaling.base
    detail = (
        f"{interval}; an epoch takes {units.seconds(last.seconds)} on {units.ranks(last.ranks)}, "
        f"{units.seconds(base.seconds)} on {units.ranks(base.ranks)}"
    )
    return Fact(name=speedup_label(scaling), value=f"{last.speedup:.2f}", detail=detail)


def _no_interval(last: PointScaling, scaling: Scaling) -> str:
    if last.other_session:
        return "no interval: launched in another session than the base"
    return f"no interval: {units.plural(needed_launches(scaling), 'launch')} too few"


def _speedup_to_accuracy(view: SweepView) -> Iterator[Fact]:
    target = target_of(view.scaling, view.targets)
    if target is None or view.goal is None:
        return
    goal = f"to {units.percent(view.goal, 2)} test accuracy"
    reached = f"reached by {target.reached} of {units.plural(target.launches, 'launch')}"
    value = "none"
    detail = f"{goal}, {reached}"
    if target.speedup is not None:
        value = f"{target.speedup:.2f}"
        interval = f"no interval; {reached}"
        if target.interval:
            interval = _INTERVAL + units.ratio_span(target.interval)
        detail = f"{goal}, in whole epochs; {interval}"
    yield Fact(name="Speedup to equal accuracy", value=value, detail=detail)


def _largest_overhead(view: SweepView) -> Fact:
    point = view.costs[-1]
    largest = point.largest
    if largest is None:
        return Fact(name="Largest overhead", value="none", detail="no part takes 1 % more than its ideal share")
    interval = ""
    if largest.speedup_interval:
        interval = f", {_INTERVAL}{units.ratio_span(largest.speedup_interval)}"
    detail = (
        f"{units.percent(largest.fraction)} of the epoch at {units.ranks(point.ranks)}; "
        f"without it the speedup would be at most about {largest.speedup_without:.2f}{interval}"
    )
    return Fact(name="Largest overhead", value=largest.cause.name, detail=detail)


def _accuracy(view: SweepView) -> Iterator[Fact]:
    rows = rows_of(view.final[view.final["test_accuracy"].notna()])
    if not rows:
        return
    fewest = rows[0]
    most = rows[-1]
    detail = f"{units.ranks(most['ranks'])}, after {units.plural(int(most['epochs']), 'epoch')}"
    if len(rows) > 1:
        detail += f"; {units.ranks(fewest['ranks'])}: {units.percent(fewest['test_accuracy'], 2)}"
    yield Fact(name="Test accuracy", value=units.percent(most["test_accuracy"], 2), detail=detail)
