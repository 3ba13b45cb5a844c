"""The prediction that a sweep's command keeps in its folder, and its score by what is measured later."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from harness.analysis.read_results import Loaded
from harness.analysis.scaling import PointScaling, Scaling
from harness.base.files import write_atomic
from harness.prediction.extrapolation import NETWORK, ExtrapolatedPoint, Extrapolation
from harness.schema.record import SCHEMA, decode_file, encode
from harness.schema.sweep_folder import SweepFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptExtrapolation:
    """What was predicted, and when, by a sweep's command: ``beyond.json``, to be scored by what is measured since."""

    schema: int
    predicted: datetime
    series: tuple[Extrapolation, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtrapolationScore:
    """A predicted point of the series `where` beside what was `measured` since.

    `error` is the predicted speedup over the measured one less 1, `covered`: the band holds the measured one.
    """

    where: str
    predicted: ExtrapolatedPoint
    measured: PointScaling
    error: float
    covered: bool


def keep_extrapolation(loaded: Loaded, series: Sequence[Extrapolation]) -> None:
    """Write `series` into the sweep's folder; a prediction of counts that were measured since stays instead.

    Raises:
        UserError: the file there is damaged, or the folder cannot be written to.
    """
    if not series:
        return
    earlier = read_extrapolation(loaded)
    if earlier and _points_of(earlier) & {run.point.layout.ranks for run in loaded.valid}:
        return
    prediction = KeptExtrapolation(schema=SCHEMA, predicted=datetime.now(UTC), series=tuple(series))
    write_atomic(SweepFolder(loaded.folder).extrapolation, encode(prediction))


def _points_of(prediction: KeptExtrapolation) -> set[int]:
    """Return the rank counts that were predicted."""
    points = itertools.chain.from_iterable(series.points for series in prediction.series)
    return {point.ranks for point in points}


def read_extrapolation(loaded: Loaded) -> KeptExtrapolation | None:
    """Return the prediction in the sweep's folder, None if there is none; raise a UserError if the file is damaged."""
    return decode_file(SweepFolder(loaded.folder).extrapolation, KeptExtrapolation)


def stated_before(loaded: Loaded, scaling: Scaling) -> tuple[Extrapolation, ...]:
    """Return the kept series over a stated network, without the counts that were measured since."""
    prediction = read_extrapolation(loaded)
    if prediction is None:
        return ()
    most = scaling.points[-1].ranks
    stated = []
    for series in prediction.series:
        points = tuple(point for point in series.points if point.ranks > most)
        if series.where == NETWORK and points:
            stated.append(replace(series, points=points))
    return tuple(stated)


def score_extrapolation(
    loaded: Loaded, scaling: Scaling, first_starts: Mapping[str, datetime]
) -> tuple[ExtrapolationScore, ...]:
    """Return the score of every kept point that was measured since.

    `first_starts` has the start of the first valid launch of each layout: what was measured before the prediction is no
    test of it.
    """
    prediction = read_extrapolation(loaded)
    if prediction is None:
        return ()
    since = {
        point.layout: point
        for point in scaling.points
        if point.speedup and first_starts[point.layout] >= prediction.predicted
    }
    scores = []
    for series in prediction.series:
        for predicted in series.points:
            point = since.get(predicted.layout)
            if point is not None and point.speedup:
                scores.append(_score(series.where, predicted, point, point.speedup))
    return tuple(scores)


def _score(where: str, predicted: ExtrapolatedPoint, measured: PointScaling, speedup: float) -> ExtrapolationScore:
    return ExtrapolationScore(
        where=where,
        predicted=predicted,
        measured=measured,
        error=predicted.speedup / speedup - 1,
        covered=predicted.speedup_interval.low <= speedup <= predicted.speedup_interval.high,
    )
