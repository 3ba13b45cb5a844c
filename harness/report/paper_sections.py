"""Paper A's experiments as they ran here: its algorithm, what came after it, and how much of a speedup is training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness import datasets
from harness.analysis import numbers
from harness.analysis.accuracy_times import SLACK, default_accuracy
from harness.analysis.frames import launch_frame
from harness.analysis.inference import FEWEST_LAUNCHES, Interval
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.side_by_side import Side, Sided, side_by_side
from harness.analysis.sweep_choice import choose_sweep
from harness.base.own_matplotlib import Axes
from harness.claims.claim_finding import ERRATUM
from harness.claims.judgement import Judgement
from harness.claims.paper_experiments import POLICIES
from harness.report import svg
from harness.report.answer import Banner, Block, Cell, FigureBlock, Prose, Section, Table, distinct
from harness.report.publish import PAGE, relative_link
from harness.report.sweep_tables import NOT_MEASURED, ratio_cell, sides_table
from harness.schema.claim import EXPERIMENTS, Claim, Published
from harness.schema.presets import PRESETS, SOURCES
from harness.schema.record import RunRecord
from harness.schema.setting_words import conditions
from harness.schema.sync import Gradients, Weights, find_policy

_LOOKS = ((svg.BLUE, "o"), (svg.GREEN, "^"), (svg.ORANGE, "s"))
_APART = 0.008  # of the axis: so little that no marker seems to be of another rank count
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
        found = [side for side in self.sided.sides if side.ranks > 1 and side.point and side.point.speedup is not None]
        return found[-1] if found else None


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
        return tuple(run for one in self.loaded for run in one.runs)


def find_studies(results: Path) -> tuple[PaperStudy, ...]:
    """Return those of paper A's experiments that have valid launches of its algorithm in `results`.

    Beside each the same under the other policies, where that ran.

    Raises:
        UserError: a study file is damaged.
    """
    found = []
    for name in EXPERIMENTS:
        own = choose_sweep(
            results,
            lambda study, name=name: (study.sweep.workload.name, study.sweep.workload.sync) == (name, POLICIES[0]),  # type: ignore[misc]
        )
        if own and own.loaded.study:
            sweep = own.loaded.study.sweep
            others = [replace(sweep, workload=replace(sweep.workload, sync=policy)).name for policy in POLICIES[1:]]
            folders = (own.loaded.folder, *(results / other for other in others))
            found.append(PaperStudy(experiment=name, folders=folders))
    return tuple(found)


def read_experiments(studies: Sequence[PaperStudy], published: Published, target: Path) -> tuple[PaperExperiment, ...]:
    """Return what ran of each experiment, with its links for a page in the folder `target`."""
    found = []
    for study in studies:
        loaded = [one for folder in study.folders if folder.is_dir() and (one := load_sweep(folder)).runs]
        claims = published.of(PAPER, study.experiment)
        part = PaperExperiment(name=study.experiment, claims=claims, problem=study.problem)
        if loaded:
            part = _measured(part, loaded, target)
        found.append(part if loaded or part.problem else replace(part, problem="no launch of it finished"))
    return tuple(found)


def _measured(part: PaperExperiment, loaded: Sequence[Loaded], target: Path) -> PaperExperiment:
    frames = [(launch_frame(one.runs, one.epochs), one.epochs) for one in loaded]
    first = frames[0][0].assign(valid=True).sort_values("ranks", kind="stable")
    goal = default_accuracy(first, first["layout"].iloc[0])
    lines = []
    for one, sided in zip(loaded, side_by_side(frames, 2.0 if goal is None else goal, shared=True), strict=True):
        report = target.parent / one.folder.resolve().name / PAGE
        link = relative_link(report, target) if report.exists() else ""
        lines.append(PolicyLine(sync=_policy_words(one.runs[0].point.workload.sync), sided=sided, link=link))
    return replace(part, loaded=tuple(loaded), lines=tuple(lines), goal=goal)


def _policy_words(sync: str) -> str:
    policy = find_policy(sync)
    if isinstance(policy, Gradients):
        return "gradients each step"
    if isinstance(policy, Weights):
        return f"weights every {policy.period} steps" if policy.period else "weights each epoch"
    return sync


def experiments_headline(parts: Sequence[PaperExperiment]) -> str:
    """Return what the paper's algorithm gains at equal samples and to equal accuracy, over all experiments."""
    ran = [part for part in parts if part.lines]
    ours = [side for one in ran if (side := one.lines[0].top)]
    if not ours:
        return f"{len(ran)} of its {len(EXPERIMENTS)} experiments ran. None has valid times on more than one rank."
    speedups = [side.point.speedup for side in ours if side.point and side.point.speedup is not None]
    reached = [side.target.speedup for side in ours if side.target and side.target.speedup is not None]
    ranks, missed = (
        numbers.span(min(one.ranks for one in ours), max(one.ranks for one in ours), "ranks"),
        len(ours) - len(reached),
    )
    text = f"Averaging once per epoch, {ranks} train the same rows {_ratios(speedups)} times as fast as the base"
    text += f", and reach its accuracy less {100 * SLACK:g} point {_ratios(reached)} times as fast" if reached else ""
    level = "that" if reached else f"its accuracy less {100 * SLACK:g} point"
    return text + (f"; {missed} of {len(ours)} do not reach {level} in these epochs." if missed else ".")


def _ratios(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def experiments_table(parts: Sequence[PaperExperiment], judgements: Sequence[Judgement]) -> Table:
    """Return a row for each experiment: printed, measured, and the verdict."""
    rows = []
    for part in parts:
        its = [one for one in judgements if one.claim.experiment == part.name and one.finding.outcome != ERRATUM]
        top = part.lines[0].top if part.lines else None  # under the paper's algorithm
        target = top.target if top else None
        printed = "; ".join(f"{one.value:g} on {one.count} over {one.base}" for one in printed_speedups(part.claims))
        reached = ratio_cell(target.speedup, target.interval) if target and target.speedup is not None else None
        rows.append(
            (
                Cell(text=part.name, link=f"#{part.name}"),
                printed or numbers.NONE,
                str(top.ranks) if top else numbers.NONE,
                ratio_cell(top.point.speedup, top.point.speedup_interval) if top and top.point else NOT_MEASURED,
                reached or Cell(text="not reached" if top else numbers.NONE, value=""),
                distinct(one.finding.outcome for one in its) or numbers.NONE,
            )
        )
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


def experiment_sections(parts: Sequence[PaperExperiment], judgements: Sequence[Judgement]) -> list[Section]:
    """Return the page's sections: the table of all experiments, what is the paper's, and each experiment."""
    table = experiments_table(parts, judgements)
    return [
        Section(title="The paper's experiments", name="experiments", blocks=[table] if table.rows else []),
        Section(title="What is the paper's, and what is ours", name="method", blocks=_method(parts)),
        *(_section(part) for part in parts),
    ]


def _method(parts: Sequence[PaperExperiment]) -> list[Block]:
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
    said = [claim.text + (f" (printed wrong: {claim.erratum})" if claim.erratum else "") for claim in part.claims]
    shown = distinct(claim.figure for claim in part.claims if claim.figure)
    title = f"Figure {shown}: {part.name.upper()}" if shown else f"Text only: {part.name.upper()}"
    blocks: list[Block] = [Prose(text=f"The paper: {'; '.join(said)}.")]
    if part.problem:
        ran = "Not all of it ran" if part.lines else "Nothing ran here"
        blocks.append(Prose(text=f"{ran}: {part.problem}.", note=False))
    if part.lines:
        blocks.append(Prose(text=f"Every number here is of {'; '.join(_cuts(part))}.", note=False))
        if any(line.top for line in part.lines):
            blocks.append(_figure(part))
        else:
            blocks.append(Prose(text="No times on several ranks are valid, so there is no speedup to draw."))
        settings = "; ".join(f"{name}: {value}" for name, value in conditions(part.runs[0].point.workload))
        sides = [
            (Cell(text="nothing, one rank alone" if side.ranks == 1 else line.sync, link=line.link), side)
            for line in part.lines
            for side in line.sided.sides
        ]
        blocks += [
            sides_table("What is averaged", sides, part.goal),
            Prose(text=f"{settings}. Only the synchronisation differs between the lines."),
        ]
    return Section(title=title, name=part.name, blocks=blocks)


def _cuts(part: PaperExperiment) -> tuple[str, ...]:
    """Return what every number of an experiment is of: its rows and epochs, and of how many; its launches."""
    run = part.runs[0]
    workload, data = run.point.workload, run.data
    whole = datasets.info(workload.dataset)
    usual = int(PRESETS.get(workload.preset, {}).get("epochs", workload.epochs))
    epochs = f"the preset's {usual}" if workload.epochs == usual else f"{workload.epochs} of the preset's {usual}"
    rows = sum(rank.rows for rank in run.ranks)
    kind = "rows" if data.kind == "real" else "synthetic rows"
    least, most = (pick(side.launches for line in part.lines for side in line.sided.sides) for pick in (min, max))
    interval = f"too few for an interval, which needs {FEWEST_LAUNCHES}: no number has one"
    if any(side.point and side.point.blocks for line in part.lines for side in line.sided.sides):
        interval = "in turns; small print and bars of speedups: 95 % intervals over the blocks"
    elif most >= FEWEST_LAUNCHES:
        interval = "small print and bars: 95 % intervals, a time's of its session only" + (
            f" where there are {FEWEST_LAUNCHES}" if least < FEWEST_LAUNCHES else ""
        )
    return (
        f"{numbers.count(rows)} {kind} of the data set's {numbers.count(whole.train_rows)}",
        f"{epochs} epochs",
        f"tested on {numbers.count(data.test_rows)} rows{' held out of them' if data.held_out else ''}",
        f"{numbers.span(least, most)} {'launch' if most == 1 else 'launches'} of each layout, {interval}",
    )


def _figure(part: PaperExperiment) -> FigureBlock:
    name = part.name.upper()
    base = next(line.sided.scaling.base for line in part.lines if line.sided.scaling)
    printed = printed_speedups(part.claims)
    paper = (
        f"Diamonds: the paper's printed numbers over its base of "
        f"{numbers.plural(printed[0].base, printed[0].units.removesuffix('s'))}, the dotted line only joins them"
        if printed
        else "The paper prints no number for this chart, so none of its points is drawn"
    )
    goal = f" Open markers: to {numbers.percent(part.goal, 1)} test accuracy." if part.goal is not None else ""
    caption = (
        f"Speedup of {name} at equal samples (filled) over {numbers.ranks(base.ranks)}, "
        f"{numbers.seconds(base.seconds)} per epoch.{goal} {paper}. Dashed: ideal, over either base. "
        f"{'; '.join(_cuts(part))}."
    )
    shows = f"Speedup of {name}: published, at equal samples and to equal accuracy"
    return FigureBlock(
        picture=svg.draw(
            f"experiment-{part.name}", shows, lambda axes: _paint_experiment(axes, part, printed), (6.4, 3.9)
        ),
        title=f"{name}: speedup at equal samples and to equal accuracy",
        caption=caption,
        table=_experiment_table(part),
    )


def experiment_banners(parts: Sequence[PaperExperiment]) -> list[Banner]:
    """Return what failed, and which launches have no times that count."""
    found = [Banner(kind="warning", text=f"{part.name.upper()}: {part.problem}.") for part in parts if part.problem]
    for part in parts:
        bad = [run for run in part.runs if run.invalid]
        if bad:
            text = f"{part.name.upper()}: the times of {numbers.plural(len(bad), 'launch')} do not count"
            found.append(Banner(kind="warning", text=f"{text} ({bad[0].invalid[0]}); what they learned does."))
    return found


def printed_speedups(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Return the speedups that the paper prints and that can be right."""
    return tuple(claim for claim in claims if claim.quantity == "speedup" and claim.value and not claim.erratum)


def _experiment_table(part: PaperExperiment) -> pd.DataFrame:
    """Return the numbers behind the figure: a row for each published number and for each layout of each policy."""
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
    logarithmic = svg.rank_axis(axes, sorted(counts), "Cores (ours: one rank on each)")
    for start in dict.fromkeys([base, *(claim.base for claim in printed)]):
        axes.plot(
            [start, max(counts)], [1, max(counts) / start], color=svg.MUTED.light, linestyle=(0, (5, 3)), linewidth=1
        )
    if printed:
        x, y = [printed[0].base, *(c.count for c in printed)], [1.0, *(c.value or 1.0 for c in printed)]
        axes.plot(x, y, color=svg.VERMILLION.light, marker="D", markersize=8, linestyle=":", label="published")
        axes.annotate(f"{y[-1]:g}", (x[-1], y[-1]), textcoords="offset points", xytext=(-8, 8), ha="right")
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
        axes.plot([], [], label=f"to {numbers.percent(part.goal, 1)} accuracy", **open_marker)  # type: ignore[arg-type]
    svg.speedup_axis(axes, "Speedup over the series' own base", logarithmic=logarithmic)


def _series(
    axes: Axes, points: Sequence[tuple[int, float | None, Interval | None]], shift: float, look: dict[str, Any]
) -> None:
    """Draw (ranks, ratio, interval) with markers `shift` of the axis beside their ranks."""
    known = [(ranks, ratio, interval) for ranks, ratio, interval in points if ratio is not None]
    low, high = axes.get_xlim()
    places = [r * (high / low) ** shift if axes.get_xscale() == "log" else r + shift * (high - low) for r, *_ in known]
    axes.plot(places, [ratio for _, ratio, _ in known], **look)
    for place, (_, ratio, interval) in zip(places, known, strict=True):
        if interval:
            svg.error_bars(axes, [(place, ratio, interval)], look["color"], capsize=3)
