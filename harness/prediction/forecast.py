"""A sweep's prediction, written down before its launches, and scored by them afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis.scaling import PointScaling
from harness.analysis.stats import Interval
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.prediction.allreduce import BEST
from harness.prediction.growth import grown
from harness.prediction.measured_base import find_launches, measured_base
from harness.prediction.model import Base, Uncertain, assumptions, predict
from harness.schema.measurement import PREDICTION_FILE, PredictedPoint, Prediction
from harness.schema.record import SCHEMA, decode, encode
from harness.schema.sweep import Sweep


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


def score(
    prediction: Prediction, points: Sequence[PointScaling], first: dict[str, datetime], *, growth: bool = False
) -> tuple[Score, ...]:
    """Return the score of every predicted point, or of those by growth models, in order of ranks.

    `first` has the start of the first valid launch of each layout: what was measured before the prediction was
    made is no test of it.
    """
    later = {point.ranks: point for point in points if first[point.layout] >= prediction.made}
    entries = prediction.growth if growth else prediction.points
    return tuple(_score(entry, later.get(entry.ranks)) for entry in entries)


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


def predict_first(sweep: Sweep, results: Path, network: Uncertain, said: str) -> Path:
    """Write the prediction of every layout of `sweep` into its folder and return the file's path.

    The base is the sweep in `results` of the same workload and scaling that `analysis.choice` takes, this one
    included. A prediction that is there already and has every rank count is kept: it is the earlier one.

    Raises:
        UserError: there is no base, the layouts have shares, or the folder cannot
            be written to.
    """
    if any(layout.shares for layout in sweep.layouts):
        raise UserError("--predict-first knows equal shares only: leave out --shares")
    path = results / sweep.name / PREDICTION_FILE
    ranks = sorted({layout.ranks for layout in sweep.layouts})
    earlier = read_prediction(results / sweep.name)
    if earlier and {point.ranks for point in earlier.points} >= set(ranks):
        return path

    workload, scaling = sweep.workload, sweep.scaling
    loaded = find_launches(
        results,
        lambda study: study.sweep.workload == workload and study.sweep.scaling == scaling,
        f"{workload.name} with these settings",
    )
    base = measured_base(loaded)
    frame = predict(base, ranks, network, BEST)
    write_atomic(path, encode(_prediction(sweep, base, frame, grown(loaded, base, ranks).frame, said)))
    return path


def read_prediction(folder: Path) -> Prediction | None:
    """Return the prediction in a sweep's `folder`, None if there is none.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / PREDICTION_FILE
    return decode(path.read_bytes(), Prediction, path) if path.exists() else None


def _prediction(sweep: Sweep, base: Base, frame: pd.DataFrame, by_growth: pd.DataFrame | None, said: str) -> Prediction:
    return Prediction(
        schema=SCHEMA,
        made=datetime.now(UTC),
        workload=sweep.workload,
        scaling=sweep.scaling,
        algorithm=BEST,
        base_ranks=base.ranks,
        base=base.source,
        network=said,
        assumptions=assumptions(base, frame["ranks"]),
        points=_points(frame),
        growth=() if by_growth is None else _points(by_growth),
    )


def _points(frame: pd.DataFrame) -> tuple[PredictedPoint, ...]:
    rows: list[dict[str, Any]] = frame.to_dict("records")  # type: ignore[assignment]
    return tuple(PredictedPoint(**{str(name): value for name, value in row.items()}) for row in rows)
