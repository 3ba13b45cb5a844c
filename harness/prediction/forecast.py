"""Curves predicted by the network's costs, stored before launches and scored; the reference step of a measured one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis.read_results import Loaded, choose_sweep
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.stats import Interval
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.prediction.network_cost import BEST, Uncertain, probe_links
from harness.prediction.step_model import Base, assumptions, measured_base, predict, predict_ratio, under
from harness.probe.probe_store import newest_probe
from harness.schema.message_cost import NETWORK, NODE, POINT_TO_POINT
from harness.schema.record import SCHEMA, decode_file, encode
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import SweepFolder
from harness.schema.workload import Workload, is_script


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedCurve:
    """What is predicted from `base`: `frame` by the network's costs (`step_model.predict`).

    `speedup` is that of the most ranks over the base by the network's costs, with the least and the most that the
    intervals of all measured costs allow. `sync`: the policy that it is predicted for instead of its launches' own.
    """

    base: Base
    sync: str
    frame: pd.DataFrame
    speedup: float
    interval: Interval

    @property
    def name(self) -> str:
        """The workload's, and the policy's where that is another."""
        return f"{self.base.workload.name}{self.sync and f', {self.sync}'}"


def predict_curve(
    loaded: Loaded, counts: Sequence[int], network: Uncertain, algorithm: str, sync: str = ""
) -> PredictedCurve:
    """Return the prediction for `counts` ranks from the valid launches of `loaded`, as if they had the policy `sync`.

    Raises:
        UserError: the algorithm is unknown, or what the policy would sum is.
    """
    base = measured_base(loaded)
    if sync:
        base = under(base, sync)
    ratio, interval = predict_ratio(base, base.ranks, counts[-1], network, algorithm)
    work = 1.0 if base.scaling == "strong" else counts[-1] / base.ranks
    return PredictedCurve(
        base=base,
        sync=sync,
        frame=predict(base, counts, network, algorithm),
        speedup=ratio * work,
        interval=interval.scaled(work),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedPoint:
    """One rank count. Seconds of a step, in three parts, and of an epoch, with its low and high end.

    `straggler_s` is the wait for the slowest rank, `allreduce_s` the synchronisation's share of a step.
    """

    ranks: int
    steps: int
    compute_s: float
    straggler_s: float
    allreduce_s: float
    step_s: float
    epoch_s: float
    epoch_low_s: float
    epoch_high_s: float
    speedup: float
    efficiency: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Predicted points of one workload, and all that they rest on.

    `base` says which measurement gave the computation, `network` which link costs were used; `assumptions` are
    sentences. `speedup` of the points is over `base_ranks` ranks.
    """

    schema: int
    made: datetime
    workload: Workload
    scaling: str
    algorithm: str
    base_ranks: int
    base: str
    network: str
    assumptions: tuple[str, ...]
    points: tuple[PredictedPoint, ...]


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
    scores = []
    for entry in prediction.points:
        point = later.get(entry.ranks)
        scores.append(
            Score(
                ranks=entry.ranks,
                predicted=entry,
                measured=point,
                error=entry.epoch_s / point.seconds - 1 if point else None,
                covered=entry.epoch_low_s <= point.seconds <= entry.epoch_high_s if point else None,
            )
        )
    return tuple(scores)


def predict_first(sweep: Sweep, results: Path, network: Uncertain, said: str) -> Path:
    """Write the prediction of every layout of `sweep` into its folder and return the file's path.

    The base is the sweep in `results` of the same workload and scaling that `read_results.choose_sweep` takes, this one
    included. A prediction that is there already and has every rank count is kept: it is the earlier one.

    Raises:
        UserError: there is no base, the layouts have shares, or the folder cannot be written to.
    """
    if any(layout.shares for layout in sweep.layouts):
        raise UserError("--predict-first knows equal shares only: leave out --shares")
    path = SweepFolder(results / sweep.name).prediction
    ranks = sorted({layout.ranks for layout in sweep.layouts})
    earlier = read_prediction(results / sweep.name)
    if earlier and {point.ranks for point in earlier.points} >= set(ranks):
        return path

    workload, scaling = sweep.workload, sweep.scaling
    chosen = choose_sweep(results, lambda study: (study.sweep.workload, study.sweep.scaling) == (workload, scaling))
    if chosen is None:
        raise UserError(
            f"no valid launch of {workload.name} with these settings in '{results}' to predict from: run "
            "`harness sweep` with --nodes 1 first, or name another folder with --results"
        )
    base = measured_base(chosen.loaded)
    frame = predict(base, ranks, network, BEST)
    prediction = Prediction(
        schema=SCHEMA,
        made=datetime.now(UTC),
        workload=workload,
        scaling=scaling,
        algorithm=BEST,
        base_ranks=base.ranks,
        base=base.source,
        network=said,
        assumptions=assumptions(base, frame["ranks"]),
        points=_points(frame),
    )
    write_atomic(path, encode(prediction))
    return path


def _points(frame: pd.DataFrame) -> tuple[PredictedPoint, ...]:
    rows: list[dict[str, Any]] = frame.to_dict("records")  # type: ignore[assignment]
    return tuple(PredictedPoint(**{str(name): value for name, value in row.items()}) for row in rows)


def read_prediction(folder: Path) -> Prediction | None:
    """Return the prediction in a sweep's `folder`, None if there is none; raise a UserError if the file is damaged."""
    return decode_file(SweepFolder(folder).prediction, Prediction)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceStep:
    """A measured point beside its reference. Seconds of a step; `speedup` is the base's epoch over the reference's."""

    point: PointScaling
    compute_s: float
    straggler_s: float
    allreduce_s: float
    step_s: float
    speedup: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkReference:
    """The reference of every point that compares with the base. `network` says which link costs it rests on."""

    network: str
    base: str
    points: tuple[ReferenceStep, ...]


def network_reference(loaded: Loaded, scaling: Scaling) -> NetworkReference | None:
    """Return the reference of the points of `loaded`, None where no probe of their machine lies beside the sweep.

    Computation per row as on the fewest ranks, the wait for the slowest rank from the measured distribution of
    compute times, and the cheapest allreduce in closed form (`step_model.predict`): inside hosts over the links inside
    a host, by where the ranks of each point were. Points of another number of threads per rank are left out.

    Raises:
        UserError: a probe is damaged.
    """
    if is_script(loaded.runs[0].point.workload):
        return None  # what a step of a script computes is in the script
    machines = {run.provenance.machine.fingerprint for run in loaded.valid}
    probe = newest_probe(loaded.folder.resolve().parent, min(machines)) if len(machines) == 1 else None
    if probe is None or not any(probe.by_setting[0].find(POINT_TO_POINT, level) for level in (NETWORK, NODE)):
        return None
    base = measured_base(loaded)
    fewest = min(scaling.points, key=lambda point: point.ranks)
    found, said = [], ""
    for point in scaling.points:
        if point.speedup is None or point.threads != fewest.threads:
            continue
        runs = [run for run in loaded.valid if str(run.point.layout) == point.layout]
        # Several nodes may be cores of one host.
        per_host = max(max(Counter(rank.host for rank in run.ranks).values()) for run in runs)
        network, said = probe_links(probe, per_host)
        (row,) = predict(base, [point.ranks], network, BEST).to_dict("records")
        gain = scaling.base.seconds / row["epoch_s"]
        found.append(
            ReferenceStep(
                point=point,
                **{part: float(row[part]) for part in ("compute_s", "straggler_s", "allreduce_s", "step_s")},
                speedup=gain if scaling.scaling == "strong" else gain * point.ideal,
            )
        )
    return NetworkReference(network=said, base=base.source, points=tuple(found))
