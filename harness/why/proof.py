"""The proof: launches that lack exactly one cause, and what each gives beside what was expected of it beforehand."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from harness.analysis.frames import launch_frame
from harness.analysis.read_results import load_sweep
from harness.analysis.scaling import paired_ratio
from harness.analysis.stats import NEEDED, Interval, percentiles, resamples
from harness.analysis.time_parts import median_launches
from harness.base.errors import RunError
from harness.base.files import write_atomic
from harness.datasets import locate
from harness.schema.layout import Layout
from harness.schema.record import RunRecord, decode, encode
from harness.schema.sweep import Sweep
from harness.schema.sync import Gradients, NoSync
from harness.schema.workload import IMAGENET, is_script
from harness.sweep.execute import run_sweep
from harness.why.explanation import Explanation, cost_of

FOLDER = "counterfactuals"  # results/counterfactuals/<sweep>/<time>/
PLAN_FILE, PROOF_FILE = "expected.json", "proof.json"
CONFIRMED, REFUTED, OPEN = "confirmed", "not confirmed", "open"
AS_IT_IS = "as it is"
NO_ALLREDUCE = "no allreduce"
_LEAST_GAIN = 0.01  # of the epoch: what is expected to give less proves nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The part of the epoch's time that is expected to go: the value and from where to where it may lie.

    That is the 95 % interval over launches, below 6 of them from the least to the most of a launch.
    """

    value: float
    low: float
    high: float

    @property
    def interval(self) -> Interval | None:
        """From `low` to `high`; None where only the value is known."""
        return Interval(low=self.low, high=self.high) if self.low < self.high else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What a launch lacks: `removes` says what is gone, `how` by which setting, `against` what it is compared with."""

    name: str
    removes: str
    how: str
    expected: Expected
    against: str = AS_IT_IS


@dataclass(frozen=True, kw_only=True, slots=True)
class Counterfactual(Change):
    """A change and the launch that makes it."""

    sweep: Sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof(Change):
    """What a change gave, as a part of the epoch's time: `expected` beforehand, `measured` by launches.

    `interval` is None below 6 pairs of valid launches, `measured` where there is none. `verdict` is ``not confirmed``
    where the two intervals do not overlap; ``open`` where one is missing, or where noise hides it: the measured gain
    may be nothing, the expected one may not, or the measured one is uncertain by more than all that is expected.
    """

    measured: float | None
    interval: Interval | None
    launches: int
    verdict: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Proofs:
    """All proofs of one point. `layout` is its text, `made` when the first launch began."""

    sweep: str
    layout: str
    ranks: int
    made: datetime
    proofs: tuple[Proof, ...]


def counterfactuals(found: Explanation, layout: str) -> tuple[Counterfactual, ...]:
    """Return the launches that prove the overheads of `layout`: those expected to give 1 % of its epoch or more, and
    those that these are compared with.
    """
    group = found.detail.launches
    group = group[group["layout"] == layout]
    run = next(run for run in found.loaded.valid if str(run.point.layout) == layout)
    possible = [*_without_allreduce(run, group), *_other_wire(found, run, group), *_other_rows(run, group)]
    possible += _alone(found, run, group) if any(one.name == NO_ALLREDUCE for one in possible) else []
    worth = {one.name for one in possible if max(abs(one.expected.low), abs(one.expected.high)) >= _LEAST_GAIN}
    needed = {one.against for one in possible if one.name in worth}
    return tuple(one for one in possible if one.name in worth | needed)


def as_it_is(run: RunRecord) -> Sweep:
    """Return the sweep of the launch itself; it is launched again beside those that change something."""
    point = run.point
    return Sweep(
        workload=point.workload,
        layouts=(point.layout,),
        repeats=1,
        data_id=point.data_id,
        oversubscribe=point.oversubscribe,
        settings=point.settings,
    )


def _changed(run: RunRecord, **changes: object) -> Sweep:
    sweep = as_it_is(run)
    return replace(sweep, workload=replace(sweep.workload, **changes))  # type: ignore[arg-type]


def _expected(group: pd.DataFrame, gain: Callable[[pd.DataFrame], "pd.Series[float]"]) -> Expected:
    """Return the part of the median launch's epoch that `gain` (seconds by launch) is."""
    shown = group.assign(gain=gain(group))
    seconds, columns = median_launches(shown, np.arange(len(shown))[None], ["gain"])
    value = float(columns[0, 0] / seconds[0])
    single = shown["gain"] / shown["seconds"]
    interval = Interval(low=float(single.min()), high=float(single.max()))
    if len(shown) >= NEEDED:
        seconds, columns = median_launches(shown, resamples(len(shown), 1, paired=True)[0], ["gain"])
        interval = percentiles(columns[:, 0] / seconds, len(shown))
    return Expected(value=value, low=min(value, interval.low), high=max(value, interval.high))


def _without_allreduce(run: RunRecord, group: pd.DataFrame) -> Iterator[Counterfactual]:
    """Without an allreduce nobody waits and nothing is sent: what is left is the rank with most useful time."""
    workload = run.point.workload
    if run.point.layout.ranks > 1 and workload.sync != NoSync.form and not workload.sync_bn and not is_script(workload):
        yield Counterfactual(
            name=NO_ALLREDUCE,
            removes="skew and allreduce",
            how=f"SYNC={NoSync.form}",
            sweep=_changed(run, sync=NoSync.form, wire="float32"),
            expected=_expected(group, lambda rows: rows["seconds"] - rows["longest_seconds"]),
        )


def _other_wire(found: Explanation, run: RunRecord, group: pd.DataFrame) -> Iterator[Counterfactual]:
    workload = run.point.workload
    if run.point.layout.ranks == 1 or workload.sync == NoSync.form:
        return
    if workload.sync == Gradients.form and workload.wire == "float32" and not is_script(workload):
        half = _expected(group, lambda rows: rows["bandwidth_seconds"] / 2)
        rest = _expected(group, lambda rows: rows["sum_seconds"] / 2)
        probed = not group["bandwidth_seconds"].eq(0).all()
        # What no probe has divided may be all latency, of which fewer bytes save nothing, or all bandwidth.
        most = half if probed else Expected(value=rest.value / 2, low=0.0, high=rest.high)
        yield Counterfactual(
            name="half the bytes",
            removes="half of the allreduce's bandwidth term",
            how="WIRE=bf16",
            sweep=_changed(run, wire="bf16"),
            expected=most,
        )
    other = cost_of(found.probe, run, "messages") if found.probe else None
    if other is not None and "MPI_Allreduce" not in run.provenance.reduction:
        takes = other.seconds(run.weights.bytes) * run.steps_per_epoch
        yield Counterfactual(
            name="messages",
            removes="shared memory between the ranks",
            how="HARNESS_REDUCTION=messages",
            sweep=replace(as_it_is(run), settings=(("HARNESS_REDUCTION", "messages"),)),
            expected=_expected(group, lambda rows: rows["wire_seconds"] - takes),
        )


def _other_rows(run: RunRecord, group: pd.DataFrame) -> Iterator[Counterfactual]:
    layout, workload = run.point.layout, run.point.workload
    if layout.shares is not None:
        yield Counterfactual(
            name="equal rows",
            removes="unequal rows",
            how="equal parts of the rows for all ranks",
            sweep=replace(as_it_is(run), layouts=(replace(layout, shares=None),)),
            expected=_expected(group, lambda rows: rows["skew_rows_seconds"]),
        )

    if workload.dataset == IMAGENET and workload.input != "resident":
        yield Counterfactual(
            name="no input",
            removes="decoding images",
            how="INPUT=resident",
            sweep=_changed(run, input="resident"),
            expected=_expected(group, lambda rows: rows["input_seconds"]),
        )


def _alone(found: Explanation, run: RunRecord, group: pd.DataFrame) -> Iterator[Counterfactual]:
    """One rank with a rank's rows and batch of the point: its step as no neighbour disturbs it."""
    layout = run.point.layout
    items = [item for point in found.overheads if point.layout == str(layout) for item in point.items]
    grown = next((item for item in items if item.cause.column == "computing_seconds"), None)
    if grown is None or layout.shares is not None or run.point.workload.seconds is not None:
        return
    rows = int(group["all_rows"].iloc[0])
    interval = grown.fraction_interval or Interval(low=grown.fraction, high=grown.fraction)
    batch = max(1, run.global_batch // layout.ranks)
    own = {"samples": rows // layout.ranks, "batch_per_rank": batch, "global_batch": None}
    yield Counterfactual(
        name="a rank alone",
        removes="neighbours on the machine",
        how="one rank, a rank's rows and batch",
        sweep=replace(
            _changed(run, **own, sync=NoSync.form, wire="float32"),
            layouts=(Layout(nodes=1, threads=layout.threads, gpus_per_rank=layout.gpus_per_rank),),
        ),
        expected=Expected(value=grown.fraction, low=interval.low, high=interval.high),
        against=NO_ALLREDUCE,
    )


def prove_overheads(
    found: Explanation, *, blocks: int, data_dir: Path | None, results: Path, say: Callable[[str], None]
) -> Proofs:
    """Launch the counterfactuals of the largest point, `blocks` times each, in turn in one session.

    What is expected is written down and said before the first launch. A block has every launch once,
    in random order.

    Raises:
        UserError: a launch cannot run here, or its data is not here.
        RunError: there is nothing to prove, or a launch failed.
    """
    point = found.main
    chosen = counterfactuals(found, point.layout) if point else ()
    if point is None or not chosen:
        raise RunError("nothing to prove: no cause that a launch can take away costs 1 % of the epoch")
    run = next(run for run in found.loaded.valid if str(run.point.layout) == point.layout)
    locate(run.point.workload, data_dir, run.point.data_id)
    made = datetime.now(UTC)
    folder = results / FOLDER / found.loaded.folder.resolve().name / made.strftime("%Y%m%dT%H%M%S%f")
    folder.mkdir(parents=True)
    write_atomic(folder / PLAN_FILE, encode(chosen))
    for one in chosen:
        low, high = 100 * one.expected.low, 100 * one.expected.high
        span = f" ({low:.1f} to {high:.1f} %)" if one.expected.interval else ""
        gain = f"{100 * one.expected.value:.1f} %{span}"
        say(f"expected: {one.name} ({one.how}) gives {gain} of the epoch, against {one.against}")
    sides = {AS_IT_IS: as_it_is(run)} | {one.name: one.sweep for one in chosen}
    frames = _launch(sides, folder, blocks, data_dir, say)
    proofs = Proofs(
        sweep=found.loaded.folder.resolve().name,
        layout=point.layout,
        ranks=point.ranks,
        made=made,
        proofs=tuple(judge_change(one, frames[one.against], frames[one.name]) for one in chosen),
    )
    write_atomic(folder / PROOF_FILE, encode(proofs))
    return proofs


def newest_proofs(results: Path, sweep: str) -> Proofs | None:
    """Return what was proven last about the sweep of that name, None where nothing was.

    Raises:
        UserError: the file is damaged.
    """
    files = sorted((results / FOLDER / sweep).glob(f"*/{PROOF_FILE}"))
    return decode(files[-1].read_bytes(), Proofs, files[-1]) if files else None


def judge_change(one: Counterfactual, against: pd.DataFrame, without: pd.DataFrame) -> Proof:
    """Return what `without` gives, valid rows of `frames.launch_frame` as `against`: 1 - the ratio of their medians."""
    ratio = interval = None
    if len(against) and len(without):
        ratio = float(without["seconds"].median() / against["seconds"].median())
        found = paired_ratio(without, against)
        interval = Interval(low=1 - found.high, high=1 - found.low) if found else None
    verdict = OPEN
    if interval is not None:
        low, high = one.expected.low, one.expected.high
        outside = interval.low > high or interval.high < low
        hidden = interval.low <= 0 <= interval.high and not low <= 0 <= high
        hidden |= (interval.high - interval.low) / 2 > max(abs(low), abs(high))
        verdict = REFUTED if outside else OPEN if hidden else CONFIRMED
    return Proof(
        name=one.name,
        removes=one.removes,
        how=one.how,
        against=one.against,
        expected=one.expected,
        measured=None if ratio is None else 1 - ratio,
        interval=interval,
        launches=min(len(against), len(without)),
        verdict=verdict,
    )


def _launch(
    sides: Mapping[str, Sweep], folder: Path, blocks: int, data_dir: Path | None, say: Callable[[str], None]
) -> dict[str, pd.DataFrame]:
    """Return the valid launches of every side, made in turn."""
    order, made = random.Random(folder.name), dict[str, Path]()
    for block in range(blocks):
        say(f"block {block + 1} of {blocks}: {', '.join(sides)}")
        for name in order.sample(list(sides), len(sides)):
            made[name] = run_sweep(
                replace(sides[name], repeats=block + 1),
                data_dir=data_dir,
                results=folder / name.replace(" ", "-"),
                console=Console(quiet=True),
                invalid_too=False,
            )
    loaded = {name: load_sweep(place, every_code=True) for name, place in made.items()}
    frames = {name: launch_frame(one.runs, one.epochs) for name, one in loaded.items()}
    return {name: frame[frame["valid"]] for name, frame in frames.items()}
