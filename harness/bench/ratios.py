"""From launches to the tables: rates as medians, ratios formed within a round. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from harness.bench.bench_record import BenchRecord, ContenderSample
from harness.bench.contenders import CONTENDERS

BOUND = "bound"
"""Two ranks' bare steps, each followed by MPI_Allreduce of its gradients: a rate like a contender's."""
_PARTS = ("bare", "raw-sums")
UNRECORDED = "unrecorded"
"""`gradients` less what recording takes of it: a rate like a contender's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContenderRatio:
    """How much faster `top` is than `bottom`. `required` is the least ratio on mnist-dnn, `elsewhere` on others."""

    title: str
    top: str
    bottom: str
    required: float | None = None
    elsewhere: float | None = None

    def least(self, workload: str) -> float | None:
        """Return what the ratio must reach on `workload`, None where nothing is required."""
        return self.required if workload == "mnist-dnn" else self.elsewhere


RATIOS = (
    ContenderRatio(title="ours / Keras fit, 1 rank", top="ours-1", bottom="keras-fit", required=3.0),
    ContenderRatio(title="ours gradients / MWMS, 2 ranks", top="gradients", bottom="mwms", required=6.0),
    ContenderRatio(title="gradients / ParameterServerStrategy, 2 ranks", top="gradients", bottom="parameter-server"),
    ContenderRatio(title="gradients / Horovod, 2 ranks", top="gradients", bottom="horovod"),
    ContenderRatio(title="gradients / PyTorch DDP, 2 ranks", top="gradients", bottom="ddp"),
    ContenderRatio(title="gradients / bound, 2 ranks", top="gradients", bottom=BOUND, required=1.0, elsewhere=1.0),
    ContenderRatio(title="none / bare, 2 ranks", top="none", bottom="bare", required=1 / 1.03, elsewhere=1 / 1.03),
    ContenderRatio(
        title="default / bare, 2 ranks", top="default", bottom="bare-default", required=1 / 1.05, elsewhere=1 / 1.05
    ),
    ContenderRatio(
        title="gradients / without recording", top="gradients", bottom=UNRECORDED, required=0.99, elsewhere=0.99
    ),
    ContenderRatio(
        title="weights:epoch / none, 2 ranks", top="weights-epoch", bottom="none", required=0.97, elsewhere=0.97
    ),
    ContenderRatio(
        title="with allreduce / ours, 1 rank",
        top="summing-1",
        bottom="ours-1",
        required=0.97,
        elsewhere=0.97,
    ),
    ContenderRatio(title="harness run / Keras fit, 1 rank", top="transparent-1", bottom="keras-fit", required=0.95),
    ContenderRatio(title="harness run / ours gradients, 2 ranks", top="transparent", bottom="gradients"),
    ContenderRatio(title="gradients / none, 2 ranks", top="gradients", bottom="none"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundsMedian:
    """Median and range of `count` values, one per round; with a count of 0 there are none and `note` says why."""

    count: int
    middle: float = 0.0
    low: float = 0.0
    high: float = 0.0
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadRow:
    """One workload. `rates` are krows/s and `losses` those of training by contender, `ratios` in the order of `RATIOS`.

    `met` says for every ratio whether its median reaches what is required; None where nothing is, where there is no
    value, and in a quick or forced bench.
    """

    workload: str
    rows: int
    rates: dict[str, RoundsMedian]
    losses: dict[str, RoundsMedian]
    ratios: tuple[RoundsMedian, ...]
    met: tuple[bool | None, ...]


def tabulate(record: BenchRecord) -> tuple[WorkloadRow, ...]:
    """Return one row for every workload that has been launched, in the record's order."""
    found = [(workload, [one for one in record.samples if one.workload == workload]) for workload in record.workloads]
    return tuple(_row(workload, samples, record) for workload, samples in found if samples)


def launched_contenders(record: BenchRecord) -> list[str]:
    """Return the contenders that were launched: each has a column."""
    names = {sample.contender for sample in record.samples}
    return [name for name in CONTENDERS if name in names]


def has_bound(record: BenchRecord) -> bool:
    """Return whether both parts of the bound were launched."""
    return set(_PARTS) <= set(launched_contenders(record))


def paired_rates(record: BenchRecord, **contenders: str) -> list[dict[str, str | float]]:
    """Return a row for every workload and round in which all `contenders` were timed, krows/s by the keyword's name.

    None of a quick or forced bench: no verdict is based on them.
    """
    if record.quick or record.forced:
        return []
    rows: list[dict[str, str | float]] = []
    for workload in record.workloads:
        samples = [sample for sample in record.samples if sample.workload == workload]
        for found in _by_round(samples, forced=False):
            if set(contenders.values()) <= set(found):
                rates = {key: found[name] for key, name in contenders.items()}
                rows.append({"workload": workload, **rates})
    return rows


def _row(workload: str, samples: Sequence[ContenderSample], record: BenchRecord) -> WorkloadRow:
    forced, names = record.forced, launched_contenders(record)
    by_round = _by_round(samples, forced=forced)
    rates = {name: _rate(name, samples, forced=forced) for name in names}
    if has_bound(record):
        rates[BOUND] = _median([one[BOUND] for one in by_round if BOUND in one], "no round has both of its parts")
    losses = {
        name: _median([one.loss for one in samples if one.contender == name and one.loss is not None], "none")
        for name in names
    }
    ratios = tuple(_ratio(ratio, by_round) for ratio in RATIOS)
    met: list[bool | None] = []
    for ratio, cell in zip(RATIOS, ratios, strict=True):
        least = ratio.least(workload)
        judged = least is not None and cell.count > 0 and not (forced or record.quick)
        met.append(cell.middle >= least if judged and least is not None else None)
    return WorkloadRow(
        workload=workload, rows=samples[0].rows, rates=rates, losses=losses, ratios=ratios, met=tuple(met)
    )


def _rate(name: str, samples: Iterable[ContenderSample], *, forced: bool) -> RoundsMedian:
    own = [sample for sample in samples if sample.contender == name and not sample.calibration]
    values = [sample.rows_per_s / 1000 for sample in own if sample.counts(forced=forced)]
    reasons = [sample.failed or ", ".join(sample.invalid) for sample in own if not sample.counts(forced=forced)]
    return _median(values, reasons[0] if reasons else "")


def _by_round(samples: Iterable[ContenderSample], *, forced: bool) -> list[dict[str, float]]:
    """Return krows/s by contender of every round, and what follows from those that were measured."""
    rounds: dict[int, dict[str, float]] = {}
    for sample in samples:
        if sample.counts(forced=forced):
            rounds.setdefault(sample.round, {})[sample.contender] = sample.rows_per_s / 1000
    for found in rounds.values():
        if set(_PARTS) <= set(found):
            found[BOUND] = 1 / sum(1 / found[part] for part in _PARTS)
        if {"gradients", "recording"} <= set(found):
            found[UNRECORDED] = 1 / (1 / found["gradients"] - 1 / found["recording"])
    return list(rounds.values())


def _ratio(ratio: ContenderRatio, by_round: Iterable[dict[str, float]]) -> RoundsMedian:
    """Return the median of the ratios within each round in which both contenders have a time.

    Both ran within a minute of each other, so a slow drift of the machine cancels.
    """
    pairs = [found for found in by_round if ratio.top in found and ratio.bottom in found]
    return _median([found[ratio.top] / found[ratio.bottom] for found in pairs], "no round has both")


def _median(values: Sequence[float], note: str) -> RoundsMedian:
    if not values:
        return RoundsMedian(count=0, note=note)
    return RoundsMedian(count=len(values), middle=median(values), low=min(values), high=max(values), note=note)
