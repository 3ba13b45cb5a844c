"""The papers' experiments and claims on one page: printed, measured, verdict; the ledger of all claims."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from harness.analysis import units
from harness.analysis.sweep_choice import RULE
from harness.claims.claim_evidence import ClaimEvidence
from harness.claims.claim_studies import ClaimStudy
from harness.claims.judgement import CONFIRMED, ERRATUM, REFUTED, UNKNOWN, Judgement, compare_with_claim, is_about
from harness.claims.measures import NEAR, count_ratio
from harness.report.answer import Answer, Banner, Card, Cell, Element, Prose, Section, Table, distinct
from harness.report.experiment_results import (
    PaperExperiment,
    experiment_banners,
    experiment_sections,
    experiments_headline,
)
from harness.report.html_pages import PAGE, relative_link
from harness.report.run_words import machine_words
from harness.report.sweep_facts import machine_facts, place_facts
from harness.schema.claim import Claim, Published
from harness.schema.sweep import Sweep

FOLDER = "claims"
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
    claims = published.claims
    evidence = [sweep for sweep in evidence if _is_considered(sweep, claims)]
    # The launches of both, each once.
    every_run = [run for sweep in evidence for run in sweep.runs]
    every_run += [run for part in experiments for run in part.runs]
    runs = list({(run.point.key, run.started): run for run in every_run}.values())
    sentence = _headline(judgements)
    if experiments:
        sentence += f" {experiments_headline(experiments)}"
    studies = [studies_table(planned, judgements, evidence)] if planned else []
    machine = [Card(title="Machine and versions", facts=machine_facts(runs))] if runs else []
    return Answer(
        question="What became of the papers' experiments and claims?",
        sentence=sentence,
        table=_decided_table(judgements),
        data={"claims": [_data(judgement) for judgement in judgements]},
        banners=[*_synthetic_banner(evidence, experiments), *experiment_banners(experiments)],
        facts=place_facts(runs, runs) if runs else (),
        sections=(
            *(experiment_sections(experiments, judgements) if experiments else ()),
            Section(title="Claims", name="claims", elements=_ledger(judgements, published, target)),
            Section(title="What this machine can judge", name="studies", elements=studies),
            Section(title="Sweeps considered", name="ran", elements=_considered(evidence, claims, target)),
            Section(title="Machine", name="machine", elements=machine),
        ),
        command=command,
        kind="claims",
        place=FOLDER,
        title="The papers' claims",
        when=max((run.started for run in runs), default=moment),
        machine=distinct((machine_words(run.provenance.machine) for run in runs), "; "),
    )


def _is_considered(sweep: ClaimEvidence, claims: Sequence[Claim]) -> bool:
    return any(is_about(claim, sweep) for claim in claims)


def _synthetic_banner(evidence: Sequence[ClaimEvidence], experiments: Sequence[PaperExperiment]) -> list[Banner]:
    """Return a banner that names what was trained on synthetic rows; none where all rows are real."""
    synthetic = [sweep.experiment for sweep in evidence if not sweep.real]
    synthetic += [part.name for part in experiments if _is_synthetic(part)]
    if not synthetic:
        return []
    text = f"Synthetic data: made-up samples of the same shapes replaced the real ones of {distinct(synthetic)}."
    return [Banner(kind="data", text=f"{text} Their accuracies say only that training works.")]


def _is_synthetic(part: PaperExperiment) -> bool:
    return any(run.data.kind != "real" for run in part.runs)


def _decided_table(judgements: Sequence[Judgement]) -> Table:
    """Return what a terminal shows: the claims of which something is known here."""
    rows = []
    for judgement in judgements:
        claim = judgement.claim
        finding = judgement.finding
        if finding.outcome in (ERRATUM, UNKNOWN):
            continue
        text = ": ".join(filter(None, (claim.experiment, claim.text)))
        paper = f"{claim.paper}, {_where(claim)}"
        rows.append((paper, text, published_words(claim), finding.reason, finding.outcome))
    return Table(title="", headings=("Paper", "Claim", "Published", "Found here", "Verdict"), rows=rows)


def _data(judgement: Judgement) -> dict[str, object]:
    """Return what JSON has of one claim."""
    finding = judgement.finding
    return {
        "claim": judgement.claim,
        "outcome": finding.outcome,
        "reason": finding.reason,
        "missing": finding.missing,
        "sweeps": [used.loaded.folder for used in finding.used],
    }


def studies_table(
    planned: Sequence[ClaimStudy], judgements: Sequence[Judgement], evidence: Sequence[ClaimEvidence]
) -> Table:
    """Return what this machine can judge: the claims of each study, what it costs, and how much of it is decided."""
    rows = []
    for study in planned:
        claims = distinct((claim.text for claim in study.claims), "; ")
        launches = "; ".join(map(_launches_words, study.sweeps)) or "a bench"
        count = len(study.claims)
        state = f"{count - study.left(judgements)} of {count} decided"
        if study.lacks:
            state = f"needs {study.lacks}"
        rows.append((study.title, claims, launches, _cost_words(study, evidence), state))
    return Table(
        title="",
        headings=("Study", "Claims", "Launches", "Costs", "Now"),
        rows=rows,
        left=5,
        note="Interleaved, by `harness claims --run --data-dir FOLDER`, which runs what is not decided. What did not "
        "run has an estimate of its minutes on 2 cores.",
    )


def _launches_words(sweep: Sweep) -> str:
    ranks = ", ".join(str(layout.ranks) for layout in sweep.layouts)
    return f"{sweep.repeats} x {ranks} ranks of {sweep.workload.name}"


def _cost_words(study: ClaimStudy, evidence: Sequence[ClaimEvidence]) -> str:
    minutes = study.took(evidence)
    if minutes:
        return f"took {minutes:.1f} minutes"
    return f"about {study.minutes:g} minutes" if study.minutes else "not known"


def _headline(judgements: Sequence[Judgement]) -> str:
    """Return how many claims have which outcome, the decided ones first."""
    counts = Counter(judgement.finding.outcome for judgement in judgements)
    number = counts[CONFIRMED] + counts[REFUTED]
    text = f"{number or 'None'} of {len(judgements)} claims {'are' if number > 1 else 'is'} decided by what ran here"
    decided = ", ".join(f"{counts[kind]} {kind}" for kind in counts if kind in (CONFIRMED, REFUTED))
    open_claims = ", ".join(f"{counts[kind]} {kind}" for kind in counts if kind not in (CONFIRMED, REFUTED))
    outcomes = "; of the others ".join(filter(None, (decided, open_claims)))
    return f"{text}: {outcomes}." if outcomes else f"{text}."


def published_words(claim: Claim) -> str:
    """Return the published value, how it was published, and no number where there is none."""
    if claim.value is None:
        return "chart without numbers" if claim.kind == "chart" else "in words"
    if claim.quantity == "accuracy":
        return f"{units.percent(claim.value)} accuracy"
    reading = f" ± {claim.reading:g}" if claim.reading else ""
    efficiency = "" if claim.efficiency is None or claim.erratum else f" ({units.percent(claim.efficiency)})"
    return f"{claim.value:g}{reading}{efficiency}"


def _where(claim: Claim) -> str:
    return f"Figure {claim.figure}" if claim.figure.isdigit() else claim.figure or "text"


def _ledger(judgements: Sequence[Judgement], published: Published, target: Path) -> list[Element]:
    elements: list[Element] = [
        Prose(
            text="A claim is judged on the paper's own base and at its own count; one that names no count, from the "
            "fewest to the most ranks of a sweep. A printed number is confirmed where all of a 95 % CI lies "
            f"within {units.percent(NEAR)} of it, refuted where none of it does; otherwise it cannot be said, and "
            "the one thing that is missing stands there. How a sweep differs from the paper stands below the verdict; "
            "one that asks another question (no synchronisation, weak scaling, another network, too few rows) "
            "judges nothing. All of it is about the machine named at the end of the page, none of it about the papers' "
            "own."
        ),
    ]
    for paper in published.papers:
        rows = [ledger_row(judgement, target) for judgement in judgements if judgement.claim.paper == paper.key]
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
        elements.append(Table(title=title, headings=headings, rows=rows, left=6, note=note))
    return elements


def ledger_row(judgement: Judgement, target: Path) -> tuple[str | Cell, ...]:
    """Return a claim's row: where, claim, published, verdict, ours, launches."""
    claim = judgement.claim
    finding = judgement.finding
    ours = units.NONE
    launches = Cell(text=units.NONE)
    if finding.used:
        folders = [sweep.loaded.folder / run.point.folder for sweep in finding.used for run in sweep.runs]
        links = [(f"{folder.parent.name}/{folder.name}", relative_link(folder, target)) for folder in folders]
        launches = Cell(text=str(len(links)), more=links)
    if finding.used and claim.base:
        ours = _most_over_fewest(finding.used[0])
    over = f"{claim.count} {claim.units} over {claim.base}" if claim.base else ""
    differs = f"Here instead: {'; '.join(judgement.differences)}" if judgement.differences else ""
    return (
        Cell(text=_where(claim), note=claim.experiment),
        claim.text,
        Cell(text=published_words(claim), note=over),
        Cell(text=str(finding), note=differs, tone=_TONES.get(finding.outcome, "")),
        ours,
        launches,
    )


def _most_over_fewest(sweep: ClaimEvidence) -> str:
    """Return the ratio of the most to the fewest ranks of a sweep, with its interval."""
    ratio = None
    if len(sweep.counts) > 1:
        ratio = count_ratio(sweep, sweep.counts[0], sweep.counts[-1])
    return str(ratio) if ratio else f"{units.ranks(sweep.counts[0])} only"


def _considered(evidence: Sequence[ClaimEvidence], claims: Sequence[Claim], target: Path) -> list[Element]:
    """Return every sweep, and for those that judge no claim the reason."""
    if not evidence:
        text = "None: the results folder holds no valid launch of the papers' networks. Start with make paper."
        return [Prose(text=text)]
    rows = []
    for sweep in evidence:
        report = target.parent / sweep.loaded.folder.resolve().name / PAGE
        link = relative_link(report, target) if report.exists() else ""
        rows.append(
            (
                Cell(text=sweep.loaded.folder.name, link=link),
                sweep.experiment,
                sweep.workload.sync,
                sweep.scaling,
                "real" if sweep.real else "synthetic",
                ", ".join(map(str, sweep.counts)) + (" GPUs" if sweep.gpus else ""),
                Cell(text=units.count(sweep.rows), value=sweep.rows),
                str(len(sweep.runs)),
                "; ".join(_refusals(sweep, claims)) or units.NONE,
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


def _refusals(sweep: ClaimEvidence, claims: Sequence[Claim]) -> list[str]:
    """Return why a sweep judges none of the claims that it is about; nothing where it judges one."""
    reasons: dict[str, None] = {}
    for claim in claims:
        if not is_about(claim, sweep):
            continue
        refusals = compare_with_claim(claim, sweep).refusals
        if not refusals:
            return []
        reasons |= dict.fromkeys(refusals)
    return list(reasons)
