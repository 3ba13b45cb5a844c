"""What is predicted: `harness predict`'s curves and ways to run a job, and the tables of a sweep's page.

All with what it rests on, and predictions scored by what was measured since.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from harness.analysis import numbers
from harness.analysis.stats import Interval
from harness.base.own_matplotlib import Axes, ticker
from harness.prediction.advice import AdviceScore, JobLimits, TrainingJob, Way
from harness.prediction.beyond import Beyond, BeyondScore
from harness.prediction.forecast import NetworkReference, PredictedCurve, Score
from harness.prediction.step_model import assumptions
from harness.report.answer import Answer, Banner, Cell, Fact, FigureBlock, Items, Prose, Section, Table
from harness.report.figures.breakdown import EPOCH
from harness.report.svg import MUTED, draw, mark, rank_axis, speedup_axis, time_unit
from harness.report.sweep_tables import NOT_MEASURED, predicted_cell, ratio_cell, seconds_cell
from harness.schema.presets import repeat_command
from harness.schema.sweep import Sweep

_HEADINGS = (
    "Ranks", "Step", "Computation", "Slowest rank", "Allreduce", "Epoch", "Low to high", "Speedup", "Efficiency",
)  # fmt: skip
_JOB_HEADINGS = ("From", "Ranks", "Nodes", "Job", "95 % interval", "Node-hours", "Accuracy", "Settings")
_TIMES = ("step_s", "compute_s", "straggler_s", "allreduce_s", "epoch_s")
_LABELS = {part.column: part.label for part in EPOCH}


def prediction_answer(found: Sequence[PredictedCurve], network: str, algorithm: str, command: str) -> Answer:
    """Return what the `command` predicts of each workload, with the costs that `network` says.

    In a terminal: the table of the one workload, of several their last rows.
    """
    names = [one.name.replace(one.base.workload.name, one.base.workload.name.upper()) for one in found]
    tables = [_curve_table(name, one.frame) for name, one in zip(names, found, strict=True)]
    parts = [_section(name, one, table) for name, one, table in zip(names, found, tables, strict=True)]
    last = [[one.name, *table.rows[-1]] for one, table in zip(found, tables, strict=True)]
    several = Table(title="", headings=("Workload", *_HEADINGS), rows=last, wide=(_HEADINGS.index("Computation") + 1,))
    costs = f"{network}; allreduce: {algorithm}"
    return Answer(
        question=f"How would {', '.join(names)} scale to {int(found[0].frame['ranks'].max()):,} ranks?",
        sentence=f"Predicted, not measured: {'; '.join(map(_sentence, found))}.",
        table=tables[0] if len(found) == 1 else several,
        data={"network": network, "predicted": [_data(one) for one in found]},
        banners=[Banner(kind="warning", text="Nothing here was measured except what the predictions rest on.")],
        tiles=[_tile(name, one.frame.iloc[-1]) for name, one in zip(names, found, strict=True)],
        facts=(Fact(name="Network", value=costs), Fact(name="Base", value="; ".join(one.base.source for one in found))),
        sections=(*parts, Section(title="Figures", name="figures", blocks=_figures(names, found))),
        command=command,
        kind="predict",
        place="predict",
        title=", ".join(names),
    )


def _sentence(one: PredictedCurve) -> str:
    base, by_growth = one.base, ""
    if one.grown.frame is not None:
        last = one.grown.frame.iloc[-1]
        value, low, high = (last["speedup"] * last["epoch_s"] / last[f"epoch{end}_s"] for end in ("", "_high", "_low"))
        by_growth = (
            f", by growth models {numbers.significant(value)} "
            f"({numbers.significant(low)} to {numbers.significant(high)})"
        )
    return (
        f"{one.name} on {numbers.ranks(int(one.frame['ranks'].iloc[-1]))} is "
        f"{numbers.significant(one.speedup)} times as fast as on {numbers.ranks(base.ranks)} "
        f"({numbers.ratio_span(one.interval)} by the measured costs' intervals){by_growth}"
    )


def _section(name: str, one: PredictedCurve, table: Table) -> Section:
    """Return what one prediction rests on, its table, and its growth models or why there are none."""
    base, growth, grown = one.base, one.grown.growth, one.grown.frame
    anchor, rests = re.sub(r"\W+", "-", name.lower()), f"{one.name}: base is {base.source}."
    blocks: list[Prose | Table] = [Prose(text=" ".join([rests, *assumptions(base, one.frame["ranks"])])), table]
    if grown is None:
        blocks.append(Prose(text=f"{one.name}: no growth models: {growth.refused}."))
        return Section(title=name, name=anchor, blocks=blocks)
    held, test = one.grown.held, "No count can be spared to test them."
    if held:
        off = f"{numbers.percent(abs(held.error), 1)} too {'high' if held.error > 0 else 'low'}"
        inside = "inside" if held.covered else "outside"
        test = f"Fitted to the other counts alone they are {off} at {numbers.ranks(held.ranks)}, {inside} their band."
    counts = ", ".join(map(str, growth.counts))
    models = Table(
        title=f"{name}, growth models",
        headings=("Part of a step", "Error", "Model, p ranks"),
        rows=[(_LABELS[part], numbers.percent(form.error, 1), form.words) for part, form in growth.chosen.items()],
        note="Each part of a step has the model in the ranks with the least leave-one-out error, here as a part of a "
        "step: c0 + c1 p^i log2(p)^j, as in Extra-P. Waits and allreduces are of one synchronisation.",
    )
    rows = [
        _computed(
            f"{int(row['ranks']):,}",
            numbers.seconds(float(row["epoch_s"])),
            numbers.seconds_span(Interval(low=float(row["epoch_low_s"]), high=float(row["epoch_high_s"]))),
            numbers.significant(float(row["speedup"])),
        )
        for _, row in grown.iterrows()
    ]
    by_growth = Table(
        title=f"{name}, predicted by growth models",
        headings=("Ranks", "Epoch by growth", "95 % band", "Speedup"),
        rows=rows,
        texts=(),
    )
    blocks += [Prose(text=f"{base.workload.name}: growth models from {counts} ranks. {test}"), models, by_growth]
    return Section(title=name, name=anchor, blocks=blocks)


def _computed(first: str, *values: str) -> tuple[str | Cell, ...]:
    return first, *(Cell(text=value, computed=True) for value in values)


def _curve_table(name: str, frame: pd.DataFrame) -> Table:
    rows = [
        _computed(
            numbers.count(row["ranks"]),
            *(numbers.seconds(row[part]) for part in _TIMES),
            numbers.seconds_span(Interval(low=row["epoch_low_s"], high=row["epoch_high_s"])),
            numbers.significant(row["speedup"]),
            numbers.percent(row["efficiency"]),
        )
        for row in frame.to_dict("records")
    ]
    wide = (_HEADINGS.index("Computation"),)
    return Table(title=f"{name}, predicted", headings=_HEADINGS, rows=rows, texts=(), wide=wide)


def _data(one: PredictedCurve) -> Mapping[str, object]:
    growth, frame = one.grown.growth, one.grown.frame
    return {
        "workload": one.base.workload.name,
        "sync": one.base.workload.sync,
        "base": one.base.source,
        "points": one.frame.to_dict("records"),
        "growth": {
            "refused": growth.refused,
            "counts": growth.counts,
            "parts": [{"part": part, "model": one.words, "error": one.error} for part, one in growth.chosen.items()],
            "points": [] if frame is None else frame.to_dict("records"),
            "held_out": one.grown.held,
        },
    }


def _tile(name: str, last: "pd.Series[float]") -> Fact:
    detail = f"predicted speedup at {int(last['ranks']):,} ranks; efficiency {numbers.percent(last['efficiency'])}"
    return Fact(name=name, value=numbers.significant(last["speedup"]), detail=detail)


def _figures(names: Sequence[str], found: Sequence[PredictedCurve]) -> list[FigureBlock]:
    counts = sorted({int(ranks) for one in found for ranks in one.frame["ranks"]})
    curves = [(name, one.frame) for name, one in zip(names, found, strict=True)]

    def paint(axes: Axes) -> None:
        logarithmic = rank_axis(axes, counts)
        ends = [counts[0], counts[-1]]
        axes.plot(ends, [end / ends[0] for end in ends], color=MUTED.light, linestyle=(0, (5, 3)), label="ideal")
        for number, (name, frame) in enumerate(curves, start=1):
            look = mark(number)
            axes.plot(frame["ranks"], frame["speedup"], color=look.colour, linestyle=look.dashes, label=name)
        speedup_axis(axes, "Predicted speedup", logarithmic=logarithmic)

    spoken = "; ".join(f"{n} {f['speedup'].iloc[-1]:.2f} at {int(f['ranks'].iloc[-1]):,} ranks" for n, f in curves)
    speedups = FigureBlock(
        picture=draw("predicted-speedup", "Predicted speedup against ranks", paint, numbers=spoken),
        title="Predicted speedup",
        caption="Lines: predicted, no launch was made. Dashed: ideal.",
        table=pd.concat([frame.assign(workload=name) for name, frame in curves]),
    )
    return [speedups, *(_growth_figure(n, o) for n, o in zip(names, found, strict=True) if o.grown.frame is not None)]


def _growth_figure(name: str, one: PredictedCurve) -> FigureBlock:
    """Draw the epoch time of both predictions beside what was measured."""
    frame, grown, points = one.frame, one.grown.frame, one.grown.points
    assert grown is not None  # the caller's choice
    unit, label = time_unit(float(max(frame["epoch_s"].max(), points["seconds"].max())))

    def paint(axes: Axes) -> None:
        rank_axis(axes, sorted({*map(int, frame["ranks"]), *map(int, points["ranks"])}))
        low, high = grown["epoch_low_s"] * unit, grown["epoch_high_s"] * unit
        axes.fill_between(grown["ranks"], low, high, color=mark(1).colour, alpha=0.18, linewidth=0)
        for look, of, said in ((mark(1), grown, "growth models"), (mark(2), frame, "network's costs")):
            axes.plot(of["ranks"], of["epoch_s"] * unit, color=look.colour, linestyle=look.dashes, label=said)
        axes.plot(points["ranks"], points["seconds"] * unit, "o", color=MUTED.light, label="measured")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
        axes.set_ylabel(f"Epoch time ({label})")

    title = f"{name}: predicted epoch time"
    spoken = "; ".join(
        f"{int(ranks):,} ranks {numbers.seconds(float(epoch))}"
        for ranks, epoch in zip(grown["ranks"], grown["epoch_s"], strict=True)
    )
    return FigureBlock(
        picture=draw(f"growth-{name.lower()}", f"{title} against ranks", paint, numbers=spoken),
        title=title,
        caption="Lines and band: predicted, by growth models of the measured parts (95 %) and by the network's costs. "
        "Points: medians of launches.",
        table=grown,
    )


def asked_words(job: TrainingJob, limits: JobLimits) -> str:
    """Return the question: ``10 epochs within 5 min``."""
    words = [f"{job.target:.3g} test accuracy" if job.target is not None else numbers.plural(job.epochs, "epoch")]
    if limits.deadline_s:
        words.append(f"within {numbers.seconds(limits.deadline_s)}")
    if limits.node_hours:
        words.append(f"for {numbers.significant(limits.node_hours)} node-hours")
    return " ".join(words)


def job_answer(
    ways: Sequence[Way],
    chosen: Way | None,
    asked: str,
    limits: JobLimits,
    sweeps: Mapping[Path, Sweep],
    scores: Sequence[tuple[str, AdviceScore]],
    command: str,
) -> Answer:
    """Return the way to take of `ways`, fastest first, for what was `asked` by the `command`.

    `sweeps` are those that the ways are of, by folder, `scores` those of earlier advice, with the sweeps' names.
    """
    sentence = _job_sentence(ways, chosen, asked)
    if chosen:
        sweep = replace(sweeps[chosen.folder], layouts=(chosen.layout,), repeats=1)
        sentence = f"{sentence.rstrip('.')}: {repeat_command(chosen.folder, sweep)}"
    tables = [
        _ways_table(ways, chosen, measured=kind) for kind in (True, False) if any(w.measured == kind for w in ways)
    ]
    earlier = [_score_sentence(name, score) for name, score in scores]
    return Answer(
        question="How should this job be run?",
        sentence=sentence,
        table=tables[0],
        data={"asked": asked, "chosen": chosen, "ways": ways, "scores": earlier},
        tiles=[Fact(name="Job", value=numbers.seconds(chosen.seconds), detail=chosen.name)] if chosen else [],
        sections=(
            Section(title="Ways to run it", name="ways", blocks=tables),
            Section(title="How earlier advice did", name="scores", blocks=[Items(texts=earlier)] if earlier else []),
        ),
        command=command,
        code=0 if chosen else 1,
        kind="predict",
        place="predict-job",
        title=ways[0].folder.name,
    )


def _ways_table(ways: Sequence[Way], chosen: Way | None, *, measured: bool) -> Table:
    rows: list[list[str | Cell]] = []
    for way in (way for way in ways if way.measured == measured):
        basis = numbers.plural(way.launches, "launch") if measured else "predicted"
        values = (
            numbers.seconds(way.seconds), numbers.seconds_span(way.interval), numbers.significant(way.node_hours),
            numbers.NONE if way.accuracy is None else numbers.percent(way.accuracy, 1),
        )  # fmt: skip
        place = (("take: " if way is chosen else "") + basis, f"{way.layout.ranks:,}", f"{way.layout.nodes:,}")
        rows.append([*place, *(Cell(text=value, computed=not measured) for value in values), way.name])
    note = (
        "Intervals are for one more launch in another session, and hold together for all ways, of which the best was "
        "chosen (Bonferroni); their upper end has to meet the limit."
    )
    if not measured:
        note = f"Predicted by {', '.join(dict.fromkeys(way.predicted for way in ways if way.predicted))}. {note}"
    return Table(title="Measured" if measured else "Predicted", headings=_JOB_HEADINGS, rows=rows, note=note)


def _job_sentence(ways: Sequence[Way], chosen: Way | None, asked: str) -> str:
    if chosen is None:
        fastest, cheapest = (min(ways, key=key) for key in (lambda way: way.seconds, lambda way: way.node_hours))
        return (
            f"No way is certain to make {asked}: the fastest takes {numbers.seconds(fastest.seconds)} "
            f"({numbers.seconds_span(fastest.interval)}) on {numbers.ranks(fastest.layout.ranks)}, the cheapest "
            f"{numbers.significant(cheapest.node_hours)} node-hours."
        )
    basis = f"{numbers.plural(chosen.launches, 'launch')} there" if chosen.measured else "predicted, not measured"
    known = "" if chosen.accuracy is None else f", test accuracy {numbers.percent(chosen.accuracy, 1)}"
    return (
        f"For {asked}: {chosen.name} on {numbers.ranks(chosen.layout.ranks)}, {numbers.seconds(chosen.seconds)} "
        f"({numbers.seconds_span(chosen.interval)}) and {numbers.significant(chosen.node_hours)} node-hours{known} "
        f"({basis})."
    )


def _score_sentence(name: str, score: AdviceScore) -> str:
    advice = score.advice
    off = f"{numbers.percent(abs(score.error), 1)} too {'high' if score.error > 0 else 'low'}"
    return (
        f"Advice of {numbers.moment(advice.made)} UTC, {name} on {numbers.ranks(advice.layout.ranks)}: predicted "
        f"{numbers.seconds(advice.seconds)}, took {numbers.seconds(score.seconds)}; {off}, {score.covered} of "
        f"{numbers.plural(score.launches, 'launch')} since within {numbers.seconds(advice.low)} to "
        f"{numbers.seconds(advice.high)}."
    )


def beyond_table(one: Beyond, names: Mapping[str, str]) -> Table:
    """Return a predicted series: speedup with its band, and the parts of a step."""
    rows: list[tuple[str | Cell, ...]] = [
        (
            str(point.ranks),
            names[point.layout],
            predicted_cell(point),
            Cell(text=numbers.percent(point.efficiency), note=numbers.percent_span(point.efficiency_interval),
                 value=point.efficiency, computed=True),
            seconds_cell(point.seconds, point.seconds_interval, computed=True),
            *(seconds_cell(part, computed=True) for part in (point.compute_s, point.straggler_s, point.allreduce_s)),
        )
        for point in one.points
    ]  # fmt: skip
    return Table(
        title=f"Predicted {one.where}, not measured",
        headings=("Ranks", "Layout", "Predicted\nspeedup", "Predicted\nefficiency", "Predicted\nepoch time",
                  "Computation\nof a step", "Wait for the\nslowest", "Allreduce"),
        rows=rows,
        left=0,
        texts=(1,),
        note=" ".join(one.rests),
    )  # fmt: skip


def beyond_scores(scores: Sequence[BeyondScore]) -> Table:
    """Return what was predicted beyond the machine beside what was measured since."""
    inside = sum(one.covered for one in scores)
    return Table(
        title="Predicted beyond the machine, measured since",
        headings=(
            "Ranks", "Where", "Predicted\nspeedup", "Measured\nspeedup", "Error of the\nprediction", "Within the\nband",
        ),
        rows=[
            (
                str(one.predicted.ranks),
                one.where,
                ratio_cell(one.predicted.speedup, one.predicted.speedup_interval, computed=True),
                ratio_cell(one.measured.speedup, one.measured.speedup_interval),
                Cell(text=f"{100 * one.error:+.1f} %", value=one.error),
                "yes" if one.covered else "no",
            )
            for one in scores
        ],
        left=0,
        texts=(1, -1),
        note=f"{inside} of {len(scores)} measured speedups lie within the predicted band.",
    )  # fmt: skip


def reference_table(reference: NetworkReference) -> Table:
    """Return what a step would take by this machine's network, beside what was measured."""
    return Table(
        title="Reference by this machine's network",
        headings=(
            "Ranks", "Computation\nof a step", "Slowest\nrank", "Allreduce", "Reference of\na step", "Measured\nstep",
            "Reference of\nthe speedup", "Measured\nspeedup",
        ),
        rows=[
            (
                str(one.point.ranks),
                *(
                    seconds_cell(seconds, computed=True)
                    for seconds in (one.compute_s, one.straggler_s, one.allreduce_s, one.step_s)
                ),
                seconds_cell(one.point.step_seconds),
                ratio_cell(one.speedup, computed=True),
                ratio_cell(one.point.speedup),
            )
            for one in reference.points
        ],
        left=0,
        texts=(),
        note=f"What a step would take with the computation of {reference.base}, the wait for the slowest of p ranks "
        f"from the measured distribution of compute times, and the cheapest allreduce with {reference.network}. "
        "Computed, not measured, and not a bound: cores that share memory and clock are not in it, and an allreduce in "
        "shared memory may be faster.",
    )  # fmt: skip


def score_table(title: str, scores: Sequence[Score], note: str) -> Table:
    """Return a prediction that was made before beside what was measured since."""
    rows = []
    for one in scores:
        measured: list[str | Cell] = [NOT_MEASURED, NOT_MEASURED, NOT_MEASURED, "not measured since"]
        if one.measured and one.error is not None:
            measured = [
                seconds_cell(one.measured.seconds, one.measured.seconds_interval),
                ratio_cell(one.measured.speedup),
                Cell(text=f"{100 * one.error:+.1f} %", value=one.error),
                "yes" if one.covered else "no",
            ]
        predicted = seconds_cell(one.predicted.epoch_s, one.interval, computed=True)
        rows.append([str(one.ranks), predicted, ratio_cell(one.predicted.speedup, computed=True), *measured])
    return Table(
        title=title,
        headings=(
            "Ranks", "Predicted\nepoch time", "Predicted\nspeedup", "Measured\nepoch time", "Measured\nspeedup",
            "Error of the\nprediction", "Within the\npredicted range",
        ),
        rows=rows,
        left=0,
        note=note,
    )  # fmt: skip
