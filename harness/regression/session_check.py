"""Did it get worse? New sessions of a study beside a baseline's, each quantity of each layout judged by itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from harness.analysis.confidence_intervals import LEVEL, Interval
from harness.analysis.sessions import (
    DEFAULT_DEVIATION,
    DEFAULT_FREEDOM,
    DEFAULT_SESSIONS,
    EFFICIENCY,
    SAME_DAY_DEVIATION,
    SAME_DAY_FREEDOM,
    SAME_DAY_SESSIONS,
    STEP,
)
from harness.analysis.useful_time import PARALLEL
from harness.base.cpu_contention import TOLERANCE
from harness.regression.change_threshold import DEFAULT_THRESHOLD
from harness.regression.measurement import MeasuredLaunch, Measurement, as_cost, as_slowdown
from harness.regression.session_model import (
    Difference,
    Needed,
    Scatter,
    ScatterSource,
    Sessions,
    difference,
    has_enough_blocks,
    holm,
    needed,
    scatter_between,
)
from harness.regression.session_samples import SessionSample, session_samples
from harness.regression.slow_node import SlowNode, sessions_of, slow_node
from harness.schema.layout import Layout

_DAY = timedelta(days=1)

MADE_UP = (STEP, EFFICIENCY, PARALLEL)
"""Quantities that change when a factor does: it is the one to name first."""


class Verdict(StrEnum):
    """What a row, or a whole check, says."""

    PASS = "pass"
    SMALL = "small change"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRow:
    """One quantity at one layout, and the verdict on it.

    `values` are the baseline's and the new one, seconds of a step or a fraction. `slowdown` above 0 is worse; a
    fraction of the speed or efficiency. The `interval` of 95 % is the row's own, None where blocks lack. `sessions` and
    `blocks` are the baseline's and the new ones. `needed` is what would decide where it cannot tell.
    """

    quantity: str
    layout: Layout
    values: tuple[float, float]
    slowdown: float
    interval: Interval | None
    verdict: Verdict
    sessions: tuple[int, int]
    blocks: tuple[int, int]
    scatter: Scatter
    needed: Needed | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionCheck:
    """A baseline, new sessions of its study, and the verdict on every row; below `threshold` is no difference."""

    reference: Measurement
    current: Measurement
    threshold: float
    rows: tuple[SessionRow, ...]

    @property
    def unmeasured(self) -> tuple[Layout, ...]:
        """The baseline's layouts that have no launch now."""
        return tuple(layout for layout in self.reference.layouts if not self.current.of(layout))

    @property
    def verdict(self) -> Verdict:
        """The worst of the rows: a regression first, then what cannot be told, a small change, an improvement."""
        verdicts = {row.verdict for row in self.rows}
        if Verdict.REGRESSION in verdicts:
            return Verdict.REGRESSION
        if Verdict.CANNOT_TELL in verdicts or self.unmeasured or not verdicts:
            return Verdict.CANNOT_TELL
        return next((verdict for verdict in (Verdict.SMALL, Verdict.IMPROVEMENT) if verdict in verdicts), Verdict.PASS)

    @property
    def other_work(self) -> float | None:
        """The cores that other work used all along the new sessions, None where it did not.

        A load that does not change leaves no round undisturbed to compare with, so that turns do not show it.
        """
        return other_work(self.reference, self.current)

    @property
    def largest_possible_loss(self) -> float | None:
        """The limit above which this check passes: no row's interval reaches it. None where a row has no interval.

        At that limit the check passes with the error of a single row, as it needs all of them to pass (Berger 1982).
        """
        if self.unmeasured or not self.rows:
            return None
        intervals = [row.interval for row in self.rows if row.interval is not None]
        if len(intervals) < len(self.rows):
            return None
        return max(interval.high for interval in intervals)

    @property
    def is_told_by_one_day(self) -> bool:
        """Whether the sessions that tell how far sessions differ began within a day: other days differ by more."""
        if not any(row.scatter.source == ScatterSource.COMPARED for row in self.rows):
            return False
        return _are_of_one_day(self.reference.launches)

    @property
    def whole_epochs(self) -> tuple[Measurement, ...]:
        """Those of the two measurements in turns whose factors are of whole epochs, for a launch at least."""
        both = (self.reference, self.current)
        return tuple(measurement for measurement in both if measurement.in_turns and _has_whole_epochs(measurement))

    @property
    def is_of_steps_alone(self) -> bool:
        """Whether the time of a step has the verdict on every one of several layouts, and nothing else has it."""
        layouts = self.reference.layouts
        changed = {(row.quantity, row.layout) for row in self.of(self.verdict)}
        return len(layouts) > 1 and changed == {(STEP, layout) for layout in layouts}

    @property
    def slow_node(self) -> SlowNode | None:
        """The node whose ranks were slower than those of the others in the newest session, and perhaps before."""
        if not self.current.launches:
            return None
        return slow_node((*sessions_of(self.reference), *sessions_of(self.current)))

    @property
    def blocks_would_decide(self) -> bool:
        """Whether a row that cannot be told would be by more blocks of this session."""
        if self.other_work is not None:
            return False
        unsure = self.of(Verdict.CANNOT_TELL)
        return any(row.needed is not None and row.needed.blocks > 0 for row in unsure)

    def of(self, verdict: Verdict) -> tuple[SessionRow, ...]:
        """Return the rows of `verdict`, the factors before what they make up, of these the largest slowdown first."""
        rows = [row for row in self.rows if row.verdict == verdict]
        return tuple(sorted(rows, key=lambda row: (row.quantity in MADE_UP, -row.slowdown)))


def check_sessions(
    reference: Measurement,
    current: Measurement,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    machine_sweeps: Sequence[Measurement] = (),
    looks: int = 1,
) -> SessionCheck:
    """Return the verdict on the sessions of `current` beside those of the baseline `reference`, both of one study.

    `machine_sweeps` are measurements of any study on the same machine, one for each study and code: they tell how far
    sessions differ where `reference` and `current` have too few. So many `looks` at the verdict share its error.
    """
    layouts = [layout for layout in reference.layouts if current.of(layout)]
    pairs: list[_RowPair] = []
    if layouts:
        of_machine = scatters_of_machine(machine_sweeps)
        same_day = _are_of_one_day((*reference.launches, *current.launches))
        now = {sample.key: sample for sample in session_samples(current, layouts)}
        for before in session_samples(reference, layouts):
            if before.key in now:
                after = now[before.key]
                scatter = choose_scatter(
                    before.quantity, before.sessions, after.sessions, of_machine, same_day=same_day
                )
                pairs.append(_RowPair(before=before, now=after, scatter=scatter))
    rows = _rows(pairs, threshold, looks)
    if other_work(reference, current) is not None:
        rows = tuple(_without_change(row) for row in rows)
    return SessionCheck(reference=reference, current=current, threshold=threshold, rows=rows)


def _has_whole_epochs(measurement: Measurement) -> bool:
    """Say whether the factors of a launch of `measurement` include interference."""
    useful_times = [launch.useful for launch in measurement.launches if launch.layout.ranks > 1]
    return any(times is not None and not times.excludes_contended for times in useful_times)


def other_work(reference: Measurement, current: Measurement) -> float | None:
    """Return the cores that other work used all along the sessions of `current`, None where it did not.

    It met nearly every round of all blocks (`Measurement.contended`). Or it met a launch of every block, and used more
    than a quiet machine's own housekeeping does (`TOLERANCE`), also beyond what was used beside the baseline
    `reference`: work that is always there is part of the machine.
    """
    if current.contended:
        return current.other_cores
    blocks = {launch.repeat for launch in current.launches}
    met_blocks = {launch.repeat for launch in current.launches if launch.met}
    more = current.other_cores - reference.other_cores
    return current.other_cores if blocks and met_blocks == blocks and more > TOLERANCE else None


def _without_change(row: SessionRow) -> SessionRow:
    """Return `row`; a change that other work may have made cannot be told."""
    is_change = row.verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT)
    return replace(row, verdict=Verdict.CANNOT_TELL) if is_change else row


def tells_scatter(reference: Measurement, current: Measurement) -> bool:
    """Say whether the sessions of both tell how far sessions differ."""
    groups = []
    for measurement in (reference, current):
        times = [sample for sample in session_samples(measurement, measurement.layouts) if sample.quantity == STEP]
        groups.append(times[0].sessions)
    return scatter_between(groups, ScatterSource.COMPARED) is not None


def scatters_of_machine(measured: Iterable[Measurement]) -> dict[str, Scatter]:
    """Return by quantity how far sessions differ within each of the studies `measured`, where that can be told.

    Launches of one study in several sweeps are to be joined before: sessions of other code differ by more.
    """
    groups: dict[str, list[Sessions]] = {}
    for measurement in measured:
        # One layout of each, that of most ranks: what a session does to one layout it does to the others too.
        of_largest = {sample.quantity: sample for sample in session_samples(measurement, measurement.layouts)}
        for quantity, sample in of_largest.items():
            groups.setdefault(quantity, []).append(sample.sessions)
    scatters = {}
    for quantity, sessions in groups.items():
        scatter = scatter_between(sessions, ScatterSource.MACHINE)
        if scatter is not None:
            scatters[quantity] = scatter
    return scatters


def default_scatter(quantity: str, *, same_day: bool = False) -> Scatter:
    """Return how far sessions are taken to differ in `quantity` where no sessions tell it."""
    if same_day:
        return Scatter(
            source=ScatterSource.SAME_DAY,
            variance=SAME_DAY_DEVIATION[quantity] ** 2,
            freedom=SAME_DAY_FREEDOM,
            sessions=SAME_DAY_SESSIONS,
        )
    return Scatter(
        source=ScatterSource.DEFAULT,
        variance=DEFAULT_DEVIATION[quantity] ** 2,
        freedom=DEFAULT_FREEDOM,
        sessions=DEFAULT_SESSIONS,
    )


def choose_scatter(
    quantity: str,
    reference: Sessions,
    current: Sessions,
    of_machine: Mapping[str, Scatter],
    *,
    same_day: bool = False,
) -> Scatter:
    """Return how far sessions differ: by those compared, else by the machine's other sweeps, else by default.

    `same_day` says that all sessions are of one day, of which there is another default.
    """
    compared = scatter_between((reference, current), ScatterSource.COMPARED)
    return compared or of_machine.get(quantity) or default_scatter(quantity, same_day=same_day)


def _are_of_one_day(launches: Sequence[MeasuredLaunch]) -> bool:
    """Say whether all `launches` started within 24 hours."""
    starts = [launch.started for launch in launches]
    return max(starts) - min(starts) < _DAY


def judge(changes: Sequence[Difference], limit: float, error: float) -> tuple[Verdict, ...]:
    """Return what each of `changes`, differences of logarithmic costs, means beside the `limit`.

    A regression needs an estimate above the limit, and to be above 0 with an `error` that all rows share (Holm, "A
    Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 6, 1979). An improvement
    needs the same with the signs turned. A pass needs the upper end of the row's own interval below the limit: a check
    passes only by all its rows (Berger, "Multiparameter Hypothesis Testing and Acceptance Sampling", Technometrics 24,
    1982).
    """
    worse = holm([change.chance_of_none_above for change in changes], error)
    better = holm([1 - change.chance_of_none_above for change in changes], error)
    verdicts = []
    for change, is_worse, is_better in zip(changes, worse, better, strict=True):
        verdict = Verdict.CANNOT_TELL
        if is_worse and change.mean > limit:
            verdict = Verdict.REGRESSION
        elif is_better and change.mean < -limit:
            verdict = Verdict.IMPROVEMENT
        elif change.interval().high < limit:
            verdict = Verdict.SMALL if is_worse else Verdict.PASS
        verdicts.append(verdict)
    return tuple(verdicts)


@dataclass(frozen=True, kw_only=True, slots=True)
class _RowPair:
    """A quantity of the baseline and of the new sessions, and how far sessions differ in it."""

    before: SessionSample
    now: SessionSample
    scatter: Scatter

    @property
    def is_measured(self) -> bool:
        """Whether there are blocks enough for an interval."""
        return has_enough_blocks(self.before.sessions, self.now.sessions, self.scatter)

    def change(self) -> Difference:
        """Return how far the new sessions are above the baseline's."""
        return difference(self.before.sessions, self.now.sessions, self.scatter)


def _rows(pairs: Sequence[_RowPair], threshold: float, looks: int) -> tuple[SessionRow, ...]:
    """Return the row of each of `pairs`; those with an interval share the error."""
    limit = as_cost(threshold)
    measured = [pair for pair in pairs if pair.is_measured]
    changes = [pair.change() for pair in measured]
    verdicts = judge(changes, limit, (1 - LEVEL) / looks)
    rows = [_row(*judged, limit) for judged in zip(measured, changes, verdicts, strict=True)]
    rows += [_row(pair, None, Verdict.CANNOT_TELL, limit) for pair in pairs if not pair.is_measured]
    return tuple(rows)


def _row(pair: _RowPair, change: Difference | None, verdict: Verdict, limit: float) -> SessionRow:
    before = pair.before
    now = pair.now
    interval = None
    missing = None
    if change is not None:
        costs = change.interval()
        interval = Interval(low=as_slowdown(costs.low), high=as_slowdown(costs.high))
        if verdict == Verdict.CANNOT_TELL:
            missing = needed(before.sessions, now.sessions, pair.scatter, limit)
    return SessionRow(
        quantity=before.quantity,
        layout=before.layout,
        values=(before.value, now.value),
        slowdown=as_slowdown(now.mean_cost - before.mean_cost),
        interval=interval,
        verdict=verdict,
        sessions=(len(before.sessions), len(now.sessions)),
        blocks=(sum(map(len, before.sessions)), sum(map(len, now.sessions))),
        scatter=pair.scatter,
        needed=missing,
    )
