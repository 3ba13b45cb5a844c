"""Which of the papers' claims this machine can judge: the sweeps that each needs, and about what they cost.

Each study is trained in turns, all of its sweeps in one block a repeat. Sizes are the least from which the claim's rule
has an interval; the claims themselves name none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from harness.analysis.rounds import FEWEST_BLOCKS
from harness.analysis.stats import NEEDED
from harness.claims.claim_evidence import GPUS, ClaimEvidence
from harness.claims.claim_rules import CONFIRMED, REFUTED, SERVERS
from harness.claims.experiments import PRESET, sized
from harness.claims.judgement import Judgement
from harness.datasets import locate
from harness.schema.claim import EXPERIMENTS, Claim
from harness.schema.layout import Layout
from harness.schema.presets import resolve
from harness.schema.sweep import Sweep
from harness.schema.workload import IMAGE_NETWORKS, IMAGENET, Workload
from harness.sweep.plan import build_sweep

WIDE = "harness.models.networks:wide"
BENCHED = ("mnist-dnn", "adult-dnn")  # what parameter servers are judged on
# Rows per rank and step, of which the papers state none and larger ones would take hours; and steps on the most ranks,
# so that an epoch is long enough for turns.
_BLOCKS = 4
_SIZES = {"alexnet": (16, 20), "googlenet": (2, 80), "inceptionv3": (1, 28), "resnet50": (2, 28)}
# About how long a study takes on 2 cores, estimated from steps and starts; what ran is told by its records.
_MINUTES = {"mnist-dnn": 4.5, "adult-dnn": 1.5, SERVERS: 2.0, "alexnet": 9.0, "googlenet": 6.5, "inceptionv3": 6.5,
            "resnet50": 7.0, "accuracy": 7.5, "prediction": 1.0}  # fmt: skip


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

    def made(workload: Workload, counts: Iterable[int], repeats: int = NEEDED) -> Sweep:
        layouts = tuple(Layout(nodes=count) for count in sorted(set(counts)) if count <= cores)
        return build_sweep(workload, layouts=layouts, repeats=repeats, data_dir=data_dir)

    few = "a second core" if cores < 2 else ""
    real = "" if locate(learning, data_dir).kind == "real" else "the real rows (DATA_DIR=folder)"
    together = [by_rule[rule] for rule in ("longer", "reading", "wider")]
    together += [by_rule["volume"]] if cores >= 4 else []
    found = [
        ClaimStudy(
            title="mnist-dnn", claims=tuple(together), minutes=_MINUTES["mnist-dnn"], lacks=few,
            sweeps=(
                made(own, (1, 2, *([4] if cores >= 4 else []))), made(replace(own, distribution="parallel"), (2,)),
                made(replace(own, model=WIDE, epochs=1), (1, 2)),
            ),
        ),
        ClaimStudy(
            title="adult-dnn", claims=(by_rule["equivalent"],), minutes=_MINUTES["adult-dnn"], lacks=few,
            sweeps=(made(averaged, (1, 2)),),
        ),
        ClaimStudy(title="parameter servers", claims=(by_rule[SERVERS],), minutes=_MINUTES[SERVERS], lacks=few),
    ]  # fmt: skip
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
            title="accuracy", claims=(by_rule["accuracy"],), minutes=_MINUTES["accuracy"], lacks=real,
            sweeps=(made(learning, (min(2, cores),)),),
        )
    )  # fmt: skip
    return tuple(found)


def _fits(claim: Claim, cores: int) -> bool:
    return 0 < claim.base < claim.count <= cores and claim.units != GPUS and not claim.erratum
