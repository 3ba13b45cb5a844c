"""Which sweep and layout to take for a deadline or a budget: whole jobs, from measured parts of launches.

A job is what a launch does once (import, load, compilation and what else) and its epochs with their evaluations.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm
from scipy.stats import t as student

from harness.analysis.frames import launch_frame
from harness.analysis.growth import LINEAR, forms, grow
from harness.analysis.read_results import Loaded
from harness.analysis.stats import LEVEL, SESSION_SPREAD, Interval, sessions
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.prediction.forecast import grow_points, grown_frame, growth_points
from harness.prediction.network_cost import BEST, Uncertain
from harness.prediction.step_model import Base, measured_base, predict
from harness.schema.record import SCHEMA, decode, encode
from harness.schema.sweep import Layout
from harness.schema.workload import is_script

Array = NDArray[np.float64]
LOWER = 0.01  # of test accuracy below the best way's that a way may end: one percentage point
_DRAWS = 4000
ADVICE = "advice"  # results/<sweep>/advice/<layout and length>.json


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """How long a job is: `epochs`, or until `target` test accuracy where that is given."""

    epochs: int
    target: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to run a job: a sweep's settings on a layout. Seconds of the job, with the interval for one launch.

    `predicted` says from what, empty where `launches` measured it. `accuracy` is the median test accuracy after as many
    epochs, None where it is not known.
    """

    folder: Path
    name: str
    layout: Layout
    launches: int
    seconds: float
    interval: Interval
    accuracy: float | None
    predicted: str = ""

    @property
    def measured(self) -> bool:
        """Whether launches on this layout say so."""
        return not self.predicted

    @property
    def node_hours(self) -> float:
        """Nodes times hours."""
        return self.layout.nodes * self.seconds / 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class JobLimits:
    """What a job may take: seconds, node-hours, None for as much as it wants."""

    deadline_s: float | None = None
    node_hours: float | None = None

    def hold(self, way: Way) -> bool:
        """Tell whether the upper end of the way's interval is within both."""
        most, nodes = way.interval.high, way.layout.nodes
        return most <= (self.deadline_s or math.inf) and most * (nodes / 3600) <= (self.node_hours or math.inf)


def choose_way(ways: Sequence[Way], limits: JobLimits) -> Way | None:
    """Return the way to take: with a deadline the cheapest that holds the limits, else the fastest; None of none.

    Ways whose accuracy is known and more than `LOWER` below the best one's are no answer to the same question.
    """
    best = max((way.accuracy for way in ways if way.accuracy is not None), default=None)
    least = -math.inf if best is None else best - LOWER
    fit = [way for way in ways if limits.hold(way) and (way.accuracy is None or way.accuracy >= least)]

    def cost(way: Way) -> tuple[float, float]:
        both = way.node_hours, way.seconds
        return both if limits.deadline_s else both[::-1]

    return min(fit, key=cost, default=None)


def measured_ways(
    loaded: Loaded, name: str, job: TrainingJob, choices: int = 1, network: Uncertain | None = None
) -> Iterator[Way]:
    """Yield a way for each layout of `loaded` with 2 valid launches or more that reaches the job's end.

    The intervals hold for the one that is chosen of so many `choices` too. With a `network`, every rank is on a host of
    its own there: how many epochs a launch needs, and what it does besides, is measured, the epochs are predicted.

    Raises:
        UserError: there is a network, and the launches are of a script.
    """
    if network and is_script(loaded.valid[0].point.workload):
        raise UserError(f"{name}: nothing is predicted of a script, whose steps only it knows: leave --network out")
    launches, base = _jobs(loaded, job), None
    layouts = {str(run.point.layout): run.point.layout for run in loaded.valid}
    for layout, group in launches.groupby("layout", sort=False):
        seconds = group["job_s"].to_numpy(dtype=float)
        if len(seconds) < 2 or not np.isfinite(seconds).all():
            continue
        taken, said = layouts[str(layout)], ""
        low = high = seconds
        if network and taken.ranks > 1:
            taken, said = replace(taken, nodes=taken.ranks, ranks_per_node=1, last_node=None), "the network as given"
            base = base or measured_base(loaded)
            trained = seconds_over(base, group["needed"], taken.ranks, network)
            low, seconds, high = group["besides_s"].to_numpy() + trained
        accuracy = float(group["test_accuracy"].median())
        known = not math.isnan(accuracy) and (job.target is not None or (group["epochs"] == job.epochs).all())
        own = one_more(seconds, sessions(list(zip(group["session_begin"], group["session_end"], strict=True))), choices)
        wider = Interval(low=own.low * float(np.mean(low / seconds)), high=own.high * float(np.mean(high / seconds)))
        yield Way(
            folder=loaded.folder, name=name, layout=taken, launches=len(seconds), seconds=float(np.median(seconds)),
            interval=wider, accuracy=accuracy if known else None, predicted=said,
        )  # fmt: skip


def seconds_over(base: Base, needed: Iterable[float], ranks: int, network: Uncertain) -> Array:
    """Return what launches of `needed` epochs each train on so many hosts of a network: low ends, seconds, high ends.

    An array [3, launches].
    """
    found = []
    for epochs in needed:
        asked = replace(base, workload=replace(base.workload, epochs=int(epochs)))  # the stages of so many epochs
        epoch = predict(asked, [ranks], network, BEST).iloc[0]
        found.append(epochs * epoch[["epoch_low_s", "epoch_s", "epoch_high_s"]].to_numpy(dtype=float))
    return np.transpose(found)


def predicted_ways(
    loaded: Loaded, name: str, job: TrainingJob, nodes: Sequence[int], choices: int = 1
) -> tuple[tuple[Way, ...], str]:
    """Return the ways on those `nodes` that were not measured, by growth models, or none and why.

    Their bands are widened by what lies between sessions, for the one that is chosen of so many `choices`.
    """
    layouts = {run.point.layout for run in loaded.valid}
    widest = max(layouts, key=lambda layout: layout.ranks)
    asked = [replace(widest, nodes=count, last_node=None, shares=None) for count in nodes]
    asked = [layout for layout in asked if layout.ranks > max(one.ranks for one in layouts)]
    if not asked:
        return (), ""
    if is_script(loaded.valid[0].point.workload):
        return (), f"{name}: nothing is predicted of a script, whose steps only it knows"
    if job.target is not None:
        return (), f"{name}: nothing is predicted until an accuracy: how many epochs more ranks need is not known"
    if len({(layout.ranks_per_node if layout.nodes > 1 else 0) for layout in layouts} - {0}) > 1:
        return (), f"{name}: nothing is predicted, for its layouts differ in ranks on a node"
    base = measured_base(loaded)
    points = growth_points(loaded)
    growth = grow_points(points, base)
    if growth.refused:
        return (), f"{name}: nothing is predicted: {growth.refused}"
    counts = np.array([layout.ranks for layout in asked], dtype=float)
    frame = grown_frame(growth, counts)
    # What a job takes besides training, by a growth model, with the ends of its band.
    middles = _jobs(loaded, job).groupby("layout")[["ranks", "besides_s", "job_s"]].median().loc[list(points.index)]
    once = grow(middles["ranks"], middles["besides_s"], middles["job_s"], forms(LINEAR))
    drawn = once.draws(counts, _DRAWS, np.random.default_rng(0))
    besides = np.maximum(0.0, once.best.at(counts))
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0)
    low, high = np.minimum(low, besides), np.maximum(high, besides)
    epochs = frame[["epoch_s", "epoch_low_s", "epoch_high_s"]].to_numpy() * job.epochs
    job_s = np.column_stack([epochs[:, 0] + besides, epochs[:, 1] + low, epochs[:, 2] + high])
    chance = 1 - (1 - LEVEL) / choices / 2
    more = float(norm.ppf(chance)) * SESSION_SPREAD * math.sqrt(2)  # of the sweep's own session, and of the job's
    wider = float(norm.ppf(chance) / norm.ppf(0.5 + LEVEL / 2))
    reach = np.hypot(np.abs(np.log(job_s[:, 1:] / job_s[:, :1])) * wider, more)
    return tuple(
        Way(
            folder=loaded.folder, name=name, layout=layout, launches=0, seconds=middle, accuracy=None,
            interval=Interval(low=middle * math.exp(-below), high=middle * math.exp(above)),
            predicted="growth models of the sweep's parts, without accuracy",
        )
        for layout, middle, (below, above) in zip(asked, job_s[:, 0].tolist(), reach.tolist(), strict=True)
    ), ""  # fmt: skip


def _jobs(loaded: Loaded, job: TrainingJob) -> pd.DataFrame:
    """Return one row per valid launch: `launch_frame`, its needed epochs, job_s, besides_s of all but its training.

    A job until an accuracy is as long as the launch took to reach it, and infinite where that did not.
    """
    launches = launch_frame(loaded.valid, loaded.epochs)
    once = launches["import_s"] + launches["inside_s"] - launches["trained_s"] - launches["evaluate_s"]
    if job.target is None:
        needed = pd.Series(float(job.epochs), index=launches.index)
    else:
        epochs = loaded.epochs[loaded.epochs["test_accuracy"] >= job.target]
        first = epochs.groupby("run")["epoch"].min() - loaded.epochs.groupby("run")["epoch"].min() + 1
        needed = launches["run"].map(first).fillna(math.inf)
    besides = once.clip(lower=0.0) + needed * launches["evaluate_s"] / launches["epochs"]
    trained = needed * launches["trained_s"] / launches["epochs"]
    return launches.assign(needed=needed, besides_s=besides, job_s=besides + trained)


def one_more(seconds: Array, session: Sequence[int], choices: int = 1) -> Interval:
    """Return the 95 % interval of one more launch in another session, of the best of so many `choices`.

    Student's t of the logarithms within the `session` that each of the `seconds` is of, and of the sessions' means,
    with `SESSION_SPREAD` at least, which stands in for what one session cannot show. The way that looked best was
    partly lucky: the error is shared out over all that it was chosen from (Bonferroni).
    """
    logs, groups = np.log(seconds), np.asarray(session)
    means = np.array([logs[groups == one].mean() for one in np.unique(groups)])
    tail = 1 - (1 - LEVEL) / choices / 2
    n, several = len(logs), len(means)
    rest = logs - means[np.unique(groups, return_inverse=True)[1]]
    within = (
        math.sqrt(float(rest @ rest) / (n - several)) * float(student.ppf(tail, n - several)) if n > several else 0.0
    )
    between = float(norm.ppf(tail)) * SESSION_SPREAD
    if several > 1:
        between = max(between, float(student.ppf(tail, several - 1)) * float(np.std(means, ddof=1)))
    reach = math.hypot(within * math.sqrt(1 + 1 / n), between * math.sqrt(1 + 1 / several))
    middle = float(np.median(seconds))
    return Interval(low=middle * math.exp(-reach), high=middle * math.exp(reach))


def write_advice(way: Way, job: TrainingJob, asked: str) -> Path:
    """Write down what `way` is said to take, in its sweep's folder, to be scored; what is there already is kept."""
    advice = Advice(
        schema=SCHEMA, made=datetime.now(UTC), asked=asked, layout=way.layout, epochs=job.epochs, target=job.target,
        measured=way.measured, seconds=way.seconds, low=way.interval.low, high=way.interval.high,
    )  # fmt: skip
    path = way.folder / ADVICE / advice.file
    if not path.exists():
        write_atomic(path, encode(advice))
    return path


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One layout of one sweep for a job of `epochs`, or until `target` test accuracy.

    `seconds` of the whole job from the start of its processes, `low` and `high` the ends of the 95 % interval for one
    launch. `measured`: from launches on this layout, else from growth models. `asked` is the limit in words.
    """

    schema: int
    made: datetime
    asked: str
    layout: Layout
    epochs: int
    target: float | None
    measured: bool
    seconds: float
    low: float
    high: float

    @property
    def file(self) -> str:
        """The name of its file: the same for the same question about the same layout."""
        layout = self.layout
        length = f"e{self.epochs}" if self.target is None else f"a{self.target:g}"
        return f"n{layout.nodes}x{layout.ranks_per_node}x{layout.threads}-{length}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviceScore:
    """An advice and the launches made since. `error`: said over their median less 1; `covered` of them lie within."""

    advice: Advice
    launches: int
    seconds: float
    error: float
    covered: int


def scores(loaded: Loaded) -> tuple[AdviceScore, ...]:
    """Return the score of every advice about `loaded` whose layout ran since; raise a UserError if one is damaged."""
    found = []
    for path in sorted((loaded.folder / ADVICE).glob("*.json")):
        advice = decode(path.read_bytes(), Advice, path)
        jobs = _jobs(loaded, TrainingJob(epochs=advice.epochs, target=advice.target))
        since = jobs[(jobs["layout"] == str(advice.layout)) & (jobs["started"] >= advice.made)]
        seconds = since["job_s"].to_numpy(dtype=float)
        if len(seconds) and np.isfinite(seconds).all():
            middle = float(np.median(seconds))
            covered = int(((advice.low <= seconds) & (seconds <= advice.high)).sum())
            found.append(
                AdviceScore(
                    advice=advice, launches=len(seconds), seconds=middle, error=advice.seconds / middle - 1,
                    covered=covered,
                )
            )  # fmt: skip
    return tuple(found)
