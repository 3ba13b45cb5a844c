"""What a message costs, fitted to samples: seconds = alpha + beta * bytes (Hockney's model)."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import nnls

from harness.analysis.confidence_intervals import FEWEST_LAUNCHES, LEVEL, Interval, median_interval
from harness.probe.measuring_ranks import MessageSeries
from harness.schema.message_cost import (
    ALLREDUCE,
    REDUCTION,
    Estimate,
    MessageCost,
    MessageTime,
)

# What a message costs, fitted to samples: seconds = alpha + beta * bytes (Hockney's model).

_RESAMPLES = 400
_SEED = 0

Array = npt.NDArray[np.float64]
CostKey = tuple[str, str, int]  # operation, level, ranks


def fit_launches(
    launches: Sequence[Sequence[MessageSeries]], usual: Sequence[Sequence[MessageSeries]] = (), *, valid: bool = True
) -> tuple[MessageCost, ...]:
    """Return the cost of every operation and level in the series of several launches.

    `usual` are the launches of the default setting in the same blocks, which allreduces are compared with; there are no
    intervals if they are not `valid`.
    """
    medians: dict[CostKey, dict[int, list[float]]] = {}
    log_ratios: dict[CostKey, dict[int, tuple[float, ...]]] = {}
    for number, launch in enumerate(launches):
        references = usual[number] if usual else ()
        for series in launch:
            key = (series.operation, series.level, series.ranks)
            medians.setdefault(key, {}).setdefault(series.bytes, []).append(float(np.median(series.seconds)))
            log_ratio = _log_ratio(series, references)
            ratios = () if log_ratio is None else (log_ratio,)
            ratios_by_size = log_ratios.setdefault(key, {})
            ratios_by_size[series.bytes] = ratios_by_size.get(series.bytes, ()) + ratios
    return tuple(fit_cost(*key, samples, log_ratios[key], valid=valid) for key, samples in medians.items())


def _log_ratio(series: MessageSeries, usual: Sequence[MessageSeries]) -> float | None:
    """Return the median log ratio of an allreduce to the default one of `usual`, over the turns in which both sampled.

    Sample by sample, of launches that took no turns or had none of the same round.
    """
    reference = _default_allreduce(usual, series.level, series.bytes)
    if reference is None or not series.operation.startswith((REDUCTION, ALLREDUCE)):
        return None
    logs = pd.Series(np.log(series.seconds))
    reference_logs = pd.Series(np.log(reference.seconds))
    if series.turns and reference.turns:
        differences = _by_turn(logs, series.turns) - _by_turn(reference_logs, reference.turns)
        ratios = differences.dropna()
        if len(ratios):
            return float(ratios.median())
    return float((logs - reference_logs).median())


def _default_allreduce(usual: Sequence[MessageSeries], level: str, size: int) -> MessageSeries | None:
    """Return the series of the harness's default reduction, else of MPI's own; None if neither was sampled."""
    candidates = [series for series in usual if (series.level, series.bytes) == (level, size)]
    for series in candidates:
        if series.operation.startswith(REDUCTION):
            return series
    return next((series for series in candidates if series.operation == ALLREDUCE), None)


def _by_turn(logs: "pd.Series[float]", turns: Sequence[int]) -> "pd.Series[float]":
    """Return the median of each turn, without the first sample of a turn, which has the number 0."""
    numbers = np.array(turns)
    return logs[numbers > 0].groupby(numbers[numbers > 0]).median()


def fit_cost(
    operation: str,
    level: str,
    ranks: int,
    samples: Mapping[int, Sequence[float]],
    ratios: Mapping[int, tuple[float, ...]] | None = None,
    *,
    valid: bool = True,
) -> MessageCost:
    """Return the cost that the `samples` of an operation show: seconds by bytes, at least two sizes.

    There is one sample of every launch, its median: calls of one launch are not independent. The line is fitted to
    the medians, every size with the same relative weight and neither part below zero. Its intervals are percentiles
    of fits to resampled launches (bootstrap, seeded); None below 6 launches, and where
    they are not `valid`.
    """
    sizes = np.array(sorted(samples), dtype=float)
    values = [np.asarray(samples[int(size)], dtype=float) for size in sizes]
    medians = np.array([np.median(sample) for sample in values])
    alpha, beta = _line(sizes, medians)
    intervals = _intervals(sizes, values) if valid else (None, None)
    errors = np.abs((alpha + beta * sizes) / medians - 1)
    worst = int(errors.argmax())
    return MessageCost(
        operation=operation,
        level=level,
        ranks=ranks,
        alpha_s=_estimate(alpha, intervals[0]),
        beta_s_per_byte=_estimate(beta, intervals[1]),
        worst_error=float(errors[worst]),
        worst_bytes=int(sizes[worst]),
        sizes=tuple(
            MessageTime(
                bytes=int(size),
                launches=tuple(map(float, sample)),
                seconds=_estimate(np.median(sample), median_interval(sample) if valid else None),
                ratios=(ratios or {}).get(int(size), ()),
            )
            for size, sample in zip(sizes, values, strict=True)
        ),
    )


def _line(sizes: Array, seconds: Array) -> tuple[float, float]:
    """Return alpha and beta of the least squares of relative errors, both at least 0."""
    unit = sizes.max()  # alpha and beta differ by ten orders of magnitude: scaled, they do not
    matrix = np.column_stack([np.ones_like(sizes), sizes / unit]) / seconds[:, None]
    scale = matrix.max(axis=0)
    (alpha, beta), _ = nnls(matrix / scale, np.ones_like(seconds))
    return float(alpha / scale[0]), float(beta / scale[1] / unit)


def _intervals(sizes: Array, values: Sequence[Array]) -> tuple[Interval | None, Interval | None]:
    if min(len(sample) for sample in values) < FEWEST_LAUNCHES:
        return None, None
    generator = np.random.default_rng(_SEED)
    launches = np.array(values)
    chosen = generator.integers(launches.shape[1], size=(_RESAMPLES, launches.shape[1]))
    drawn = np.median(launches[:, chosen], axis=2).T
    lines = np.array([_line(sizes, medians) for medians in drawn])
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(lines, [tail, 100 - tail], axis=0)
    return Interval(low=float(low[0]), high=float(high[0])), Interval(low=float(low[1]), high=float(high[1]))


def _estimate(value: float | np.float64, interval: Interval | None) -> Estimate:
    value = float(value)
    if interval is None:
        return Estimate(value=value)
    return Estimate(value=value, low=min(interval.low, value), high=max(interval.high, value))
