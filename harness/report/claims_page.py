"""What became of the papers' claims: the ledger with a verdict for each, and the published figures beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.analysis import numbers
from harness.analysis.read_results import RULE
from harness.analysis.scaling import ratios_frame, scale
from harness.claims.evidence import ClaimEvidence, compare, is_about
from harness.claims.verdict import Judgement, PredictedRatio, predict_claim
from harness.claims.wording import ClaimRow, claim_row, headline
from harness.prediction.network_cost import Uncertain
from harness.prediction.step_model import measured_base
from harness.report import captions
from harness.report.answer import Banner, FigureBlock
from harness.report.claims_figures import imagenet_charts, published_picture, published_table
from harness.report.figures.scaling import series_table, speedup_picture
from harness.report.launch_summary import place_facts
from harness.report.provenance import sweeps_origin
from harness.report.publish import Page, publish, summary_of
from harness.report.render import PAGE, Head, distinct, relative_link
from harness.report.svg import linked
from harness.report.sweep_facts import machine_facts
from harness.schema.claim import EXPERIMENTS, Claim, Published

FOLDER = "claims"
PAPER, OTHER_PAPER = "A", "B"


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionBasis:
    """What predictions rest on beside the measured bases: the links, and one sentence about them."""

    network: Uncertain
    said: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A sweep that was looked at. `link` leads to its report, empty where none is drawn; `refusals` of all claims."""

    evidence: ClaimEvidence
    link: str
    counts: str
    launches: int
    refusals: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FigurePair:
    """One experiment's published figure and ours, with what the paper says of it where it has no figure to redraw."""

    title: str
    texts: tuple[str, ...]
    published: FigureBlock | None
    ours: FigureBlock | None


def write_claims(
    judgements: Sequence[Judgement],
    evidence: Sequence[ClaimEvidence],
    published: Published,
    reports: Path,
    model: PredictionBasis | None = None,
    moment: datetime | None = None,
    results: Path | None = None,
) -> Path:
    """Write ``REPORTS/claims/index.html`` with its figures, whole or not at all; return its path.

    `judgements` are of the `published` claims by `evidence` (`claims.verdict.judge_all`). Without a `model` nothing
    is predicted. The index calls the page made at `moment` (now) where nothing ran.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written.
    """
    target = reports / FOLDER
    evidence = [one for one in evidence if any(is_about(claim, one) for claim in published.claims)]
    pairs = [_pair(name, published.of(PAPER, name), judgements, target) for name in EXPERIMENTS]
    charts = imagenet_charts(published.of(OTHER_PAPER), evidence)
    runs = [run for one in evidence for run in one.runs]
    drawn = [(one.published, one.ours) for one in pairs] + [(chart.published, chart.ours) for chart in charts]
    head = Head(
        question="What became of the papers' claims?",
        answer=headline(judgements),
        facts=place_facts(runs) if runs else (),
        command="harness claims",
    )
    values = {
        "banners": _banners(evidence),
        "ledgers": [
            (paper, [_row(one, model, target) for one in judgements if one.claim.paper == paper.key])
            for paper in published.papers
        ],
        "model": model.said if model else "",
        "ran": [_ran(one, published.claims, target) for one in evidence],
        "rule": RULE,
        "pairs": pairs,
        "charts": charts,
        "machine": machine_facts(runs) if runs else (),
    }
    page = Page(
        place=FOLDER,
        template="claims.html.j2",
        summary=summary_of("claims", "The papers' claims", head.answer, runs, moment),
        head=head,
        values=values,
        figures=[block for blocks in drawn for block in blocks if block],
        origin=sweeps_origin(head.command, {id(one.loaded): one.loaded for one in evidence}.values()),
    )
    return publish(page, reports, results)


def _row(judgement: Judgement, model: PredictionBasis | None, target: Path) -> ClaimRow:
    runs = tuple(
        (f"{one.loaded.folder.name}/{folder}", link)
        for one in judgement.finding.used
        for folder, link in _links(one, target).items()
    )
    return claim_row(judgement, _predicted(judgement, model), runs)


def _links(one: ClaimEvidence, target: Path) -> dict[str, str]:
    """Return the address of each launch's folder, by its name."""
    return {run.point.folder: relative_link(one.loaded.folder / run.point.folder, target) for run in one.runs}


def _predicted(judgement: Judgement, model: PredictionBasis | None) -> PredictedRatio | None:
    """Return the prediction of a claimed ratio, by the sweep that would answer if it had the claim's rank counts."""
    claim, used = judgement.claim, judgement.finding.used
    if model is None or not used or not claim.base:
        return None
    return predict_claim(claim, measured_base(used[0].loaded), model.network)


def _banners(evidence: Sequence[ClaimEvidence]) -> tuple[Banner, ...]:
    twins = [one.experiment for one in evidence if not one.real]
    if not twins:
        return ()
    text = f"Synthetic data. Twins of the same shapes stood in for the real rows of {distinct(twins)}."
    return (Banner(kind="data", text=f"{text} Their accuracies say only that training works."),)


def _ran(one: ClaimEvidence, claims: Sequence[Claim], target: Path) -> Ran:
    """Return the sweep, with why no claim is judged by it where that is so."""
    report = target.parent / one.loaded.folder.resolve().name / PAGE
    refused = [compare(claim, one).refusals for claim in claims if is_about(claim, one)]
    reasons = dict.fromkeys(reason for refusals in refused for reason in refusals)
    return Ran(
        evidence=one,
        link=relative_link(report, target) if report.exists() else "",
        counts=", ".join(map(str, one.counts)),
        launches=len(one.runs),
        refusals=tuple(reasons) if refused and all(refused) else (),
    )


def _pair(name: str, claims: Sequence[Claim], judgements: Sequence[Judgement], target: Path) -> FigurePair:
    """Return the figures of one experiment: ours is of the sweep that its first claim rests on."""
    subject = name.upper()
    used = [one.finding.used for one in judgements if one.claim.experiment == name and one.finding.used]
    figure = next((claim.figure for claim in claims if claim.figure), "")
    return FigurePair(
        title=f"Figure {figure}: {subject}" if figure else f"Text only: {subject}",
        texts=tuple(claim.text + (f" (erratum: {claim.erratum})" if claim.erratum else "") for claim in claims),
        published=_published(claims, name, subject),
        ours=_ours(used[0][0], name, subject, target) if used else None,
    )


def _published(claims: Sequence[Claim], name: str, subject: str) -> FigureBlock | None:
    picture = published_picture(claims, f"published-{name}", subject)
    if picture is None:
        return None
    base = numbers.plural(claims[0].base, claims[0].units.removesuffix("s"))
    caption = (
        f"Published speedup of {subject} over {base}: the numbers that the paper prints, and no line where it "
        "prints none. The paper gives no absolute time, no spread, no batch size and no repeats. Dashed: ideal."
    )
    return FigureBlock(picture=picture, title="Published", caption=caption, table=published_table(claims))


def _ours(one: ClaimEvidence, name: str, subject: str, target: Path) -> FigureBlock | None:
    scaling = scale(one.launches)
    if scaling is None or len(scaling.points) < 2:
        return None
    ratios = ratios_frame(scaling, one.launches)
    caption = (
        f"Speedup of {subject} over {numbers.ranks(scaling.base.ranks)}, measured here with SYNC={one.workload.sync}. "
        f"Dashed: ideal; light dots: single launches. {captions.conditions(scaling, one.runs)}"
    )
    picture = linked(speedup_picture(scaling, ratios, subject, f"ours-{name}"), _links(one, target))
    table = series_table(scaling.points, ratios, "speedup")
    return FigureBlock(picture=picture, title="Measured here", caption=caption, table=table)
