"""A machine on which two layouts are launched one after the other, with a planted ratio of 1 and noise on every launch.

python -m tests.truth.launch_simulation    the table: coverage, half the width and scatter by noise, outliers, launches
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.analysis.confidence_intervals import (
    FEWEST_LAUNCHES,
    Interval,
    Values,
    difference_of_means,
    mean_over_blocks,
    ratio_interval,
)

LAUNCHES = (3, 5, 6, 12)
_KEPT = 0.85  # the chance that a machine of two speeds has the same one in the next launch
_TRIALS = 500
_SLOW_PART = 0.1  # of the launches stand out
_TRUTH = 0.0  # the logarithm of the planted ratio


@dataclass(frozen=True, kw_only=True)
class LaunchMachine:
    """What is planted, in logarithms of a launch's time.

    `noise` is the standard deviation of a launch's own time. One launch in ten is slower by `slower` (its least and its
    most). The machine gets slower by `drift` over all launches, and has two speeds that differ by `speeds`, each of
    which lasts for about seven launches.
    """

    noise: float
    slower: tuple[float, float] = (0.0, 0.0)
    drift: float = 0.0
    speeds: float = 0.0

    def log_seconds(self, rng: np.random.Generator, launches: int) -> Values:
        """Return the logarithmic times [launches, 2] of two layouts, launched in random order in every repeat."""
        state = np.linspace(0, self.drift, 2 * launches) + self.speeds * self._fast_or_slow(rng, 2 * launches)
        in_order = rng.permuted(state.reshape(launches, 2), axis=1)
        least, most = np.log1p(self.slower)
        stands_out = rng.random((launches, 2)) < _SLOW_PART
        slower = np.where(stands_out, rng.uniform(least, most, (launches, 2)), 0.0)
        seconds: Values = in_order + slower + rng.normal(0, self.noise, (launches, 2))
        return seconds

    def _fast_or_slow(self, rng: np.random.Generator, launches: int) -> Values:
        changes = rng.random(launches) > _KEPT
        changes[0] = rng.random() < 0.5
        states: Values = np.cumsum(changes) % 2.0
        return states


def paired(logs: Values) -> tuple[float, Interval | None]:
    """Return the logarithmic ratio over repeats and its interval."""
    log_ratios = logs[:, 0] - logs[:, 1]
    mean = mean_over_blocks(log_ratios)
    return float(log_ratios.mean()), mean.interval if mean else None


def unrelated(logs: Values) -> tuple[float, Interval | None]:
    """Return the logarithmic ratio of launches that share no repeat, and its interval."""
    mean = difference_of_means(logs[:, 0], logs[:, 1])
    return float((logs[:, 0] - logs[:, 1]).mean()), mean.interval if mean else None


def medians(logs: Values) -> tuple[float, Interval | None]:
    """Return the logarithmic ratio of the medians, and the interval of a bootstrap over repeats."""
    estimate = float(np.median(logs[:, 0]) - np.median(logs[:, 1]))
    if len(logs) < FEWEST_LAUNCHES:
        return estimate, None
    seconds = np.exp(logs)
    interval = ratio_interval(seconds[:, 0], seconds[:, 1], paired=True)
    assert interval is not None
    return estimate, Interval(low=math.log(interval.low), high=math.log(interval.high))


ESTIMATORS: tuple[Callable[[Values], tuple[float, Interval | None]], ...] = (paired, unrelated, medians)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What an estimator is like: its `coverage`, half the median `width` of its intervals, its estimates' `scatter`.

    The first two are NaN where it gives no interval.
    """

    coverage: float
    width: float
    scatter: float


def estimate(
    machine: LaunchMachine,
    launches: int,
    trials: int,
    estimator: Callable[[Values], tuple[float, Interval | None]],
) -> Finding:
    """Return what `estimator` finds in so many `trials` of a sweep."""
    rng = np.random.default_rng(launches)
    estimates = []
    widths = []
    covered = 0
    for _ in range(trials):
        value, interval = estimator(machine.log_seconds(rng, launches))
        estimates.append(value)
        if interval is not None:
            widths.append((interval.high - interval.low) / 2)
            covered += interval.low <= _TRUTH <= interval.high
    return Finding(
        coverage=covered / len(widths) if widths else math.nan,
        width=float(np.median(widths)) if widths else math.nan,
        scatter=float(np.std(estimates)),
    )


MACHINES = {
    "noise of 1 %": LaunchMachine(noise=0.01),
    "noise of 3 %": LaunchMachine(noise=0.03),
    "noise of 10 %": LaunchMachine(noise=0.1),
    "1 %, one launch in ten slower by 10 %": LaunchMachine(noise=0.01, slower=(0.1, 0.1)),
    "1 %, one launch in ten slower by 50 %": LaunchMachine(noise=0.01, slower=(0.5, 0.5)),
    "2 %, one launch in ten slower by 10 to 50 %": LaunchMachine(noise=0.02, slower=(0.1, 0.5)),
    "2 %, a drift of 4 %": LaunchMachine(noise=0.02, drift=0.04),
    "1 %, two speeds that differ by 20 %": LaunchMachine(noise=0.01, speeds=0.2),
}


def main() -> None:
    """Print the table."""
    print("| machine | launches of each | " + " | ".join(estimator.__name__ for estimator in ESTIMATORS) + " |")
    for title, machine in MACHINES.items():
        for launches in LAUNCHES:
            cells = []
            for estimator in ESTIMATORS:
                finding = estimate(machine, launches, _TRIALS, estimator)
                cells.append(f"{finding.coverage:.1%}, {finding.width:.2%}, {finding.scatter:.2%}")
            print(f"| {title} | {launches} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
