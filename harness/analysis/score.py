"""How good a prediction was: its error at each point, and how often its interval held the measured median."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from harness.analysis.scaling import PointScaling
from harness.analysis.stats import Interval
from harness.spec.prediction import PredictedPoint, Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One predicted rank count. `measured` is None where nothing was measured after the prediction was made.

    `error` is predicted over measured less 1; `covered` says whether the predicted low to high end holds the
    measured median.
    """

    ranks: int
    predicted: PredictedPoint
    measured: PointScaling | None
    error: float | None
    covered: bool | None

    @property
    def interval(self) -> Interval:
        """The predicted ends of the epoch time."""
        return Interval(low=self.predicted.epoch_low_s, high=self.predicted.epoch_high_s)


def score(prediction: Prediction, points: Sequence[PointScaling], first: dict[str, datetime]) -> tuple[Score, ...]:
    """Return the score of every predicted point, in order of ranks.

    `first` has the start of the first valid launch of each layout: what was measured before the prediction was
    made is no test of it.
    """
    later = {point.ranks: point for point in points if first[point.layout] >= prediction.made}
    return tuple(_score(entry, later.get(entry.ranks)) for entry in prediction.points)


def _score(entry: PredictedPoint, point: PointScaling | None) -> Score:
    if point is None:
        return Score(ranks=entry.ranks, predicted=entry, measured=None, error=None, covered=None)
    return Score(
        ranks=entry.ranks,
        predicted=entry,
        measured=point,
        error=entry.epoch_s / point.seconds - 1,
        covered=entry.epoch_low_s <= point.seconds <= entry.epoch_high_s,
    )
