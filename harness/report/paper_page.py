"""Paper A's experiments as they ran here: its algorithm, what came after it, and how much of a speedup is training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import datasets
from harness.analysis import numbers
from harness.analysis.frames import launch_frame
from harness.analysis.learning import SLACK, Side, Sided, default_accuracy, side_by_side
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.stats import NEEDED
from harness.report.answer import Banner, FigureBlock
from harness.report.launch_summary import place_facts
from harness.report.paper_figure import experiment_picture, experiment_table, printed_speedups
from harness.report.provenance import FigureSource, Origin, sweeps_origin
from harness.report.publish import Page, publish, summary_of
from harness.report.render import PAGE, Head, distinct, relative_link
from harness.report.sweep_facts import machine_facts
from harness.schema.claim import Claim, Published
from harness.schema.option import conditions
from harness.schema.presets import PRESETS, SOURCES
from harness.schema.record import RunRecord
from harness.schema.sync import Gradients, Weights, find_policy
from harness.schema.workload import Workload

FOLDER = "paper"
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentTimes:
    """What ran of one experiment. `goal` is the test accuracy that times are taken to, None where none was tested."""

    runs: tuple[RunRecord, ...]
    sources: tuple[FigureSource, ...]
    lines: tuple[PolicyLine, ...]
    goal: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentSection:
    """One experiment's part of the page. `printed` are the speedups that the paper prints for it."""

    title: str
    name: str
    printed: str
    texts: tuple[str, ...]
    problem: str
    said: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    figure: FigureBlock | None
    measured: ExperimentTimes | None


def read_parts(studies: Sequence[PaperStudy], published: Published, reports: Path) -> tuple[ExperimentSection, ...]:
    """Return what ran of each experiment, with its links for a page in `reports`."""
    return tuple(_part(study, published.of(PAPER, study.experiment), reports / FOLDER) for study in studies)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentOutcome:
    """The first line of an experiment's table beside the paper: its fewest ranks and its most with valid times."""

    part: ExperimentSection
    base: Side
    top: Side


def _outcomes(parts: Sequence[ExperimentSection]) -> tuple[ExperimentOutcome, ...]:
    return tuple(
        ExperimentOutcome(part=part, base=part.measured.lines[0].sided.sides[0], top=top)
        for part in parts
        if part.measured and (top := _top(part.measured.lines[0]))
    )


def row(part: ExperimentSection) -> tuple[str, str, str, str]:
    """Return an experiment's name, most ranks, and their speedup at equal samples and to equal accuracy."""
    side = _top(part.measured.lines[0]) if part.measured else None
    ratios = [one.speedup if one else None for one in (side.point, side.target)] if side else [None, None]
    speedup, reached = (numbers.NONE if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    return part.name, str(side.ranks) if side else numbers.NONE, speedup, reached


def write_paper_page(
    parts: Sequence[ExperimentSection], reports: Path, claims: Path, command: str, results: Path | None = None
) -> Path:
    """Write ``REPORTS/paper/index.html`` of `parts` with its figures, whole or not at all; return its path.

    `claims` is the page of the claims' verdicts, which it leads to; `command` runs the same again.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written.
    """
    runs = [run for part in parts if part.measured for run in part.measured.runs]
    presets = list(dict.fromkeys(run.point.workload.preset for run in runs))
    head = Head(
        question="What does the algorithm of “Distributed TensorFlow with MPI” (arXiv 1603.02339) gain here?",
        answer=headline(parts),
        facts=place_facts(runs) if runs else (),
        command=command,
    )
    values = {
        "outcomes": _outcomes(parts),
        "banners": _banners(parts),
        "parts_of_page": parts,
        "presets": [(preset, SOURCES[preset]) for preset in presets if preset in SOURCES],
        "claims": relative_link(claims, reports / FOLDER),
        "machine": machine_facts(runs) if runs else (),
        "slack": SLACK,
    }
    sources = tuple(source for part in parts if part.measured for source in part.measured.sources)
    page = Page(
        place=FOLDER,
        template="paper.html.j2",
        summary=summary_of("paper", "The paper's experiments", head.answer, runs),
        head=head,
        values=values,
        figures=[part.figure for part in parts if part.figure],
        origin=Origin(command="harness paper", sources=sources),
    )
    return publish(page, reports, results)


def _part(study: PaperStudy, claims: Sequence[Claim], target: Path) -> ExperimentSection:
    subject = study.experiment.upper()
    loaded = [one for folder in study.folders if folder.is_dir() and (one := load_sweep(folder)).runs]
    measured = _measure(loaded, target) if loaded else None
    problem = study.problem or ("" if measured else "no launch of it finished")
    figures = distinct(claim.figure for claim in claims if claim.figure)
    return ExperimentSection(
        title=f"Figure {figures}: {subject}" if figures else f"Text only: {subject}",
        name=study.experiment,
        printed="; ".join(f"{one.value:g} on {one.count} over {one.base}" for one in printed_speedups(claims)),
        texts=tuple(claim.text + (f" (erratum: {claim.erratum})" if claim.erratum else "") for claim in claims),
        problem=problem,
        said=_cuts(measured) if measured else (),
        settings=tuple(conditions(measured.runs[0].point.workload)) if measured else (),
        figure=_figure(measured, claims, study.experiment) if measured and any(map(_top, measured.lines)) else None,
        measured=measured,
    )


def _measure(loaded: Sequence[Loaded], target: Path) -> ExperimentTimes:
    frames = [(launch_frame(one.runs, one.epochs), one.epochs) for one in loaded]
    first = frames[0][0].assign(valid=True).sort_values("ranks", kind="stable")
    goal = default_accuracy(first, first["layout"].iloc[0])
    sided = side_by_side(frames, 2.0 if goal is None else goal, shared=True)
    return ExperimentTimes(
        runs=tuple(run for one in loaded for run in one.runs),
        sources=sweeps_origin("", loaded).sources,
        lines=tuple(
            PolicyLine(
                sync=policy_words(one.runs[0].point.workload.sync), sided=found, link=_report(one.folder, target)
            )
            for one, found in zip(loaded, sided, strict=True)
        ),
        goal=goal,
    )


def policy_words(sync: str) -> str:
    """Return a policy in a reader's words."""
    policy = find_policy(sync)
    if isinstance(policy, Gradients):
        return "gradients each step"
    if isinstance(policy, Weights):
        return f"weights every {policy.period} steps" if policy.period else "weights each epoch"
    return sync


def _report(folder: Path, target: Path) -> str:
    report = target.parent / folder.resolve().name / PAGE
    return relative_link(report, target) if report.exists() else ""


def _top(line: PolicyLine) -> Side | None:
    """Return the layout of the most ranks that has a speedup over fewer."""
    found = [side for side in line.sided.sides if side.ranks > 1 and side.point and side.point.speedup is not None]
    return found[-1] if found else None


def _cuts(measured: ExperimentTimes) -> tuple[str, ...]:
    """Return what every number of an experiment is of: its rows and epochs, and of how many; its launches."""
    run = measured.runs[0]
    workload, data = run.point.workload, run.data
    whole = datasets.info(workload.dataset)
    rows = sum(rank.rows for rank in run.ranks)
    kind = "rows" if data.kind == "real" else "synthetic rows"
    least, most = (pick(side.launches for line in measured.lines for side in line.sided.sides) for pick in (min, max))
    interval = f"too few for an interval, which needs {NEEDED}: no number has one"
    if most >= NEEDED:
        interval = "small print and bars: 95 % intervals" + (f" where there are {NEEDED}" if least < NEEDED else "")
    return (
        f"{numbers.count(rows)} {kind} of the data set's {numbers.count(whole.train_rows)}",
        f"{_of(workload.epochs, _usual_epochs(workload))} epochs",
        f"tested on {numbers.count(data.test_rows)} rows{' held out of them' if data.held_out else ''}",
        f"{numbers.span(least, most)} {'launch' if most == 1 else 'launches'} of each layout, {interval}",
    )


def _usual_epochs(workload: Workload) -> int:
    return int(PRESETS.get(workload.preset, {}).get("epochs", workload.epochs))


def _of(part: int, whole: int) -> str:
    return f"{part} of the preset's {whole}" if part != whole else f"the preset's {whole}"


def _figure(measured: ExperimentTimes, claims: Sequence[Claim], name: str) -> FigureBlock:
    lines = [(line.sync, line.sided) for line in measured.lines]
    picture = experiment_picture(lines, claims, name, measured.goal)
    base = next(line.sided.scaling.base for line in measured.lines if line.sided.scaling)
    printed = printed_speedups(claims)
    paper = (
        f"Diamonds: the paper's printed numbers over its base of "
        f"{numbers.plural(printed[0].base, printed[0].units.removesuffix('s'))}, the dotted line only joins them"
        if printed
        else "The paper prints no number for this chart, so none of its points is drawn"
    )
    goal = f" Open markers: to {numbers.percent(measured.goal, 1)} test accuracy." if measured.goal is not None else ""
    caption = (
        f"Speedup of {name.upper()} at equal samples (filled) over {numbers.ranks(base.ranks)}, "
        f"{numbers.seconds(base.seconds)} per epoch.{goal} {paper}. Dashed: ideal, over either base. "
        f"{'; '.join(_cuts(measured))}."
    )
    title = f"{name.upper()}: speedup at equal samples and to equal accuracy"
    return FigureBlock(picture=picture, title=title, caption=caption, table=experiment_table(lines, claims))


def headline(parts: Sequence[ExperimentSection]) -> str:
    """Return what the paper's algorithm gains at equal samples and to equal accuracy, over all experiments."""
    ran = [part.measured for part in parts if part.measured]
    ours = [side for one in ran if (side := _top(one.lines[0]))]
    text = f"{len(ran)} of {len(parts)} experiments ran here. "
    if not ours:
        return text + "None has valid times on more than one rank, so there is no speedup."
    speedups = [side.point.speedup for side in ours if side.point and side.point.speedup is not None]
    reached = [side.target.speedup for side in ours if side.target and side.target.speedup is not None]
    ranks = numbers.span(min(side.ranks for side in ours), max(side.ranks for side in ours), "ranks")
    text += f"Averaging once per epoch, {ranks} train the same rows {_ratios(speedups)} times as fast as the base"
    missed = len(ours) - len(reached)
    text += f", and reach its accuracy less {100 * SLACK:g} point {_ratios(reached)} times as fast" if reached else ""
    return text + (f"; {missed} of {len(ours)} do not reach that in these epochs." if missed else ".")


def _ratios(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _banners(parts: Sequence[ExperimentSection]) -> tuple[Banner, ...]:
    twins = [p.name.upper() for p in parts if p.measured and any(r.data.kind != "real" for r in p.measured.runs)]
    found = []
    if twins:
        text = f"Synthetic data. Twins of the same shapes stood in for the real rows of {distinct(twins)}."
        found.append(Banner(kind="data", text=f"{text} Their accuracies say only that training works."))
    for part in parts:
        if part.problem:
            found.append(Banner(kind="warning", text=f"{part.name.upper()}: {part.problem}."))
        bad = [run for run in part.measured.runs if run.invalid] if part.measured else []
        if bad:
            text = f"{part.name.upper()}: the times of {numbers.plural(len(bad), 'launch')} do not count"
            found.append(Banner(kind="warning", text=f"{text} ({bad[0].invalid[0]}); what they learned does."))
    return tuple(found)
