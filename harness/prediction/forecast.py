"""Predicted curves: by the network's costs, by growth models of a step's parts; stored before launches, and scored.

The growth models are the counterpart of `prediction.step_model`, which knows one base and the links: they assume
nothing about networks, and predict nothing where too few counts were measured. Also a reference step beside a measured
one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from harness.analysis.frames import EPOCH_PARTS, launch_frame
from harness.analysis.growth import FEWEST, LINEAR, ROOT, FittedForm, Growth, allreduce_forms, forms, grow
from harness.analysis.numbers import plural
from harness.analysis.read_results import Loaded, choose_sweep
from harness.analysis.scaling import PointScaling, Scaling, scale
from harness.analysis.stats import LEVEL, Interval
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.prediction.network_cost import BEST, Uncertain, probe_links
from harness.prediction.step_model import (
    Base,
    assumptions,
    epoch_batches,
    epoch_steps,
    measured_base,
    predict,
    predict_ratio,
    steps_between,
    under,
    with_speedup,
)
from harness.probe.probe_store import newest_probe
from harness.schema.message_cost import NETWORK, NODE, POINT_TO_POINT
from harness.schema.record import SCHEMA, decode_file, encode
from harness.schema.sweep import Sweep
from harness.schema.workload import Workload, is_script

Array = NDArray[np.float64]
_DRAWS = 4000
_TOGETHER = ("skew_seconds", "wire_seconds")  # parts that one rank alone has not


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGrowth:
    """How the parts of a step grow with the ranks. `refused` says why that is not known; then there are no parts.

    `parts` has the models of each column of EPOCH_PARTS, in seconds of a batch or of a synchronisation; errors are
    relative to a step. `counts` were measured; `scatter` is the relative deviation of the sum of the models from them.
    """

    base: Base
    counts: tuple[int, ...] = ()
    parts: Mapping[str, Growth] = field(default_factory=dict)
    scatter: float = 0.0
    refused: str = ""

    @property
    def chosen(self) -> dict[str, FittedForm]:
        """The model of each part that was chosen."""
        return {part: growth.best for part, growth in self.parts.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """What models of the fewer counts said of the largest one. `error` is said over measured less 1."""

    ranks: int
    error: float
    covered: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Grown:
    """The models of a sweep, the measured points they are of, and what they say, None where they are refused.

    `frame` has the columns of `step_model.predict`, `points` those of `growth_points`. `held` is None where the points
    cannot spare one.
    """

    growth: StepGrowth
    points: pd.DataFrame
    frame: pd.DataFrame | None
    held: HeldOut | None


def grown(loaded: Loaded, base: Base, ranks: ArrayLike) -> Grown:
    """Return the growth models of the valid launches of `loaded` with the base `base`, and what they say of `ranks`."""
    points = growth_points(loaded)
    growth = grow_points(points, base)
    frame, held = (None, None) if growth.refused else (grown_frame(growth, ranks), hold_out(points, base))
    return Grown(growth=growth, points=points, frame=frame, held=held)


def hold_out(points: pd.DataFrame, base: Base) -> HeldOut | None:
    """Return how the models of all `points` but the last do at that one, None where those carry no model."""
    last = points.iloc[-1]
    growth = grow_points(points.iloc[:-1], base)
    if growth.refused:
        return None
    row = grown_frame(growth, [last["ranks"]]).iloc[0]
    covered = bool(row["epoch_low_s"] <= last["seconds"] <= row["epoch_high_s"])
    return HeldOut(ranks=int(last["ranks"]), error=float(row["epoch_s"] / last["seconds"] - 1), covered=covered)


def growth_points(loaded: Loaded) -> pd.DataFrame:
    """Return one row per layout of the same work, fewest ranks first: ranks, threads, seconds of an epoch, its parts.

    Medians of each part, made to sum to the median epoch: a single launch's split of skew and wire is noise.
    """
    launches = launch_frame(loaded.valid, loaded.epochs)
    scaling = scale(launches)
    same = [point.layout for point in scaling.points if point.speedup is not None] if scaling else []
    launches = launches[launches["valid"] & launches["layout"].isin(same)]
    groups = launches.sort_values("ranks", kind="stable").groupby("layout", sort=False)
    points = groups[["ranks", "threads", "seconds", *EPOCH_PARTS]].median()
    parts = points[list(EPOCH_PARTS)].clip(lower=0.0)
    points[list(EPOCH_PARTS)] = parts.mul(points["seconds"] / parts.sum(axis=1), axis=0)
    return points


def grow_points(points: pd.DataFrame, base: Base) -> StepGrowth:
    """Return the growth models of `points` (`growth_points`)."""
    counts = points["ranks"].to_numpy(dtype=float)
    reason = _refused(counts, set(points["threads"]))
    if reason:
        return StepGrowth(base=base, refused=reason)
    parts, fitted = dict[str, Growth](), np.zeros(len(counts))
    for part in EPOCH_PARTS:
        times = _times(base, part, counts)
        used = times > 0
        if not used.any():
            continue
        values, scales = (points[column][used] / times[used] for column in (part, "seconds"))
        plain = forms(ROOT if part == "skew_seconds" else LINEAR)
        allowed = allreduce_forms(counts[used], LINEAR) if part == "wire_seconds" else plain
        parts[part] = grow(counts[used], values, scales, allowed)
        fitted[used] += parts[part].best.at(counts[used]) * times[used]
    off = fitted / points["seconds"].to_numpy() - 1
    scatter = float(np.sqrt((off**2).sum() / (len(counts) - 2)))
    return StepGrowth(base=base, counts=tuple(map(int, counts)), parts=parts, scatter=scatter)


def _refused(counts: Array, threads: set[float]) -> str:
    if len(set(counts)) < len(counts):
        return "several layouts have the same ranks: a model in the ranks cannot tell them apart"
    if len(threads) > 1:
        return "the threads of a rank differ between layouts: a model in the ranks cannot tell what they do"
    several = int((counts > 1).sum())
    if several >= FEWEST:
        return ""
    return (
        f"{plural(several, 'count')} above 1 rank of the same work cannot carry a growth model: "
        f"measure at least {FEWEST}, such as NODES=1..32*2 or 1..12"
    )


def grown_frame(growth: StepGrowth, ranks: ArrayLike) -> pd.DataFrame:
    """Return what the models of `growth` (not refused) predict for each count of `ranks`, as `step_model.predict` does.

    The low and the high end are of the 95 % band of what a sweep would measure: coefficients, the choice of models
    and the scatter of the measured points. Seeded, so that a page is the same when drawn again.
    """
    counts = np.asarray(ranks, dtype=float)
    frame, drawn = _parts_at(growth, counts)
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0)
    frame["epoch_low_s"], frame["epoch_high_s"] = np.minimum(low, frame["epoch_s"]), np.maximum(high, frame["epoch_s"])
    own, _ = _parts_at(growth, np.array([float(growth.base.ranks)]))
    return with_speedup(frame, growth.base, float(own["epoch_s"].iloc[0]))


def _parts_at(growth: StepGrowth, counts: Array) -> tuple[pd.DataFrame, Array]:
    """Return the parts of a step by the chosen models, input within the computation; and drawn epochs."""
    random = np.random.default_rng(0)
    values = {part: np.zeros(len(counts)) for part in EPOCH_PARTS}
    drawn = np.zeros((_DRAWS, len(counts)))
    for part, models in growth.parts.items():
        times = _times(growth.base, part, counts)
        values[part] = np.maximum(0.0, models.best.at(counts)) * times
        drawn += models.draws(counts, _DRAWS, random) * times
    drawn *= np.exp(growth.scatter * random.standard_t(len(growth.counts) - 2, (_DRAWS, 1)))
    steps = epoch_steps(growth.base, counts)
    epoch = sum(values.values(), np.zeros(len(counts)))
    frame = pd.DataFrame({"ranks": counts.astype(int), "steps": steps.astype(int)})
    frame["compute_s"] = (values["compute_seconds"] + values["input_seconds"]) / steps
    frame["straggler_s"], frame["allreduce_s"] = values["skew_seconds"] / steps, values["wire_seconds"] / steps
    return frame.assign(step_s=epoch / steps, epoch_s=epoch), drawn


def _times(base: Base, part: str, counts: Array) -> Array:
    """Return how often an epoch has what a model of `part` is of, at each count: a batch, or a synchronisation."""
    if part not in _TOGETHER:
        return epoch_batches(base, counts)
    steps = epoch_steps(base, counts)
    return np.where(counts > 1, steps / steps_between(base.workload, steps), 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedCurve:
    """What is predicted from `base`: `frame` by the network's costs (`step_model.predict`), `grown` by growth models.

    `speedup` is that of the most ranks over the base by the network's costs, with the least and the most that the
    intervals of all measured costs allow. `sync`: the policy that it is predicted for instead of its launches' own.
    """

    base: Base
    sync: str
    frame: pd.DataFrame
    grown: Grown
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
    models = grown(loaded, base, counts)
    if sync:
        refused = StepGrowth(base=base, refused=f"they would be of SYNC={base.workload.sync}, not of {sync}")
        base, models = under(base, sync), replace(models, growth=refused, frame=None, held=None)
    ratio, interval = predict_ratio(base, base.ranks, counts[-1], network, algorithm)
    work = 1.0 if base.scaling == "strong" else counts[-1] / base.ranks
    return PredictedCurve(
        base=base,
        sync=sync,
        frame=predict(base, counts, network, algorithm),
        grown=models,
        speedup=ratio * work,
        interval=interval.scaled(work),
    )


PREDICTION_FILE = "prediction.json"  # results/<sweep>/prediction.json


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
    sentences. `speedup` of the points is over `base_ranks` ranks. `growth` has what growth models of the parts say,
    where enough rank counts were measured.
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
    growth: tuple[PredictedPoint, ...] = ()


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
    scores = []
    for entry in prediction.growth if growth else prediction.points:
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
    path = results / sweep.name / PREDICTION_FILE
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
    frame, by_growth = predict(base, ranks, network, BEST), grown(chosen.loaded, base, ranks).frame
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
        growth=() if by_growth is None else _points(by_growth),
    )
    write_atomic(path, encode(prediction))
    return path


def _points(frame: pd.DataFrame) -> tuple[PredictedPoint, ...]:
    rows: list[dict[str, Any]] = frame.to_dict("records")  # type: ignore[assignment]
    return tuple(PredictedPoint(**{str(name): value for name, value in row.items()}) for row in rows)


def read_prediction(folder: Path) -> Prediction | None:
    """Return the prediction in a sweep's `folder`, None if there is none; raise a UserError if the file is damaged."""
    return decode_file(folder / PREDICTION_FILE, Prediction)


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
