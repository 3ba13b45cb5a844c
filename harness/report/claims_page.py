"""The papers' experiments and claims on one page: printed, measured, verdict; the ledger; paper B's charts redrawn."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis import numbers
from harness.analysis.scaling import Scaling, scale
from harness.analysis.sweep_choice import RULE
from harness.base.own_matplotlib import Axes
from harness.claims.claim_evidence import ClaimEvidence
from harness.claims.claim_finding import CONFIRMED, ERRATUM, NEAR, REFUTED, UNKNOWN, count_ratio
from harness.claims.claim_match import compare_with_claim, is_about
from harness.claims.claim_studies import ClaimStudy
from harness.claims.judgement import Judgement
from harness.report import svg
from harness.report.answer import Answer, Banner, Block, Card, Cell, FigureBlock, Prose, Section, Table, distinct
from harness.report.paper_sections import PaperExperiment, experiment_banners, experiment_sections, experiments_headline
from harness.report.publish import PAGE, relative_link
from harness.report.sweep_facts import machine_facts, machine_words, place_facts
from harness.schema.claim import Claim, Published
from harness.schema.record import RunRecord
from harness.schema.workload import IMAGE_NETWORKS

UNITS = ("CPUs", "GPUs")
TITLES = tuple(dict.fromkeys(network.title for network in IMAGE_NETWORKS.values()))
_CLAIM_COLUMNS = ("figure", "experiment", "units", "base", "count", "quantity", "value", "kind", "erratum")
FOLDER = "claims"
OTHER_PAPER = "B"
_TONES = {CONFIRMED: "good", REFUTED: "bad"}


def claims_answer(
    judgements: Sequence[Judgement],
    evidence: Sequence[ClaimEvidence],
    experiments: Sequence[PaperExperiment],
    published: Published,
    reports: Path,
    *,
    planned: Sequence[ClaimStudy] = (),
    command: str = "harness claims",
    moment: datetime | None = None,
) -> Answer:
    """Return what became of the papers' experiments and claims, for a page in `reports`.

    `judgements` are of the `published` claims by `evidence`; `planned` is what this machine can judge. The index dates
    the answer `moment` (now) where nothing ran.
    """
    target = reports / FOLDER
    evidence = [one for one in evidence if any(is_about(claim, one) for claim in published.claims)]
    every = [run for one in evidence for run in one.runs] + [run for part in experiments for run in part.runs]
    runs = list({(run.point.key, run.started): run for run in every}.values())
    synthetic = [one.experiment for one in evidence if not one.real]
    synthetic += [part.name for part in experiments if any(run.data.kind != "real" for run in part.runs)]
    banners = experiment_banners(experiments)
    if synthetic:
        text = f"Synthetic data. Stand-ins of the same shapes replaced the real rows of {distinct(synthetic)}."
        banners.insert(0, Banner(kind="data", text=f"{text} Their accuracies say only that training works."))
    machine = Card(title="Machine and versions", facts=machine_facts(runs) if runs else ())
    return Answer(
        question="What became of the papers' experiments and claims?",
        sentence=" ".join([_headline(judgements), *([experiments_headline(experiments)] if experiments else [])]),
        table=Table(
            title="",
            headings=("Paper", "Claim", "Published", "Found here", "Verdict"),
            rows=[
                (
                    f"{one.claim.paper}, {_where(one.claim)}",
                    ": ".join(filter(None, (one.claim.experiment, one.claim.text))),
                    published_words(one.claim),
                    one.finding.reason,
                    one.finding.outcome,
                )
                for one in judgements
                if one.finding.outcome not in (ERRATUM, UNKNOWN)
            ],
        ),
        data={
            "claims": [
                {
                    "claim": one.claim,
                    "outcome": one.finding.outcome,
                    "reason": one.finding.reason,
                    "missing": one.finding.missing,
                    "sweeps": [used.loaded.folder for used in one.finding.used],
                }
                for one in judgements
            ]
        },
        banners=banners,
        facts=place_facts(runs, runs) if runs else (),
        sections=(
            *(experiment_sections(experiments, judgements) if experiments else ()),
            Section(title="Claims", name="claims", blocks=_ledger(judgements, published, target)),
            Section(
                title="What this machine can judge",
                name="studies",
                blocks=[studies_table(planned, judgements, evidence)] if planned else [],
            ),
            Section(title="Sweeps considered", name="ran", blocks=_considered(evidence, published.claims, target)),
            Section(title="ImageNet: paper B's networks", name="imagenet", blocks=_imagenet(published, evidence)),
            Section(title="Machine", name="machine", blocks=[machine] if runs else []),
        ),
        command=command,
        kind="claims",
        place=FOLDER,
        title="The papers' claims",
        when=max((run.started for run in runs), default=moment),
        machine=distinct((machine_words(run.provenance.machine) for run in runs), "; "),
    )


def studies_table(
    planned: Sequence[ClaimStudy], judgements: Sequence[Judgement], evidence: Sequence[ClaimEvidence]
) -> Table:
    """Return what this machine can judge: the claims of each study, what it costs, and how much of it is decided."""
    rows = []
    for one in planned:
        launches = "; ".join(
            f"{sweep.repeats} x {', '.join(str(one.ranks) for one in sweep.layouts)} ranks of {sweep.workload.name}"
            for sweep in one.sweeps
        )
        took = one.took(evidence)
        cost = f"took {took:.1f} minutes" if took else f"about {one.minutes:g} minutes" if one.minutes else "not known"
        number, left = len(one.claims), one.left(judgements)
        state = f"needs {one.lacks}" if one.lacks else f"{number - left} of {number} decided"
        rows.append((one.title, distinct((it.text for it in one.claims), "; "), launches or "a bench", cost, state))
    note = "In turns, by make claims RUN=1 DATA_DIR=folder, which runs what is not decided. What did not run has an "
    return Table(
        title="",
        headings=("Study", "Claims", "Launches", "Costs", "Now"),
        rows=rows,
        left=5,
        note=f"{note}estimate of its minutes on 2 cores.",
    )


def _headline(judgements: Sequence[Judgement]) -> str:
    """Return how many claims have which outcome, the decided ones first."""
    counts = Counter(one.finding.outcome for one in judgements)
    number = counts[CONFIRMED] + counts[REFUTED]
    text = f"{number or 'None'} of {len(judgements)} claims {'are' if number > 1 else 'is'} decided by what ran here"
    said = [
        [f"{counts[kind]} {kind}" for kind in counts if (kind in (CONFIRMED, REFUTED)) is first]
        for first in (True, False)
    ]
    return f"{text}: {'; of the others '.join(', '.join(part) for part in said if part)}." if counts else f"{text}."


def published_words(claim: Claim) -> str:
    """Return the published value, how it was published, and no number where there is none."""
    if claim.value is None:
        return "chart without numbers" if claim.kind == "chart" else "in words"
    if claim.quantity == "accuracy":
        return f"{numbers.percent(claim.value)} accuracy"
    reading = f" ± {claim.reading:g}" if claim.reading else ""
    efficiency = "" if claim.efficiency is None or claim.erratum else f" ({numbers.percent(claim.efficiency)})"
    return f"{claim.value:g}{reading}{efficiency}"


def _where(claim: Claim) -> str:
    return f"Figure {claim.figure}" if claim.figure.isdigit() else claim.figure or "text"


def _ledger(judgements: Sequence[Judgement], published: Published, target: Path) -> list[Block]:
    blocks: list[Block] = [
        Prose(
            text="A claim is judged on the paper's own base and at its own count; one that names no count, from the "
            "fewest to the most ranks of a sweep. A printed number is confirmed where all of a 95 % interval lies "
            f"within {numbers.percent(NEAR)} of it, refuted where none of it does; otherwise it cannot be said, and "
            "the one thing that is missing stands there. How a sweep differs from the paper stands below the verdict; "
            "one that asks another question (no synchronisation, weak scaling, another network, too few rows) "
            "judges nothing. All of it is about the machine named at the end of the page, none of it about the papers' "
            "own."
        ),
    ]
    for paper in published.papers:
        rows = [ledger_row(one, target) for one in judgements if one.claim.paper == paper.key]
        headings = (
            "Where",
            "Claim",
            "Published\n(efficiency)",
            "Verdict here",
            "Most over\nfewest ranks here",
            "Launches",
        )
        title = f"{paper.authors}: {paper.title} (arXiv {paper.arxiv}, {paper.year})"
        note = f"Measured on {paper.testbed}. {paper.note}"
        blocks.append(Table(title=title, headings=headings, rows=rows, left=6, note=note))
    return blocks


def ledger_row(one: Judgement, target: Path) -> tuple[str | Cell, ...]:
    """Return a claim's row: where, claim, published, verdict, ours, launches."""
    claim, finding = one.claim, one.finding
    ours = numbers.NONE
    launches = Cell(text=numbers.NONE)
    if finding.used:
        folders = [it.loaded.folder / run.point.folder for it in finding.used for run in it.runs]
        runs = [(f"{one.parent.name}/{one.name}", relative_link(one, target)) for one in folders]
        launches = Cell(text=str(len(runs)), more=runs)
    if finding.used and claim.base:
        used = finding.used[0]
        ratio = count_ratio(used, used.counts[0], used.counts[-1]) if len(used.counts) > 1 else None
        ours = str(ratio) if ratio else f"{numbers.ranks(used.counts[0])} only"
    over = f"{claim.count} {claim.units} over {claim.base}" if claim.base else ""
    differs = f"Here instead: {'; '.join(one.differences)}" if one.differences else ""
    return (
        Cell(text=_where(claim), note=claim.experiment),
        claim.text,
        Cell(text=published_words(claim), note=over),
        Cell(text=str(finding), note=differs, tone=_TONES.get(finding.outcome, "")),
        ours,
        launches,
    )


def _considered(evidence: Sequence[ClaimEvidence], claims: Sequence[Claim], target: Path) -> list[Block]:
    """Return every sweep, with why no claim is judged by it where that is so."""
    if not evidence:
        text = "None: the results folder holds no valid launch of the papers' networks. Start with make paper."
        return [Prose(text=text)]
    rows = []
    for one in evidence:
        report = target.parent / one.loaded.folder.resolve().name / PAGE
        refused = [compare_with_claim(claim, one).refusals for claim in claims if is_about(claim, one)]
        reasons = dict.fromkeys(reason for refusals in refused for reason in refusals) if all(refused) else ()
        rows.append(
            (
                Cell(text=one.loaded.folder.name, link=relative_link(report, target) if report.exists() else ""),
                one.experiment,
                one.workload.sync,
                one.scaling,
                "real" if one.real else "synthetic",
                ", ".join(map(str, one.counts)) + (" GPUs" if one.gpus else ""),
                Cell(text=numbers.count(one.rows), value=one.rows),
                str(len(one.runs)),
                "; ".join(reasons) or numbers.NONE,
            )
        )
    note = (
        "Of several sweeps that may judge a claim the one with its rank counts does, then the one that differs least "
        f"from it, then by this rule: {RULE}. Repeat paper A with make paper."
    )
    headings = (
        "Sweep",
        "Experiment",
        "Synchronisation",
        "Scaling",
        "Data",
        "Ranks",
        "Rows",
        "Valid\nlaunches",
        "Judges no claim, because",
    )
    return [Table(title="Sweeps considered", headings=headings, rows=rows, left=6, note=note)]


def _imagenet(published: Published, evidence: Sequence[ClaimEvidence]) -> list[Block]:
    blocks: list[Block] = [
        Prose(
            text="From “User-transparent Distributed TensorFlow” (arXiv 1704.04560), not from the paper above. Ours "
            "are, of each network, the sweep that comes closest to the paper, made by make sweep DATASET=imagenet "
            "MODEL=resnet50 NODES=1..2 and the like: another machine, other batches, and where the table says so "
            "another image size."
        )
    ]
    for chart in imagenet_charts(published.of(OTHER_PAPER), evidence):
        what = "GPUs" if chart.units == "GPUs" else "cores"
        nothing = f"Nothing: the results folder has no ImageNet sweep of two rank counts on {what}."
        blocks += [chart.published, chart.ours or Prose(lead=f"Measured here, {what}.", text=nothing, note=False)]
        rows: list[tuple[str | Cell, ...]] = []
        for row in chart.rows:
            low, high = (numbers.significant(row[end]) if row[end] is not None else "" for end in ("low", "high"))
            rows.append(
                (
                    row["network"],
                    str(row["ranks"]),
                    Cell(text=numbers.significant(row["images_per_second"]), note=f"{low} to {high}" if low else ""),
                    str(row["launches"]),
                    f"{row['speedup']:.2f}" if row["speedup"] else numbers.NONE,
                    *(str(row[column]) for column in ("image_size", "global_batch", "precision", "images")),
                )
            )
        headings = (
            "Network",
            "Ranks",
            "Images/s",
            "Launches",
            "Speedup",
            "Image size",
            "Global batch",
            "Precision",
            "Images",
        )
        note = "Images/s with its 95 % interval, of its session only, where there are six launches or more."
        title = f"ImageNet throughput on {what}"
        blocks += [Table(title=title, headings=headings, rows=rows, texts=(-2, -1), note=note)] if rows else []
    return blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageNetChart:
    """One kind of unit: the published chart, ours where there are sweeps, and a row of facts for each of our points."""

    units: str
    published: FigureBlock
    ours: FigureBlock | None
    rows: tuple[dict[str, Any], ...]


def imagenet_charts(claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> tuple[ImageNetChart, ...]:
    """Return both charts: `claims` of paper B, and of each network the sweep in `evidence` that comes closest to it."""
    return tuple(_chart(units, [one for one in claims if one.units == units], evidence) for units in UNITS)


def _chart(units: str, claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> ImageNetChart:
    what = "GPUs" if units == "GPUs" else "cores"
    stated = [claim for claim in claims if claim.value is not None]
    printed: dict[str, list[tuple[int, float]]] = {}
    for claim in stated:
        printed.setdefault(claim.experiment, [(claim.base, 1.0)]).append((claim.count, claim.value or 0.0))
    published = _networks_figure(
        ("published", f"Published ImageNet speedups on {units}", f"Published, {units}"),
        units,
        units,
        printed,
        f"ImageNet speedups over one of the {units} as paper B's chart shows them, read off within "
        f"{max((claim.reading for claim in stated), default=0.0):g}. It gives no spread, no absolute times and no "
        "batch sizes. Dashed: ideal.",
        pd.DataFrame([{column: getattr(claim, column) for column in _CLAIM_COLUMNS} for claim in stated]),
    )
    found = {title: one for title in TITLES if (one := _closest(title, claims, evidence))}
    scalings = {title: scaling for title, one in found.items() if (scaling := scale(one.launches))}
    rows = {title: _rows(title, scaling, found[title].runs[0]) for title, scaling in scalings.items()}
    curves = {title: scaling for title, scaling in scalings.items() if len(scaling.points) > 1}
    bases = ", ".join(f"{title} {numbers.ranks(scaling.base.ranks)}" for title, scaling in curves.items())
    ours = (
        _networks_figure(
            ("ours", f"ImageNet speedups measured here, {what}", f"Measured here, {what}"),
            units,
            what,
            {t: [(p.ranks, p.speedup or 1.0) for p in s.points if p.speedup or p is s.base] for t, s in curves.items()},
            f"Speedups of one ImageNet sweep of each network, over its own base ({bases}); one rank on each of the "
            f"{what}. Medians over launches; image sizes, batches and intervals are in the table. Dashed: ideal.",
            pd.DataFrame([row for title in curves for row in rows[title]]),
        )
        if curves
        else None
    )
    every = tuple(row for its in rows.values() for row in its)
    return ImageNetChart(units=units, published=published, ours=ours, rows=every)


def _closest(title: str, claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> ClaimEvidence | None:
    """Return the sweep of a network that differs least from its first claim, the newest of equals."""
    claim = next((claim for claim in claims if claim.experiment == title), None)
    own = [one for one in evidence if claim and is_about(claim, one)]

    def distance(one: ClaimEvidence) -> tuple[int, int]:
        assert claim is not None
        return len(compare_with_claim(claim, one).refusals), -len(one.counts)

    return min(own, key=distance, default=None)


def _rows(title: str, scaling: Scaling, run: RunRecord) -> list[dict[str, Any]]:
    """Return a row for every point: images/s with its interval, and what it was measured on."""
    return [
        {
            "network": title,
            "ranks": point.ranks,
            "images_per_second": point.rows_per_second,
            "low": point.rows_interval.low if point.rows_interval else None,
            "high": point.rows_interval.high if point.rows_interval else None,
            "launches": point.launches,
            "speedup": point.speedup,
            "image_size": run.data.features[0],
            "global_batch": point.global_batch,
            "precision": run.point.workload.precision,
            "images": f"{run.data.kind}, {'in files' if run.ranks[0].step_without_input_s else 'in memory'}",
        }
        for point in scaling.points
    ]


def _networks_figure(
    named: tuple[str, str, str],
    units: str,
    axis: str,
    series: dict[str, list[tuple[int, float]]],
    caption: str,
    table: pd.DataFrame,
) -> FigureBlock:
    """Return a figure `named` by its file, what it shows, and its title: by network, units and speedup over one."""
    place, shows, title = named

    def paint(axes: Axes) -> None:
        counts = [count for points in series.values() for count, _ in points]
        logarithmic = svg.rank_axis(axes, counts, axis)
        least = min(counts)
        axes.plot([least, max(counts)], [1, max(counts) / least], label="ideal", **svg.IDEAL)
        for network, points in series.items():
            look = svg.mark(TITLES.index(network))
            x, y = [count for count, _ in points], [speedup for _, speedup in points]
            axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.dashes, label=network)
        over = axis.removesuffix("s") if least == 1 else axis
        svg.speedup_axis(axes, f"Speedup over {least} {over}", logarithmic=logarithmic)

    picture = svg.draw(f"imagenet-{place}-{units.lower()}", shows, paint)
    return FigureBlock(picture=picture, title=title, caption=caption, table=table)
