"""A sweep's prediction, written down before its launches, and scored by them afterwards."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis.allreduce import BEST
from harness.analysis.predict import Base, Uncertain, assumptions, predict
from harness.errors import UserError
from harness.files import write_atomic
from harness.predict.base import find_base
from harness.spec.codec import decode, encode
from harness.spec.prediction import PREDICTION_FILE, PredictedPoint, Prediction
from harness.spec.record import SCHEMA
from harness.spec.sweep import Sweep


def predict_first(sweep: Sweep, results: Path, network: Uncertain, said: str) -> Path:
    """Write the prediction of every layout of `sweep` into its folder and return the file's path.

    The base is the newest sweep in `results` of the same workload and scaling that has valid launches, this one
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
    base = find_base(
        results,
        lambda study: study.sweep.workload == workload and study.sweep.scaling == scaling,
        f"{workload.name} with these settings",
    )
    frame = predict(base, ranks, network, BEST)
    write_atomic(path, encode(_prediction(sweep, base, frame, said)))
    return path


def read_prediction(folder: Path) -> Prediction | None:
    """Return the prediction in a sweep's `folder`, None if there is none.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / PREDICTION_FILE
    return decode(path.read_bytes(), Prediction, path) if path.exists() else None


def _prediction(sweep: Sweep, base: Base, frame: pd.DataFrame, said: str) -> Prediction:
    rows: list[dict[str, Any]] = frame.to_dict("records")  # type: ignore[assignment]
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
        points=tuple(PredictedPoint(**{str(name): value for name, value in row.items()}) for row in rows),
    )
