"""The sections on paper A's experiments: its algorithm, what came after it, and how much of a speedup is training."""

from collections.abc import Sequence

from harness.analysis import units
from harness.analysis.accuracy_times import SLACK
from harness.claims.judgement import ERRATUM, Judgement
from harness.report.answer import Banner, Cell, Element, Prose, Section, Table, distinct
from harness.report.experiment_figure import experiment_figure
from harness.report.experiment_results import PaperExperiment, cuts, printed_speedups
from harness.report.learning_tables import sides_table
from harness.report.run_words import settings_words
from harness.report.table_cells import NOT_MEASURED, ratio_cell
from harness.schema.claim import EXPERIMENTS
from harness.schema.presets import SOURCES


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
