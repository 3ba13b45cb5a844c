"""What became of the published claims, and the figures they stand in beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis import numbers
from harness.analysis.frames import launch_frame
from harness.analysis.learning import final_frame
from harness.analysis.load import Loaded, load_sweep
from harness.analysis.scaling import Scaling, ratios_frame, scale
from harness.base.files import folder_atomic
from harness.claims.verdict import JUDGED, NEEDS_CORES, Judgement, judge, predict_claim
from harness.claims.wording import ClaimRow, claim_row
from harness.prediction.measured_base import measured_base
from harness.prediction.model import Base, Uncertain
from harness.report import captions, render
from harness.report.captions import speedup_label
from harness.report.claims_figures import Chart, published_picture, published_table
from harness.report.figures.scaling import series_table, speedup_picture
from harness.report.render import PAGE, Banner, FigureBlock, check_replaceable, distinct, relative_link, write_figures
from harness.report.svg import linked
from harness.report.sweep_facts import machine_facts
from harness.schema.claim import Claim, Published
from harness.schema.record import RunRecord

FOLDER = "claims"
PAPER = "A"


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeated:
    """One experiment as it ran here: its sweep's folder, or none, and what went wrong in one sentence."""

    experiment: str
    folder: Path | None
    problem: str = ""
    preset: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbers:
    """What one experiment's sweep holds, ready to draw."""

    runs: tuple[RunRecord, ...]
    launches: pd.DataFrame
    scaling: Scaling
    final: pd.DataFrame
    base: Base
    links: tuple[tuple[str, str], ...]

    @property
    def real(self) -> bool:
        """Whether all valid launches trained on the real data."""
        return all(run.data.kind == "real" for run in self.runs if not run.invalid)


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One experiment's part of the page: published on the left, ours on the right."""

    name: str
    title: str
    texts: tuple[str, ...]
    published: FigureBlock | None
    ours: FigureBlock | None
    measured: Numbers | None
    problem: str
    link: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """What predictions rest on beside the measured bases: the links, and one sentence about them."""

    network: Uncertain
    said: str


def write_paper(
    repeated: Sequence[Repeated],
    published: Published,
    reports: Path,
    preset: str,
    model: Model | None = None,
    imagenet: Sequence[Chart] = (),
) -> Path:
    """Write ``REPORTS/claims/index.html`` with its figures, whole or not at all; return its path.

    Experiments without a valid launch keep their published part and say why ours is missing. Without a `model`
    nothing is predicted.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written.
    """
    target = reports / FOLDER
    check_replaceable(target)
    experiments = [_experiment(entry, published, target) for entry in repeated]
    runs = [run for e in experiments if e.measured for run in e.measured.runs if not run.invalid]
    measured = {e.name: e.measured for e in experiments}
    judgements = {paper.key: _judge(published.of(paper.key), measured) for paper in published.papers}
    with folder_atomic(target) as staging:
        pairs = [(e.published, e.ours) for e in experiments] + [(c.published, c.ours) for c in imagenet]
        blocks = [block for pair in pairs for block in pair if block]
        write_figures(staging, blocks)
        content = render.page(
            "paper.html.j2",
            headline=_headline(experiments, judgements[PAPER]),
            banners=_banners(experiments),
            experiments=[(e, facts_of(e.measured) if e.measured else None) for e in experiments],
            ledgers=[(paper, _rows(judgements[paper.key], measured, model)) for paper in published.papers],
            model=model.said if model else "",
            charts=imagenet,
            preset=preset,
            machine=machine_facts(runs) if runs else (),
        )
        (staging / PAGE).write_text(content, encoding="utf-8")
    return target / PAGE


def _experiment(entry: Repeated, published: Published, target: Path) -> Experiment:
    claims = published.of(PAPER, entry.experiment)
    subject = entry.experiment.upper()
    loaded = load_sweep(entry.folder) if entry.folder else None
    measured = _measure(loaded, target) if loaded else None
    problem = entry.problem or ("" if measured else _why_nothing(loaded))
    report = target.parent / entry.folder.resolve().name / PAGE if entry.folder else None
    return Experiment(
        name=entry.experiment,
        title=f"Figure {claims[0].figure}: {subject}" if claims and claims[0].figure else f"Text only: {subject}",
        texts=tuple(claim.text + (f" (erratum: {claim.erratum})" if claim.erratum else "") for claim in claims),
        published=_published(claims, entry.experiment, subject),
        ours=_ours(measured, entry.experiment, subject) if measured else None,
        measured=measured,
        problem=problem,
        link=relative_link(report, target) if report and report.exists() else "",
    )


def _why_nothing(loaded: Loaded | None) -> str:
    reasons = [reason for run in loaded.runs for reason in run.invalid] if loaded else []
    if not reasons:
        return "no launch of it finished"
    assert loaded is not None
    return f"none of its {numbers.plural(len(loaded.runs), 'launch')} is valid: {reasons[0]}"


def _measure(loaded: Loaded, target: Path) -> Numbers | None:
    if not loaded.valid:
        return None
    launches = launch_frame(loaded.runs, loaded.epochs)
    scaling = scale(launches)
    assert scaling is not None
    return Numbers(
        runs=loaded.runs,
        launches=launches,
        scaling=scaling,
        final=final_frame(launches),
        base=measured_base(loaded),
        links=tuple(
            (run.point.folder, relative_link(loaded.folder / run.point.folder, target)) for run in loaded.valid
        ),
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


def _ours(measured: Numbers, name: str, subject: str) -> FigureBlock | None:
    scaling = measured.scaling
    if len(scaling.points) < 2:
        return None
    ratios = ratios_frame(scaling, measured.launches)
    caption = (
        f"{speedup_label(scaling)} of {subject} over {numbers.ranks(scaling.base.ranks)}, measured here. Dashed: "
        f"ideal; light dots: single launches. {captions.conditions(scaling, measured.runs)}"
    )
    picture = linked(speedup_picture(scaling, ratios, subject, f"ours-{name}"), dict(measured.links))
    table = series_table(scaling.points, ratios, "speedup")
    return FigureBlock(picture=picture, title="Measured here", caption=caption, table=table)


def _judge(claims: Sequence[Claim], measured: dict[str, Numbers | None]) -> tuple[Judgement, ...]:
    judgements = []
    for claim in claims:
        found = measured.get(claim.experiment)
        judgements.append(judge(claim, found.launches if found else None, real=bool(found and found.real)))
    return tuple(judgements)


def _rows(
    judgements: Sequence[Judgement], measured: dict[str, Numbers | None], model: Model | None
) -> tuple[ClaimRow, ...]:
    rows = []
    for judgement in judgements:
        found = measured.get(judgement.claim.experiment)
        if found is None:
            rows.append(claim_row(judgement, None, None))
            continue
        predicted = predict_claim(judgement.claim, found.base, model.network) if model else None
        rows.append(claim_row(judgement, found.scaling, found.final, predicted=predicted, runs=found.links))
    return tuple(rows)


def _headline(experiments: Sequence[Experiment], judgements: Sequence[Judgement]) -> str:
    ran = [e for e in experiments if e.measured]
    judged = sum(judgement.verdict in JUDGED for judgement in judgements)
    waiting = [judgement.cores for judgement in judgements if judgement.verdict == NEEDS_CORES]
    cores = [point.ranks for e in ran if e.measured for point in e.measured.scaling.points]
    where = f" on {numbers.span(min(cores), max(cores))} cores" if cores else ""
    text = f"{len(ran)} of {len(experiments)} experiments gave valid times here{where}. "
    text += f"{judged or 'None'} of the paper's {len(judgements)} claims can be judged on its own base"
    if waiting:
        text += f"; {len(waiting)} need {numbers.span(min(waiting), max(waiting))} cores"
    return f"{text}."


def _banners(experiments: Sequence[Experiment]) -> tuple[Banner, ...]:
    twins = [e.name.upper() for e in experiments if e.measured and not e.measured.real]
    found = []
    if twins:
        text = f"Synthetic data. Twins of the same shapes stood in for the real rows of {distinct(twins)}."
        found.append(Banner(kind="data", text=f"{text} Times are comparable, accuracies are not."))
    for e in experiments:
        if e.problem:
            found.append(Banner(kind="warning", text=f"{e.name.upper()}: {e.problem}."))
    return tuple(found)


def facts_of(measured: Numbers) -> dict[str, Any]:
    """Return the table row of what ran: data, batch, base, the largest point that compares, accuracy there."""
    scaling, last = measured.scaling, measured.final.iloc[-1]
    valid = [run for run in measured.runs if not run.invalid]
    others = [point for point in scaling.others if point.speedup is not None]
    return {
        "data": distinct(run.data.kind for run in valid),
        "held_out": any(run.data.held_out for run in valid),
        "batch": distinct(rank.batch for run in valid for rank in run.ranks),
        "base": scaling.base,
        "top": others[-1] if others else None,
        "accuracy": float(last["test_accuracy"]),
        "auc": float(last["test_auc"]),
        "ranks": int(last["ranks"]),
    }
