"""Published claims against what was measured; what of the papers is run here to judge them, and how long that takes.

Claims are judged by sweeps that ask the claim's question, or not at all. What a measurement leaves open a prediction
for the paper's testbed may be in line with, or not; it decides nothing.

Paper A's experiments are trained by the paper's own algorithm and by what came after. Each study is trained in turns,
all of its sweeps in one block a repeat; sizes are the least from which the claim's rule has an interval, which claims
do not name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pandas as pd

from harness import datasets
from harness.analysis.inference import FEWEST_BLOCKS, FEWEST_LAUNCHES
from harness.analysis.sweep_choice import standing
from harness.claims.claim_evidence import GPUS, ClaimEvidence, compare_with_claim, foresee, is_about
from harness.claims.claim_rules import (
    CONFIRMED,
    ERRATUM,
    IN_LINE,
    NOT_IN_LINE,
    REFUTED,
    RULES,
    SERVERS,
    UNKNOWN,
    ClaimFinding,
    CountRatio,
    accuracy,
    count_ratio,
    measured_on,
    servers,
)
from harness.schema.claim import EXPERIMENTS, Claim, Experiment, Paper
from harness.schema.presets import resolve
from harness.schema.sweep import Layout, Sweep
from harness.schema.workload import IMAGE_NETWORKS, IMAGENET, Workload
from harness.sweep.plan import build_sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A claim and what our launches say about it. `differences` are those of the sweeps that it rests on.

    `predicted`: what they let expect of its counts on the paper's testbed, None where that is not known.
    """

    claim: Claim
    finding: ClaimFinding
    differences: tuple[str, ...] = ()
    predicted: CountRatio | None = None


def judge_claim(
    claim: Claim, evidence: Sequence[ClaimEvidence], rates: pd.DataFrame, paper: Paper | None = None
) -> Judgement:
    """Return the judgement of `claim` by the sweeps in `evidence` and by a bench (`claim_rules.servers`).

    With its `paper`, by a prediction for that one's testbed too, where measurements leave it open.

    Sweeps that ask another question are left out and change nothing. Of the others those count first that have the
    claim's rank counts, then those that differ least from what the claim is about, then as `sweep_choice.RULE` says.
    """
    if claim.erratum:
        return Judgement(claim=claim, finding=ClaimFinding(outcome=ERRATUM, said=claim.erratum))
    if claim.rule == SERVERS:
        return Judgement(claim=claim, finding=servers(rates))
    about = [one for one in evidence if is_about(claim, one)]
    compared = {id(one): compare_with_claim(claim, one) for one in about}
    able = [one for one in about if not compared[id(one)].other]
    able.sort(key=lambda one: standing(one.loaded), reverse=True)
    wanted = {claim.base, claim.count} if claim.base else set[int]()
    fitting = {id(one): len(wanted & set(one.counts)) if wanted else len(one.counts) for one in able}
    able.sort(key=lambda one: (-fitting[id(one)], len(compared[id(one)].differences)))
    fit = [one for one in able if not compared[id(one)].few]
    if fit:
        finding = _lacking(claim, fit[0]) or RULES[claim.rule](claim, fit)
    else:
        reasons = dict.fromkeys(compared[id(one)].refusals[0] for one in about)
        said = f"what ran asks another question: {'; '.join(reasons)}" if reasons else ""
        finding = ClaimFinding(outcome=UNKNOWN, said=said, missing=f"valid launches of it on {claim.units}")
    ahead = [(one, it) for one in able if paper and (it := foresee(one, claim, paper))]
    if finding.outcome == UNKNOWN and ahead:
        finding = _predicted(claim, ahead) or finding
    differences = dict.fromkeys(text for one in finding.used for text in compared[id(one)].differences)
    predicted = next((count_ratio(it, claim.base, claim.count) for one, it in ahead if _of(claim, one)), None)
    return Judgement(claim=claim, finding=finding, differences=tuple(differences), predicted=predicted)


def _of(claim: Claim, one: ClaimEvidence) -> bool:
    return claim.experiment in ("", one.experiment)


def _predicted(claim: Claim, ahead: Sequence[tuple[ClaimEvidence, ClaimEvidence]]) -> ClaimFinding | None:
    """Return whether `claim` is in line with what sweeps let predict (`ahead`), by its own rule; None where open.

    A printed number is in line where any of the band lies near it.
    """
    ahead = [pair for pair in ahead if claim.against or _of(claim, pair[0])]
    found = RULES[claim.rule](claim, [it for _, it in ahead]) if ahead else None
    if found is None or (found.outcome == UNKNOWN and claim.value is None):
        return None
    used = tuple(one for one, it in ahead if any(it is each for each in found.used))
    return replace(found, outcome=NOT_IN_LINE if found.outcome == REFUTED else IN_LINE, used=used, missing="")


def _lacking(claim: Claim, best: ClaimEvidence) -> ClaimFinding | None:
    """Return the finding where no sweep has the rank counts that the claim needs, None where `best` has them."""
    if not claim.base:
        several = len(best.counts) > 1 or claim.rule == accuracy.__name__
        missing = "" if several else "several rank counts"
    else:
        missing = " and ".join(str(count) for count in (claim.base, claim.count) if count not in best.counts)
        missing = f"launches on {missing} {claim.units}" if missing else ""
    said = measured_on(best)
    return ClaimFinding(outcome=UNKNOWN, said=said, used=(best,), missing=missing) if missing else None


PRESET = "paper-2016-03"
POLICIES = ("weights:epoch", "weights:10", "gradients")
"""What is run on the same rows: the paper's averaging once per epoch, averaging every K steps (the K is ours), and
paper B's gradients every step."""


def rank_counts(cores: int, claims: Iterable[Claim]) -> tuple[int, ...]:
    """Return the rank counts to run: 1, doublings, all `cores`, and the counts of the claims that fit."""
    counts = {1, cores}
    counts |= {2**power for power in range(cores.bit_length()) if 2**power <= cores}
    counts |= {units for claim in claims for units in (claim.base, claim.count) if 1 <= units <= cores}
    return tuple(sorted(counts))


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentSize:
    """How much of an experiment is run; `repeats` are launches of each layout.

    What is None is cut to the experiment's own limits and the fewest blocks that have an interval; with `full` it is
    all rows, the preset's epochs and six launches.
    """

    full: bool = False
    repeats: int | None = None
    epochs: int | None = None
    samples: int | None = None


def plan(
    experiment: Experiment,
    *,
    layouts: Sequence[Layout],
    preset: str,
    size: ExperimentSize,
    data_dir: Path | None,
    oversubscribe: bool = False,
) -> tuple[Sweep, ...]:
    """Return the sweeps of `experiment`: one for each of POLICIES that have a layout to differ in.

    They differ in nothing but the policy. A single rank has nothing to synchronise: the first sweep has it for all.
    Real data smaller than a limit is used whole; preparing it tells how many rows it has.

    Raises:
        UserError: a setting is out of range or the data is wrong.
    """
    full = size.full
    workload = resolve(
        dataset=experiment.dataset,
        model=experiment.model,
        preset=preset,
        epochs=size.epochs or (None if full else experiment.epochs),
        samples=size.samples or (None if full else experiment.rows),
    )
    workload = sized(workload, data_dir)
    several = tuple(layout for layout in layouts if layout.ranks > 1)
    return tuple(
        build_sweep(
            replace(workload, sync=policy),
            layouts=tuple(layouts) if policy == POLICIES[0] else several,
            repeats=size.repeats or (FEWEST_LAUNCHES if full else FEWEST_BLOCKS),
            data_dir=data_dir,
            oversubscribe=oversubscribe,
        )
        for policy in POLICIES
        if several or policy == POLICIES[0]
    )


def sized(workload: Workload, data_dir: Path | None) -> Workload:
    """Return `workload` with its number of rows: all where it has none, and no more than its real data has."""
    source = datasets.locate(workload, data_dir)
    there = source.rows if source.kind == "synthetic" else datasets.prepare(source).record.train_rows
    return replace(workload, samples=min(workload.samples or there, there))


WIDE = "harness.models.networks:wide"
BENCHED = ("mnist-dnn", "adult-dnn")  # what parameter servers are judged on
# Rows per rank and step, of which the papers state none and larger ones would take hours; and steps on the most ranks,
# so that an epoch is long enough for turns.
_BLOCKS = 4
_SIZES = {"alexnet": (16, 28), "googlenet": (2, 80), "inceptionv3": (1, 28), "resnet50": (2, 28)}
# About how long a study takes on 2 cores, estimated from steps and starts; what ran is told by its records.
_MINUTES = {
    "mnist-dnn": 9.0,
    "adult-dnn": 1.5,
    SERVERS: 2.0,
    "alexnet": 11.0,
    "googlenet": 6.5,
    "inceptionv3": 6.5,
    "resnet50": 7.0,
    "accuracy": 7.5,
    "prediction": 1.0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimStudy:
    """What judges some claims: `sweeps` in turns, none for a bench.

    `claims` are those that it judges; `minutes` about what it costs on 2 cores, 0 where that is not known. What it
    `lacks` here keeps it from judging, empty for nothing.
    """

    title: str
    claims: tuple[Claim, ...]
    sweeps: tuple[Sweep, ...] = ()
    minutes: float = 0.0
    lacks: str = ""

    def left(self, judgements: Iterable[Judgement]) -> int:
        """Return how many of its claims are not decided yet."""
        done = [one.claim for one in judgements if one.finding.outcome in (CONFIRMED, REFUTED)]
        return sum(claim not in done for claim in self.claims)

    def took(self, evidence: Iterable[ClaimEvidence]) -> float:
        """Return the minutes that its blocks took, 0 where none ran."""
        names = {sweep.name for sweep in self.sweeps}
        spans: dict[str, list[tuple[float, float]]] = {}
        for run in (run for one in evidence if one.loaded.folder.name in names for run in one.runs):
            began = run.ended - timedelta(seconds=run.wall_seconds)
            spans.setdefault(run.block or run.point.folder, []).append((began.timestamp(), run.ended.timestamp()))
        return sum(max(end for _, end in span) - min(begin for begin, _ in span) for span in spans.values()) / 60


def studies(
    claims: Sequence[Claim], cores: int, data_dir: Path | None, *, prepare: bool = False
) -> tuple[ClaimStudy, ...]:
    """Return what can judge `claims` on a machine of so many `cores`, in the order in which it is worth running.

    With `prepare` real data is prepared, so that no study asks for more rows than there are.

    Raises:
        UserError: the data in `data_dir` is wrong.
    """
    by_rule = {claim.rule: claim for claim in claims if not claim.base}
    own = resolve(dataset="mnist", model="dnn", preset=PRESET, epochs=4)
    averaged = resolve(dataset="adult", model="dnn", preset=PRESET, epochs=3, global_batch=20)
    learning = resolve(dataset="cifar10", model="dnn", epochs=60)

    def made(workload: Workload, counts: Iterable[int], repeats: int = FEWEST_LAUNCHES) -> Sweep:
        layouts = tuple(Layout(nodes=count) for count in sorted(set(counts)) if count <= cores)
        return build_sweep(workload, layouts=layouts, repeats=repeats, data_dir=data_dir)

    few = "a second core" if cores < 2 else ""
    real = "" if datasets.locate(learning, data_dir).kind == "real" else "the real rows (DATA_DIR=folder)"
    together = [by_rule[rule] for rule in ("longer", "reading", "wider")]
    together += [by_rule["volume"]] if cores >= 4 else []
    found = [
        ClaimStudy(
            title="mnist-dnn",
            claims=tuple(together),
            minutes=_MINUTES["mnist-dnn"],
            lacks=few,
            sweeps=(
                made(own, (1, 2, *([4] if cores >= 4 else []))),
                made(replace(own, distribution="parallel"), (2,)),
                made(replace(own, model=WIDE, epochs=1), (1, 2), 2 * FEWEST_LAUNCHES),
            ),
        ),
        ClaimStudy(
            title="adult-dnn",
            claims=(by_rule["equivalent"],),
            minutes=_MINUTES["adult-dnn"],
            lacks=few,
            sweeps=(made(averaged, (1, 2)),),
        ),
        ClaimStudy(title="parameter servers", claims=(by_rule[SERVERS],), minutes=_MINUTES[SERVERS], lacks=few),
    ]
    for model, (batch, steps) in _SIZES.items():
        its = [one for one in claims if one.experiment == IMAGE_NETWORKS[model].title and _fits(one, cores)]
        if its:
            counts = {count for one in its for count in (one.base, one.count)}
            rows = steps * batch * max(counts)
            images = resolve(dataset=IMAGENET, model=model, batch_per_rank=batch, samples=rows, epochs=1)
            minutes = _MINUTES[model] if max(counts) == 2 else 0.0
            sweep = made(images, counts, _BLOCKS)
            found.append(ClaimStudy(title=model, claims=tuple(its), sweeps=(sweep,), minutes=minutes))
    for claim in claims:
        if claim.experiment not in EXPERIMENTS or not claim.base or claim.erratum:
            continue
        parts = [EXPERIMENTS[name] for name in filter(None, (claim.experiment, claim.against))]
        fits, counts = _fits(claim, cores), {1, 2}  # a prediction needs a step on one rank and on two
        if fits:
            powers = {claim.base * 2**power for power in range(claim.count.bit_length())}
            counts = {claim.base, claim.count, claim.at or 1, *(step for step in powers if step < claim.count)}
        elif claim.experiment in (one.title for one in found):
            continue
        workloads = [
            resolve(dataset=p.dataset, model=p.model, preset=PRESET, epochs=p.epochs, samples=None if fits else p.rows)
            for p in parts
        ]
        workloads = [sized(workload, data_dir) for workload in workloads] if prepare and not fits else workloads
        sweeps = tuple(made(workload, counts, FEWEST_BLOCKS) for workload in workloads)
        minutes, lacks = (0.0, "") if fits else (len(parts) * _MINUTES["prediction"], few)
        found.append(ClaimStudy(title=claim.experiment, claims=(claim,), sweeps=sweeps, minutes=minutes, lacks=lacks))
    found.append(
        ClaimStudy(
            title="accuracy",
            claims=(by_rule["accuracy"],),
            minutes=_MINUTES["accuracy"],
            lacks=real,
            sweeps=(made(learning, (min(2, cores),)),),
        )
    )
    return tuple(found)


def _fits(claim: Claim, cores: int) -> bool:
    return 0 < claim.base < claim.count <= cores and claim.units != GPUS and not claim.erratum
