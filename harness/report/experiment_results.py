"""Paper A's experiments as they ran here: their sweeps, what each policy measured, the sections and the figure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from harness import datasets
from harness.analysis import units
from harness.analysis.accuracy_times import SLACK, Side, Sided, default_accuracy, side_by_side
from harness.analysis.confidence_intervals import FEWEST_BLOCKS, Interval
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.sweep_choice import choose_sweep
from harness.base.own_matplotlib import Axes
from harness.claims.judgement import ERRATUM, Judgement
from harness.claims.paper_experiments import POLICIES
from harness.report import rank_axes, svg
from harness.report.answer import Banner, Cell, Element, PageFigure, Prose, Section, Table, distinct
from harness.report.html_pages import PAGE, relative_link
from harness.report.learning_tables import sides_table
from harness.report.run_words import settings_words
from harness.report.table_cells import NOT_MEASURED, ratio_cell
from harness.schema.claim import EXPERIMENTS, Claim, Published
from harness.schema.presets import PRESETS, SOURCES
from harness.schema.record import RunRecord
from harness.schema.sweep import Study
from harness.schema.sync_policies import Gradients, Weights, known_policy

PAPER = "A"


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperStudy:
    """One experiment as it ran here: a sweep's folder for each policy, the paper's first, and what went wrong."""

    experiment: str
    folders: tuple[Path, ...]
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLine:
    """One policy of an experiment: how it is called, its layouts, and its sweep's report, empty where none is drawn."""

    sync: str
    sided: Sided
    link: str

    @property
    def top(self) -> Side | None:
        """The layout of the most ranks that has a speedup over fewer."""
        for side in reversed(self.sided.sides):
            if side.ranks > 1 and side.point and side.point.speedup is not None:
                return side
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperExperiment:
    """One experiment: what the paper says of it, what was `loaded` of it, a line for each policy, and what went wrong.

    `goal` is the test accuracy that times are taken to, None where none was tested. Where nothing ran there are no
    lines.
    """

    name: str
    claims: tuple[Claim, ...]
    problem: str
    loaded: tuple[Loaded, ...] = ()
    lines: tuple[PolicyLine, ...] = ()
    goal: float | None = None

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The launches of all policies."""
        return tuple(run for sweep in self.loaded for run in sweep.runs)


def find_studies(results: Path) -> tuple[PaperStudy, ...]:
    """Return those of paper A's experiments that have valid launches of its algorithm in `results`.

    Beside each the same under the other policies, where that ran.

    Raises:
        UserError: a study file is damaged.
    """
    studies = []
    for name in EXPERIMENTS:
        chosen = choose_sweep(results, partial(_is_of_paper, name))
        if chosen is None or chosen.loaded.study is None:
            continue
        sweep = chosen.loaded.study.sweep
        folders = [chosen.loaded.folder]
        for policy in POLICIES[1:]:
            folders.append(results / replace(sweep, workload=replace(sweep.workload, sync=policy)).name)
        studies.append(PaperStudy(experiment=name, folders=tuple(folders)))
    return tuple(studies)


def _is_of_paper(name: str, study: Study) -> bool:
    """Say whether a study is of the experiment called `name`, under the paper's own algorithm."""
    workload = study.sweep.workload
    return workload.name == name and workload.sync == POLICIES[0]


def read_experiments(studies: Sequence[PaperStudy], published: Published, target: Path) -> tuple[PaperExperiment, ...]:
    """Return what ran of each experiment, with its links for a page in the folder `target`."""
    experiments = []
    for study in studies:
        sweeps = [load_sweep(folder) for folder in study.folders if folder.is_dir()]
        loaded = [sweep for sweep in sweeps if sweep.runs]
        claims = published.of(PAPER, study.experiment)
        part = PaperExperiment(name=study.experiment, claims=claims, problem=study.problem)
        if loaded:
            part = _measured(part, loaded, target)
        elif not part.problem:
            part = replace(part, problem="no launch of it finished")
        experiments.append(part)
    return tuple(experiments)


def _measured(part: PaperExperiment, loaded: Sequence[Loaded], target: Path) -> PaperExperiment:
    frames = [(launch_frame(sweep.runs, sweep.epochs), sweep.epochs) for sweep in loaded]
    first = frames[0][0].assign(valid=True).sort_values("ranks", kind="stable")
    goal = default_accuracy(first, first["layout"].iloc[0])
    lines = []
    for sweep, sided in zip(loaded, side_by_side(frames, 2.0 if goal is None else goal, shared=True), strict=True):
        report = target.parent / sweep.folder.resolve().name / PAGE
        link = relative_link(report, target) if report.exists() else ""
        lines.append(PolicyLine(sync=_policy_words(sweep.runs[0].point.workload.sync), sided=sided, link=link))
    return replace(part, loaded=tuple(loaded), lines=tuple(lines), goal=goal)


def _policy_words(sync: str) -> str:
    policy = known_policy(sync)
    if isinstance(policy, Gradients):
        return "gradients each step"
    if isinstance(policy, Weights):
        return f"weights every {policy.period} steps" if policy.period else "weights each epoch"
    return sync


def printed_speedups(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Return the speedups that the paper prints and that can be right."""
    return tuple(claim for claim in claims if claim.quantity == "speedup" and claim.value and not claim.erratum)


def cuts(part: PaperExperiment) -> tuple[str, ...]:
    """Return what every number of an experiment is of: its rows and epochs, and of how many; its launches."""
    run = part.runs[0]
    workload = run.point.workload
    data = run.data
    usual = int(PRESETS.get(workload.preset, {}).get("epochs", workload.epochs))
    epochs = f"the preset's {usual}" if workload.epochs == usual else f"{workload.epochs} of the preset's {usual}"
    rows = sum(rank.rows for rank in run.ranks)
    kind = "rows" if data.kind == "real" else "synthetic rows"
    sides = [side for line in part.lines for side in line.sided.sides]
    launches = [side.launches for side in sides]
    least = min(launches)
    most = max(launches)
    interval = f"too few for an interval, which needs {FEWEST_BLOCKS}: no number has one"
    if any(line.sided.scaling and line.sided.scaling.has_turns for line in part.lines):
        interval = "interleaved; small print and bars of speedups: 95 % CIs over the blocks"
    elif most >= FEWEST_BLOCKS:
        interval = "small print and bars: 95 % CIs, a time's of its session only" + (
            f" where there are {FEWEST_BLOCKS}" if least < FEWEST_BLOCKS else ""
        )
    all_rows = datasets.dataset_info(workload.dataset).train_rows
    return (
        f"{units.count(rows)} {kind} of the data set's {units.count(all_rows)}",
        f"{epochs} epochs",
        f"tested on {units.count(data.test_rows)} rows{' held out of them' if data.held_out else ''}",
        f"{units.span(least, most)} {'launch' if most == 1 else 'launches'} of each layout, {interval}",
    )


_LOOKS = ((svg.BLUE, "o"), (svg.GREEN, "^"), (svg.ORANGE, "s"))
_APART = 0.008  # of the axis: so little that no marker seems to be of another rank count


def experiment_figure(part: PaperExperiment) -> PageFigure:
    """Return the figure of an experiment that has a speedup."""
    name = part.name.upper()
    base = next(line.sided.scaling.base for line in part.lines if line.sided.scaling)
    printed = printed_speedups(part.claims)
    paper = "The paper prints no number for this chart, so none of its points is drawn"
    if printed:
        printed_base = units.plural(printed[0].base, printed[0].units.removesuffix("s"))
        paper = (
            f"Diamonds: the paper's printed numbers over its base of {printed_base}, the dotted line only joins them"
        )
    goal = f" Open markers: to {units.percent(part.goal, 1)} test accuracy." if part.goal is not None else ""
    caption = (
        f"Speedup of {name} at equal samples (filled) over {units.ranks(base.ranks)}, "
        f"{units.seconds(base.seconds)} per epoch.{goal} {paper}. Dashed: ideal, over either base. "
        f"{'; '.join(cuts(part))}."
    )
    shows = f"Speedup of {name}: published, at equal samples and to equal accuracy"
    return PageFigure(
        picture=svg.draw(
            f"experiment-{part.name}", shows, lambda axes: _paint_experiment(axes, part, printed), (6.4, 3.9)
        ),
        title=f"{name}: speedup at equal samples and to equal accuracy",
        caption=caption,
        table=_experiment_table(part),
    )


def _experiment_table(part: PaperExperiment) -> pd.DataFrame:
    """Return the numbers of the figure: a row for each published number and for each layout of each policy."""
    rows: list[dict[str, object]] = [
        {"series": "published", "base": claim.base, "cores": claim.count, "speedup": claim.value}
        for claim in part.claims
        if claim.quantity == "speedup" and claim.value
    ]
    for line in part.lines:
        base = line.sided.scaling.base.ranks if line.sided.scaling else None
        for side in line.sided.sides:
            point, target = side.point, side.target
            row: dict[str, object] = {"series": line.sync, "base": base, "cores": side.ranks}
            row |= _with_ends("speedup", point.speedup if point else None, point.speedup_interval if point else None)
            row |= _with_ends(
                "speedup_to_accuracy", target.speedup if target else None, target.interval if target else None
            )
            rows.append(row | {"test_accuracy": side.accuracy, "launches": side.launches})
    return pd.DataFrame(rows)


def _with_ends(name: str, value: float | None, interval: Interval | None) -> dict[str, object]:
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _paint_experiment(axes: Axes, part: PaperExperiment, printed: Sequence[Claim]) -> None:
    lines = [(line.sync, line.sided) for line in part.lines]
    base = next(sided.scaling.base.ranks for _, sided in lines if sided.scaling)
    counts = {side.ranks for _, sided in lines for side in sided.sides}
    counts |= {count for claim in printed for count in (claim.base, claim.count)}
    logarithmic = rank_axes.rank_axis(axes, sorted(counts), "Cores (ours: one rank on each)")
    for start in dict.fromkeys([base, *(claim.base for claim in printed)]):
        axes.plot(
            [start, max(counts)], [1, max(counts) / start], color=svg.MUTED.light, linestyle=(0, (5, 3)), linewidth=1
        )
    if printed:
        printed_counts = [printed[0].base, *(claim.count for claim in printed)]
        speedups = [1.0, *(claim.value or 1.0 for claim in printed)]
        axes.plot(
            printed_counts,
            speedups,
            color=svg.VERMILLION.light,
            marker="D",
            markersize=8,
            linestyle=":",
            label="published",
        )
        last = (printed_counts[-1], speedups[-1])
        axes.annotate(f"{speedups[-1]:g}", last, textcoords="offset points", xytext=(-8, 8), ha="right")
    for number, (sync, sided) in enumerate(lines):
        tone, marker = _LOOKS[number % len(_LOOKS)]
        shift = (number - (len(lines) - 1) / 2) * _APART
        look = {"color": tone.light, "marker": marker, "markersize": 6}
        lent = [] if any(side.ranks == base for side in sided.sides) else [(base, 1.0, None)]
        samples = [*lent, *((s.ranks, s.point.speedup, s.point.speedup_interval) for s in sided.sides if s.point)]
        accuracy = [*lent, *((s.ranks, s.target.speedup, s.target.interval) for s in sided.sides if s.target)]
        _series(axes, samples, shift, look | {"label": sync})
        _series(axes, accuracy, shift, look | {"markerfacecolor": svg.PAPER.light, "linestyle": ":"})
    if part.goal is not None:
        open_marker = {"color": svg.INK.light, "marker": "o", "markerfacecolor": svg.PAPER.light, "linestyle": ":"}
        axes.plot([], [], label=f"to {units.percent(part.goal, 1)} accuracy", **open_marker)  # type: ignore[arg-type]
    rank_axes.speedup_axis(axes, "Speedup over the series' own base", logarithmic=logarithmic)


def _series(
    axes: Axes, points: Sequence[tuple[int, float | None, Interval | None]], shift: float, look: dict[str, Any]
) -> None:
    """Draw (ranks, ratio, interval) with markers `shift` of the axis beside their ranks."""
    low, high = axes.get_xlim()
    is_logarithmic = axes.get_xscale() == "log"
    places: list[float] = []
    ratios: list[float] = []
    bars: list[tuple[float, float, Interval]] = []
    for ranks, ratio, interval in points:
        if ratio is None:
            continue
        place = ranks * (high / low) ** shift if is_logarithmic else ranks + shift * (high - low)
        places.append(place)
        ratios.append(ratio)
        if interval:
            bars.append((place, ratio, interval))
    axes.plot(places, ratios, **look)
    for bar in bars:
        rank_axes.error_bars(axes, [bar], look["color"], capsize=3)


def experiments_headline(parts: Sequence[PaperExperiment]) -> str:
    """Return what the paper's algorithm gains at equal samples and to equal accuracy, over all experiments."""
    ran = [part for part in parts if part.lines]
    ours = [side for part in ran if (side := part.lines[0].top)]
    if not ours:
        return f"{len(ran)} of its {len(EXPERIMENTS)} experiments ran. None has valid times on more than one rank."
    speedups = [side.point.speedup for side in ours if side.point and side.point.speedup is not None]
    reached = [side.target.speedup for side in ours if side.target and side.target.speedup is not None]
    counts = [side.ranks for side in ours]
    ranks = units.span(min(counts), max(counts), "ranks")
    missed = len(ours) - len(reached)
    text = f"Averaging once per epoch, {ranks} train the same rows {_ratios(speedups)} times as fast as the base"
    text += f", and reach its accuracy less {100 * SLACK:g} point {_ratios(reached)} times as fast" if reached else ""
    level = "that" if reached else f"its accuracy less {100 * SLACK:g} point"
    return text + (f"; {missed} of {len(ours)} do not reach {level} in these epochs." if missed else ".")


def _ratios(values: Sequence[float]) -> str:
    low = f"{min(values):.2f}"
    high = f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def experiments_table(parts: Sequence[PaperExperiment], judgements: Sequence[Judgement]) -> Table:
    """Return a row for each experiment: printed, measured, and the verdict."""
    rows = [_experiment_row(part, judgements) for part in parts]
    return Table(
        title="The seven experiments",
        headings=(
            "Experiment",
            "Printed in\nthe paper",
            "Ranks\nhere",
            "Measured at\nequal samples",
            "Measured to\nequal accuracy",
            "Verdict on\nthe claims",
        ),
        rows=rows,
        left=2,
        texts=(-1,),
        note="Speedups: printed over the paper's base; measured here, weights averaged once per epoch, over the fewest "
        "ranks.",
    )


def _experiment_row(part: PaperExperiment, judgements: Sequence[Judgement]) -> tuple[str | Cell, ...]:
    judged = [
        judgement
        for judgement in judgements
        if judgement.claim.experiment == part.name and judgement.finding.outcome != ERRATUM
    ]
    top = part.lines[0].top if part.lines else None  # under the paper's algorithm
    target = top.target if top else None
    reached: str | Cell = Cell(text="not reached" if top else units.NONE, value="")
    if target and target.speedup is not None:
        reached = ratio_cell(target.speedup, target.interval)
    printed = "; ".join(
        f"{claim.value:g} on {claim.count} over {claim.base}" for claim in printed_speedups(part.claims)
    )
    return (
        Cell(text=part.name, link=f"#{part.name}"),
        printed or units.NONE,
        str(top.ranks) if top else units.NONE,
        ratio_cell(top.point.speedup, top.point.speedup_interval) if top and top.point else NOT_MEASURED,
        reached,
        distinct(judgement.finding.outcome for judgement in judged) or units.NONE,
    )


def experiment_sections(parts: Sequence[PaperExperiment], judgements: Sequence[Judgement]) -> list[Section]:
    """Return the page's sections: the table of all experiments, what is the paper's, and each experiment."""
    table = experiments_table(parts, judgements)
    return [
        Section(title="The paper's experiments", name="experiments", elements=[table] if table.rows else []),
        Section(title="What is the paper's, and what is ours", name="method", elements=_method(parts)),
        *(_section(part) for part in parts),
    ]


def _method(parts: Sequence[PaperExperiment]) -> list[Element]:
    presets = dict.fromkeys(run.point.workload.preset for part in parts for run in part.runs)
    texts = {
        "The paper's.": "The networks of Table 1, with ReLU convolutions and sigmoid fully connected layers (4.1). The "
        "model is replicated on every rank and the rows are split equally: data parallelism, which the paper calls "
        "model parallelism. Rank 0 reads the rows and sends them point to point (3.3.1). Weights and biases are "
        "averaged over the ranks, synchronously (2.2, 3.3); here once per epoch.",
        **{f"Preset {preset}.": SOURCES[preset] for preset in presets if preset in SOURCES},
        "Ours.": "That the DNNs' hidden layers are sigmoid too, and convolutions keep the image's size. Rows and "
        "epochs, which are cut so that all of it ends in minutes: each experiment says to what. The K of averaging "
        "every K steps. A rank here is a core of one machine, where no other is named below; the paper's cores are "
        "spread over nodes that InfiniBand joins.",
        "Beside it,": "on the same rows and with the same settings: averaging every K steps, and averaging the "
        "gradients of every step, which is what paper B (arXiv 1704.04560) does. The less often ranks average, the "
        "shorter an epoch is and the less it teaches: so every speedup at equal samples has the speedup to equal "
        "accuracy beside it. Equal accuracy is that of one rank alone after its last epoch, less "
        f"{100 * SLACK:g} percentage point; epochs are not interpolated, and a launch that never gets there counts as "
        "infinitely long.",
    }
    return [Prose(lead=lead, text=text, note=False) for lead, text in texts.items()]


def _section(part: PaperExperiment) -> Section:
    claims = [claim.text + (f" (printed wrong: {claim.erratum})" if claim.erratum else "") for claim in part.claims]
    figures = distinct(claim.figure for claim in part.claims if claim.figure)
    title = f"Figure {figures}: {part.name.upper()}" if figures else f"Text only: {part.name.upper()}"
    elements: list[Element] = [Prose(text=f"The paper: {'; '.join(claims)}.")]
    if part.problem:
        ran = "Not all of it ran" if part.lines else "Nothing ran here"
        elements.append(Prose(text=f"{ran}: {part.problem}.", note=False))
    if part.lines:
        elements.append(Prose(text=f"Every number here is of {'; '.join(cuts(part))}.", note=False))
        if any(line.top for line in part.lines):
            elements.append(experiment_figure(part))
        else:
            elements.append(Prose(text="No times on several ranks are valid, so there is no speedup to draw."))
        settings = "; ".join(settings_words(part.runs[0].point.workload))
        sides = [
            (Cell(text="nothing, one rank alone" if side.ranks == 1 else line.sync, link=line.link), side)
            for line in part.lines
            for side in line.sided.sides
        ]
        elements += [
            sides_table("What is averaged", sides, part.goal),
            Prose(text=f"{settings}. Only the synchronisation differs between the lines."),
        ]
    return Section(title=title, name=part.name, elements=elements)


def experiment_banners(parts: Sequence[PaperExperiment]) -> list[Banner]:
    """Return what failed, and which launches have no times that count."""
    banners = [Banner(kind="warning", text=f"{part.name.upper()}: {part.problem}.") for part in parts if part.problem]
    for part in parts:
        bad = [run for run in part.runs if run.invalid]
        if bad:
            text = f"{part.name.upper()}: the times of {units.plural(len(bad), 'launch')} do not count"
            banners.append(Banner(kind="warning", text=f"{text} ({bad[0].invalid[0]}); what they learned does."))
    return banners
