"""Measure until a check can be decided: fresh launches of the code as it is now, within a budget of time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.stats import NEEDED
from harness.base.errors import RunError, UserError
from harness.base.provenance import Machine
from harness.regression.baselines import CHECKS, check_machine
from harness.regression.checks import Check, check_sessions
from harness.regression.measurements import join, measurements, without
from harness.regression.significance import DEFAULT_LIMITS, INCONCLUSIVE, Thresholds
from harness.schema.measurement import Measurement
from harness.schema.sweep import Sweep
from harness.sweep.execute import Approve, run_sweep
from harness.sweep.plan import current
from harness.sweep.submission import Submission

LOOKS = 3  # how often launches are added and judged again; each look has its part of the error allowed


def study_of(measurement: Measurement) -> Sweep:
    """Return the sweep that measures the same again: workload, layouts, scaling and data of `measurement`."""
    return Sweep(
        workload=measurement.workload,
        layouts=measurement.layouts,
        repeats=1,
        scaling=measurement.scaling,
        data_id=measurement.data_id,
    )


_LOCAL = Submission()
_NO_LAUNCH = "no valid launch was measured: give a larger BUDGET, or look at `harness status`"


class MoreLaunches:
    """Launches of one study, added block by block until the budget is spent, in a folder of their own.

    Those of the study itself count too where they ran the code as it is now. `submission` says where they go, `approve`
    may raise when it sees what batch jobs cost.
    """

    def __init__(
        self,
        sweep: Sweep,
        *,
        results: Path,
        data_dir: Path | None,
        budget_s: float,
        submission: Submission = _LOCAL,
        approve: Approve | None = None,
    ) -> None:
        self._folders = (results / sweep.name, results / CHECKS / sweep.name)
        self._sweep = sweep
        self._results = results / CHECKS
        self._data_dir = data_dir
        self._submission = submission
        self._approve = approve
        self._deadline = time.monotonic() + budget_s
        self._longest = 0.0

    @property
    def scheduler(self) -> str:
        """The name of what starts the launches, such as "local"."""
        return self._submission.scheduler

    def add(self, blocks: int) -> int:
        """Launch every layout `blocks` more times, fewer when the time is over, and return how often it was.

        Raises:
            UserError: a launch failed, or nothing can run here.
        """
        at_once = 1 if self.scheduler == "local" else blocks  # each wait in a queue may be long
        for done in range(0, blocks, at_once):
            begin = time.monotonic()
            if begin + self._longest > self._deadline:
                return done
            sweep = replace(self._sweep, repeats=self._repeats() + at_once)
            try:
                run_sweep(
                    sweep,
                    data_dir=self._data_dir,
                    results=self._results,
                    submission=self._submission,
                    approve=self._approve,
                    invalid_too=self.scheduler == "local",  # elsewhere each costs node-hours
                )
            except RunError as error:  # exit code 1 would say that the code has become slower
                raise UserError(f"cannot compare: {error}") from error
            self._longest = max(self._longest, time.monotonic() - begin)
        return blocks

    def measured(self) -> Measurement | None:
        """Return the valid launches of the code as it is now, None if there are none."""
        found = [one for loaded in self._loaded() for one in measurements(loaded, self._sweep.name)[:1]]
        if len(found) < 2 or found[0].machine.fingerprint != found[1].machine.fingerprint:
            return found[-1] if found else None
        return join(found[0], without(found[1], found[0]))

    def _repeats(self) -> int:
        """Return the repeats that were launched so far of the code as it is now."""
        own = [one for one in self._loaded() if one.folder == self._folders[1]]
        return 1 + max((run.point.repeat for one in own for run in one.runs), default=-1)

    def _loaded(self) -> list[Loaded]:
        """Return what there is, with the launches of the code as it is now."""
        code = current(self._sweep).code
        found = [load_sweep(folder, every_code=True) for folder in self._folders if folder.is_dir()]
        return [replace(one, runs=tuple(run for run in one.runs if run.point.code == code)) for one in found]


def measure_until_decided(
    reference: Measurement,
    same_code: Sequence[Measurement],
    launches: MoreLaunches,
    *,
    machine: Machine | None,
    limits: Thresholds = DEFAULT_LIMITS,
    say: Callable[[str], None],
) -> Check:
    """Return the check of the code as it is now against `reference`, adding launches while it is inconclusive.

    `machine` is the one that launches will run on, None where only they can show it.

    Raises:
        UserError: this is another machine, a launch failed, or the budget was too small for a single launch.
    """
    if machine is not None:
        check_machine(reference, machine)
    current = _current(launches, reference)
    missing = NEEDED - (current.fewest if current else 0)
    result: Check | None = None
    for look in range(LOOKS):
        if missing > 0:
            say(f"measuring: {missing} launches of each layout")
            added = launches.add(missing)
            current = _current(launches, reference)
            if not added:
                say("the budget of time is spent")
                break
        if current is None:
            continue
        check_machine(reference, current.machine)
        result = check_sessions(reference, current, same_code, limits=limits, looks=LOOKS)
        missing = result.more or 0
        if result.verdict != INCONCLUSIVE or not missing or look == LOOKS - 1:
            break
        say(f"inconclusive: {missing} more launches can decide it")
    if result is None and current is not None:
        result = check_sessions(reference, current, same_code, limits=limits, looks=LOOKS)
    if result is None:
        raise UserError(_NO_LAUNCH)
    return result


def measure_more(wanted: int, launches: MoreLaunches, *, say: Callable[[str], None]) -> Measurement:
    """Return all launches of the code as it is now, after adding those that are `wanted` of each layout.

    Raises:
        UserError: a launch failed, or the budget was too small for a single valid one.
    """
    before = launches.measured()
    while True:
        current = launches.measured()
        fresh = without(current, before) if current and before else current
        missing = wanted - (fresh.fewest if fresh else 0)
        if missing <= 0 and current is not None:
            return current
        say(f"measuring: {missing} launches of each layout")
        if not launches.add(missing):
            break
    if current is None or fresh is None or not fresh.launches:
        raise UserError(_NO_LAUNCH)
    say(f"the budget of time is spent: {fresh.fewest} launches of each layout")
    return current


def _current(launches: MoreLaunches, reference: Measurement) -> Measurement | None:
    """Return the launches of the code as it is now, without the reference's own, None if there are none."""
    found = launches.measured()
    left = without(found, reference) if found else None
    return left if left and left.launches else None
