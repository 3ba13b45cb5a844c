"""The proof: launches that lack exactly one cause, and what each gives beside what was expected of it beforehand."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from harness.analysis.frames import launch_frame, median_launches
from harness.analysis.read_results import load_sweep
from harness.analysis.stats import FEWEST_BLOCKS, Interval, over_blocks
from harness.analysis.turn_blocks import log_ratios, step_table, undisturbed_rounds, winsorise
from harness.base.cores import memory_limit
from harness.base.errors import RunError
from harness.base.files import write_atomic
from harness.datasets import locate
from harness.schema.record import RunRecord, decode, encode
from harness.schema.sweep import ROUNDS, Layout, Point, Sweep
from harness.schema.sync import Gradients, NoSync
from harness.schema.workload import IMAGENET, is_script
from harness.sweep.execute import run_blocks
from harness.sweep.job_script import resident
from harness.sweep.plan import current
from harness.why.explanation import Explanation, cost_of
from harness.why.launch_detail import detailed

FOLDER = "counterfactuals"  # results/counterfactuals/<sweep>/<time>/
PLAN_FILE, PROOF_FILE, LAUNCHES = "expected.json", "proof.json", "launches"
CONFIRMED, REFUTED, CANNOT_TELL = "confirmed", "refuted", "cannot tell"
AS_IT_IS = "as it is"
NO_ALLREDUCE, ALONE, BASE = "no allreduce", "a rank alone", "the base"
_LEAST_GAIN = 0.01  # of the epoch: what is expected to give less proves nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The part of the epoch's time that is expected to go: of the median launch, and the least and most of a launch."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What a launch lacks: `removes` says what is gone, `how` by which setting, `against` what it is compared with.

    `vague`: what is missing for an expectation that a gain could confirm, empty where it says how much.
    """

    name: str
    removes: str
    how: str
    expected: Expected
    against: str = AS_IT_IS
    vague: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counterfactual(Change):
    """A change and the launch that makes it."""

    sweep: Sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof(Change):
    """What a change gave, as a part of the epoch's time as it is: `expected` beforehand, `measured` in turns.

    `own` is what the launches as it is of the same blocks let expect; `launches` counts the blocks. The verdict
    (`judge_change`) comes with what is `missing` where it is open. `interval` is None below 3 blocks, `measured` where
    there is none.
    """

    measured: float | None
    interval: Interval | None
    launches: int
    verdict: str
    own: float | None = None
    missing: str = ""


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
    launches, run = found.detail.launches, _run_of(found, layout)
    sides = (launches[launches["layout"] == one] for one in (layout, found.scaling.base.layout))
    possible = _possible(found, run, *sides)
    worth = {one.name for one in possible if max(abs(one.expected.low), abs(one.expected.high)) >= _LEAST_GAIN}
    needed = {one.against for one in possible if one.name in worth}
    return tuple(one for one in possible if one.name in worth | needed)


def _run_of(found: Explanation, layout: str) -> RunRecord:
    return next(run for run in found.loaded.valid if str(run.point.layout) == layout)


def _possible(
    found: Explanation, run: RunRecord, group: pd.DataFrame, base: pd.DataFrame
) -> tuple[Counterfactual, ...]:
    """Return all that can be tried, with what `group`, launches of `run`'s layout as it is, and `base` let expect."""
    possible = [*_without_allreduce(run, group), *_other_wire(found, run, group), *_other_rows(run, group)]
    possible += _alone(found, run, group, base) if any(one.name == NO_ALLREDUCE for one in possible) else []
    return tuple(possible)


def as_it_is(run: RunRecord) -> Sweep:
    """Return the sweep of the launch itself; it is launched again beside those that change something."""
    point = run.point
    return Sweep(
        workload=point.workload,
        layouts=(point.layout,),
        repeats=1,
        scaling=point.scaling,
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
    value, single = float(columns[0, 0] / seconds[0]), shown["gain"] / shown["seconds"]
    return Expected(value=value, low=min(value, float(single.min())), high=max(value, float(single.max())))


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
            vague="" if probed else "a probe on as many ranks (make probe), which divides latency from bandwidth",
        )
    other = cost_of(found.probe, run, "messages") if found.probe else None
    if other is not None and run.provenance.algorithm != "messages":
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


def _alone(found: Explanation, run: RunRecord, group: pd.DataFrame, base: pd.DataFrame) -> Iterator[Counterfactual]:
    """One rank with a rank's rows and batch of the point: its step as no neighbour disturbs it."""
    layout = run.point.layout
    if base.empty or layout.shares is not None or run.point.workload.seconds is not None:
        return
    rows = int(group["all_rows"].iloc[0])
    batch = max(1, run.global_batch // layout.ranks)
    own = {"samples": rows // layout.ranks, "batch_per_rank": batch, "global_batch": None}
    share = layout.ranks / int(base["ranks"].iloc[0]) if found.scaling.scaling == "strong" else 1.0
    ideal = float(median_launches(base, np.arange(len(base))[None], ["computing_seconds"])[1][0, 0]) / share
    yield Counterfactual(
        name=ALONE,
        removes="neighbours on the machine",
        how="one rank, a rank's rows and batch",
        sweep=replace(
            _changed(run, **own, sync=NoSync.form, wire="float32"),
            layouts=(Layout(nodes=1, threads=layout.threads, gpus_per_rank=layout.gpus_per_rank),),
        ),
        expected=_expected(group, lambda rows: rows["computing_seconds"] - ideal),
        against=NO_ALLREDUCE,
    )


def prove_overheads(
    found: Explanation, *, blocks: int, data_dir: Path | None, results: Path, say: Callable[[str], None]
) -> Proofs:
    """Train the counterfactuals of the largest point and the launch as it is in turns, in so many blocks.

    What is expected is written down and said before the first block.

    Raises:
        UserError: a launch cannot run here, or its data is not here.
        RunError: there is nothing to prove, or nothing that can wait for a turn.
    """
    point = found.main
    chosen = counterfactuals(found, point.layout) if point else ()
    if point is None or not chosen:
        raise RunError("nothing to prove: no cause that a launch can take away costs 1 % of the epoch")
    run = _run_of(found, point.layout)
    locate(run.point.workload, data_dir, run.point.data_id)
    sides = {AS_IT_IS: as_it_is(run)} | {one.name: one.sweep for one in chosen}
    if ALONE in sides:
        sides[BASE] = as_it_is(_run_of(found, found.scaling.base.layout))
    peak = max(rank.peak_memory_bytes for run in found.loaded.valid for rank in run.ranks)
    points, apart = resident({name: current(sweep).points()[0] for name, sweep in sides.items()}, peak, memory_limit())
    for name, why in apart.items():
        say(f"not launched: {name}: {why}")
    needed = {one.name: {AS_IT_IS, one.name, one.against} | ({BASE} if one.name == ALONE else set()) for one in chosen}
    chosen = tuple(one for one in chosen if needed[one.name] <= set(points))
    if not chosen:
        raise RunError("nothing to prove: no counterfactual can train in turns with the launch as it is here")
    made = datetime.now(UTC)
    folder = results / FOLDER / found.loaded.folder.resolve().name / made.strftime("%Y%m%dT%H%M%S%f")
    folder.mkdir(parents=True)
    write_atomic(folder / PLAN_FILE, encode(chosen))
    for one in chosen:
        value, low, high = (100 * part for part in (one.expected.value, one.expected.low, one.expected.high))
        gain = f"{value:.1f} % ({low:.1f} to {high:.1f} %)"
        say(f"expected: {one.name} ({one.how}) gives {gain} of the epoch, against {one.against}")
    turns = [{name: replace(one, repeat=block) for name, one in points.items()} for block in range(blocks)]
    run_blocks(turns, data_dir=data_dir, folder=folder / LAUNCHES, say=say)
    gains = _gains(found, chosen, turns, folder / LAUNCHES)
    proofs = Proofs(
        sweep=found.loaded.folder.resolve().name,
        layout=point.layout,
        ranks=point.ranks,
        made=made,
        proofs=tuple(judge_change(one, gains[one.name]) for one in chosen),
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


def judge_change(one: Change, gains: Sequence[tuple[float, float]]) -> Proof:
    """Return what a change gave; `gains` are of its blocks: what was measured, and what the block let expect.

    The sample is the block, intervals are Student's. Around the expectation lies a band of the larger of 1 point and
    half of what is expected. ``confirmed``: the gain's interval excludes 0, and the interval of its distance from the
    expectation lies in the band; ``refuted``: that lies outside of it.
    """
    measured, own = (float(np.mean(values)) for values in zip(*gains, strict=True)) if gains else (None, None)
    gain, off = over_blocks([value for value, _ in gains]), over_blocks([value - its for value, its in gains])
    verdict, missing, interval = CANNOT_TELL, f"blocks with both launches: {len(gains)} of {FEWEST_BLOCKS}", None
    if gain is not None and off is not None and own is not None:
        interval = Interval(low=gain.mean - gain.reach, high=gain.mean + gain.reach)
        inside = max(_LEAST_GAIN, abs(own) / 2) - abs(off.mean)  # to the edge of the band
        room = min(inside, gain.mean * np.sign(own)) if inside > 0 else -inside
        reach = max(gain.reach, off.reach) if inside > 0 else off.reach
        if one.vague or room <= 0:
            missing = one.vague or "a gain"
        elif reach < room:
            verdict, missing = CONFIRMED if inside > 0 else REFUTED, ""
        else:  # their scatter stays: intervals narrow with the root of the blocks
            missing = f"about {math.ceil(len(gains) * (reach / room) ** 2):,} blocks in all (--repeats)"
    return Proof(
        **{name.name: getattr(one, name.name) for name in fields(Change)},
        measured=measured,
        interval=interval,
        launches=len(gains),
        verdict=verdict,
        own=own,
        missing=missing,
    )


def _gains(
    found: Explanation, chosen: Sequence[Counterfactual], blocks: Sequence[Mapping[str, Point]], place: Path
) -> dict[str, list[tuple[float, float]]]:
    """Return of every counterfactual the gain in each block, and what the block's own launch as it is let expect.

    Both are parts of the epoch as it is. A gain is Winsor's mean over rounds, of what that round gave.
    """
    loaded, probe = load_sweep(place, every_code=True), found.probe
    gains = {one.name: list[tuple[float, float]]() for one in chosen}
    valid = {run.point.folder: run for run in loaded.valid}
    if not valid:
        return gains
    frame = launch_frame(loaded.runs, loaded.epochs)
    known = {block[name].folder for block in blocks for name in (AS_IT_IS, BASE) if name in block}
    detail = detailed(place, frame[frame["run"].isin(known)], lambda run: cost_of(probe, run) if probe else None)
    for block in blocks:
        names = {point.folder: name for name, point in block.items() if point.folder in valid}
        run = valid.get(block[AS_IT_IS].folder)
        if run is None:
            continue
        try:
            turns = pd.read_parquet(place / ROUNDS / f"{run.block}.parquet")
        except (OSError, ValueError):  # the block had no end
            continue
        block_turns = turns[turns["launch"].isin(names)]
        calm = undisturbed_rounds(block_turns.assign(launch=block_turns["launch"].map(names)), alike=False)
        steps = step_table(calm)
        of_block = detail.launches.assign(side=detail.launches["run"].map(names))
        own = _possible(found, run, *(of_block[of_block["side"] == side] for side in (AS_IT_IS, BASE)))
        expected = {one.name: one.expected.value for one in own}
        for one in chosen:
            ratios = log_ratios(calm, one.name, one.against).rename("ratio")
            both = steps.reindex(columns=[AS_IT_IS, one.against]).dropna()
            as_is, against, ratio = both.join(ratios, how="inner").to_numpy().T
            if len(as_is) and one.name in expected:
                gain = winsorise(against * (1 - np.exp(ratio)) / as_is).mean()
                gains[one.name].append((float(gain), expected[one.name]))
    return gains
