"""Laws: known coefficients are found again, and a law that the points refute or cannot test says so."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pandas as pd
import pytest

from harness.analysis.scaling import Scaling, scale
from harness.analysis.scaling_laws import AMDAHL, USL, Fit, Law, fit_laws
from harness.analysis.time_parts import EPOCH_PARTS, breakdown_frame
from harness.schema.record import RunRecord
from harness.why.overheads import PARTS, overheads
from tests.labs.factories import launch_frame, make_launch, make_point, make_run

COUNTS = (1, 2, 4, 8, 16, 32)


def amdahl(p: int) -> float:
    return 0.05 + 0.95 / p


def usl(p: int) -> float:
    return (1 + 0.03 * (p - 1) + 0.0005 * p * (p - 1)) / p


def sweep(
    law: object, counts: tuple[int, ...] = COUNTS, launches: int = 8, noise: float = 0.01, seed: int = 7
) -> list[RunRecord]:
    rng = np.random.default_rng(seed)
    return [
        make_launch(p, k, float(10 * law(p) * rng.lognormal(0, noise)))  # type: ignore[operator]
        for p in counts
        for k in range(launches)
    ]


def fitted(runs: list[RunRecord], base: int | None = None) -> tuple[Scaling, tuple[Fit, ...]]:
    launches = launch_frame(runs)
    scaling = scale(launches, base_ranks=base)
    assert scaling is not None
    return scaling, fit_laws(scaling, launches)


def test_amdahl_finds_its_serial_fraction() -> None:
    _, fits = fitted(sweep(amdahl))
    found = fits[0].estimates[0]
    assert fits[0].law == "Amdahl" and found.name == "serial fraction"
    assert found.value == pytest.approx(0.05, abs=0.005)
    assert fits[0].worst_error < 0.03 and not fits[0].doubt


def test_usl_finds_contention_and_coherency() -> None:
    _, fits = fitted(sweep(usl))
    contention, coherency = fits[1].estimates
    assert contention.value == pytest.approx(0.03, rel=0.2) and coherency.value == pytest.approx(0.0005, rel=0.2)
    assert fits[0].worst_error > 2 * fits[1].worst_error  # Amdahl cannot bend down: the error says so


def test_gustafson_under_weak_scaling() -> None:
    runs = [
        make_run(
            make_point(p, k, scaling="weak", samples=1000 * p), rows=1000 * p, seconds=[[p / (p - 0.1 * (p - 1))] * p]
        )
        for p in COUNTS
        for k in range(6)
    ]
    _, fits = fitted(runs)
    assert fits[0].law == "Gustafson" and fits[0].estimates[0].value == pytest.approx(0.1)
    assert fits[0].worst_error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("counts", "launches", "amdahl_doubt", "usl_doubt"),
    [
        ((1, 2, 4), 8, "", "3 rank counts cannot test a law of as many numbers: measure at least 4"),
        (COUNTS, 5, "fewer than 6 whole repeats", "fewer than 6 whole repeats"),
    ],
)
def test_a_law_that_was_not_tested_says_so_and_every_curve_ends_with_the_points(
    counts: tuple[int, ...], launches: int, amdahl_doubt: str, usl_doubt: str
) -> None:
    _, fits = fitted(sweep(amdahl, counts, launches))
    for fit, doubt in zip(fits, (amdahl_doubt, usl_doubt, usl_doubt), strict=True):
        assert doubt in fit.doubt and bool(fit.doubt) == bool(doubt)
        assert max(fit.counts) == max(counts)


def test_no_law_goes_through_two_points() -> None:
    assert fitted(sweep(amdahl, (1, 2)))[1] == ()


def bending(p: int) -> float:
    """A machine that slows down beyond 16 ranks: speedup 3.16 at 64, where Amdahl's law through 1..16 says 8."""
    return (1 + 0.0047 * p * (p - 1)) / p


def test_the_points_refute_a_law_that_cannot_bend_down() -> None:
    _, (amdahl_fit, usl_fit, _) = fitted(sweep(bending, (1, 2, 4, 8, 16), launches=10))
    assert amdahl_fit.worst_error > 0.05 and "refutes" in amdahl_fit.doubt
    assert not usl_fit.doubt


def test_a_point_of_another_session_is_no_part_of_a_law() -> None:
    week = timedelta(days=7)
    late = [make_launch(32, k, 7.0 + k / 10) for k in range(8)]
    runs = sweep(amdahl, (1, 2, 4, 8)) + [
        replace(run, started=run.started + week, ended=run.ended + week) for run in late
    ]
    scaling, fits = fitted(runs)
    assert scaling.points[-1].other_session and not fits[0].doubt
    assert fits[0].estimates[0].value == pytest.approx(0.05, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "true"),
    [(AMDAHL, (0.0,)), (AMDAHL, (0.05,)), (USL, (0.03, 0.0005)), (USL, (0.0, 0.001)), (USL, (0.0, 0.0))],
)
def test_true_laws_are_seldom_refuted(law: Law, true: tuple[float, ...]) -> None:
    """At 5 % it is expected of 5 of 100 sweeps of 1..16 ranks, and of more than 12 in 1 of 1000 such tests."""
    rng = np.random.default_rng(len(true))
    counts = np.array([1, 2, 4, 8, 16])
    weights = np.array([true[0], 1 - true[0]] if law.fractions else [1, *true])
    launches = launch_frame([make_launch(int(p), k, 1.0) for p in counts for k in range(6)])
    scaling = scale(launches)  # a law is fitted to its points and the launches' own rates
    assert scaling is not None
    places = launches["repeat"].to_numpy(), np.searchsorted(counts, launches["ranks"])
    refuted = 0
    for _ in range(100):
        times = law.columns(counts.astype(float)) @ weights
        drift = rng.normal(0, 0.05, (6, 1))  # of whole repeats: it must not count
        seconds = times * np.exp(drift + rng.normal(0, 0.01, (6, len(counts))))
        measured = launches.assign(rows_per_second=launches["rows_per_second"] / seconds[places])
        fit = next(fit for fit in fit_laws(scaling, measured) if fit.law == law.name)
        refuted += "refutes" in fit.doubt
    assert refuted <= 12


def test_one_count_has_no_law() -> None:
    assert fitted(sweep(amdahl, (4,)))[1] == ()


def test_the_curve_is_one_at_the_chosen_base() -> None:
    scaling, fits = fitted(sweep(amdahl, noise=0.001), base=4)
    at_base = dict(zip(fits[0].counts, fits[0].speedup, strict=True))
    assert scaling.base.ranks == 4 and at_base[4.0] == 1
    assert at_base[32.0] == pytest.approx(amdahl(4) / amdahl(32), rel=0.01)


def test_the_largest_overhead_limits_the_speedup_and_there_is_one_without_it() -> None:
    runs = [make_launch(1, 0, 8.0, sync=0.0), make_launch(4, 0, 4.0, sync=0.4)]  # compute 2.4, skew 0.4, wire 1.2
    launches = launch_frame(runs)
    scaling = scale(launches)
    assert scaling is not None
    (point,) = overheads(scaling, launches, PARTS)
    assert point.largest is not None and point.largest.cause.part == "wire_seconds"
    assert point.largest.seconds == pytest.approx(1.2) and point.largest.fraction == pytest.approx(0.3)
    assert point.largest.speedup_without == pytest.approx(8.0 / 2.8)
    assert [item.seconds for item in point.costs] == pytest.approx([1.2, 0.4, 0.4])
    assert sum(item.seconds for item in point.costs) == pytest.approx(4.0 - 8.0 / 4)  # all of the overhead


def noisy(rng: np.random.Generator, launches: int) -> pd.DataFrame:
    """Launches at 1 and 4 ranks whose parts vary on their own: 4 ranks compute 2.4 s and wait, or sum, 1.6 s."""
    runs = [make_launch(1, k, float(8 * rng.lognormal(0, 0.02)), sync=0.0) for k in range(launches)]
    waits = rng.lognormal(0, 0.2, launches)
    for k, wait in enumerate(waits):
        seconds = 2.4 * rng.lognormal(0, 0.02) + 1.6 * wait
        runs.append(make_launch(4, k, float(seconds), sync=float(1.6 * wait / seconds)))
    return launch_frame(runs)


@pytest.mark.parametrize("launches", [5, 6])
def test_parts_sum_to_the_median_epoch(launches: int) -> None:
    frame = noisy(np.random.default_rng(18), launches)
    rows = breakdown_frame(frame)
    medians = frame.groupby("layout", sort=False)["seconds"].median()
    assert rows[list(EPOCH_PARTS)].sum(axis=1).to_numpy() == pytest.approx(medians.to_numpy(), rel=1e-12)


@pytest.mark.slow
def test_the_speedup_without_a_part_has_an_interval_that_covers() -> None:
    rng = np.random.default_rng(19)
    covered = 0
    for _ in range(60):
        frame = noisy(rng, 8)
        scaling = scale(frame)
        assert scaling is not None
        wire = next(item for item in overheads(scaling, frame, PARTS)[0].costs if item.cause.part == "wire_seconds")
        assert wire.speedup_interval is not None
        covered += wire.speedup_interval.low <= 8 / 2.8 <= wire.speedup_interval.high
    assert covered >= 53  # of 60 at 95 %: fewer in 1 of 100 tests
    few = noisy(rng, 5)
    scaling = scale(few)
    assert scaling is not None and all(
        item.speedup_interval is None for item in overheads(scaling, few, PARTS)[0].items
    )


def test_an_ideal_point_is_limited_by_nothing() -> None:
    launches = launch_frame([make_launch(1, 0, 8.0, sync=0.0), make_launch(4, 0, 2.0, sync=0.0)])
    scaling = scale(launches)
    assert scaling is not None
    (point,) = overheads(scaling, launches, PARTS)
    assert point.largest is None
