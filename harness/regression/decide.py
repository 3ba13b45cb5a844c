"""Measure until a check can be decided: fresh launches of the code as it is now, within a budget of time."""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.analysis.load import load_sweep
from harness.analysis.stats import NEEDED
from harness.base.errors import RunError, UserError
from harness.base.provenance import describe_machine, git_commit, package_version
from harness.regression.match import check_machine
from harness.regression.states import measurements, without
from harness.regression.verdict import DEFAULT_LIMITS, INCONCLUSIVE, Check, Limits, check
from harness.schema.measurement import Measurement, Software
from harness.schema.sweep import Sweep
from harness.sweep.plan import current

LOOKS = 3  # how often launches are added and judged again; each look has its part of the error allowed

_PACKAGES = ("tensorflow", "keras", "numpy", "mpi4py")


def study_of(measurement: Measurement) -> Sweep:
    """Return the sweep that measures the same again: workload, layouts, scaling and data of `measurement`."""
    return Sweep(
        workload=measurement.workload,
        layouts=measurement.layouts,
        repeats=1,
        scaling=measurement.scaling,
        data_id=measurement.data_id,
    )


class Measuring:
    """Launches of one study, added block by block until the budget is spent."""

    def __init__(self, sweep: Sweep, *, results: Path, data_dir: Path | None, budget_s: float) -> None:
        self.folder = results / sweep.name
        self._sweep = sweep
        self._results = results
        self._data_dir = data_dir
        self._deadline = time.monotonic() + budget_s
        self._longest = 0.0

    def add(self, blocks: int) -> int:
        """Launch every layout `blocks` more times, fewer when the time is over, and return how often it was.

        Raises:
            UserError: a launch failed, or nothing can run here.
        """
        from harness.sweep.execute import run_sweep

        for done in range(blocks):
            begin = time.monotonic()
            if begin + self._longest > self._deadline:
                return done
            sweep = replace(self._sweep, repeats=self._repeats() + 1)
            try:
                run_sweep(sweep, data_dir=self._data_dir, results=self._results)
            except RunError as error:  # exit code 1 would say that the code has become slower
                raise UserError(f"cannot compare: {error}") from error
            self._longest = max(self._longest, time.monotonic() - begin)
        return blocks

    def _repeats(self) -> int:
        """Return the repeats that were launched so far of the code as it is now."""
        if not self.folder.is_dir():
            return 0
        code = current(self._sweep).code
        runs = [run for run in load_sweep(self.folder, every_code=True).runs if run.point.code == code]
        return 1 + max((run.point.repeat for run in runs), default=-1)


def decide(
    reference: Measurement,
    alike: Sequence[Measurement],
    measuring: Measuring,
    *,
    limits: Limits = DEFAULT_LIMITS,
    say: Callable[[str], None],
) -> Check:
    """Return the check of the code as it is now against `reference`, adding launches while it is inconclusive.

    Raises:
        UserError: this is another machine, a launch failed, or the budget was too small for a single launch.
    """
    check_machine(reference, describe_machine(gpus=reference.machine.gpus))
    current = _current(measuring, reference)
    missing = NEEDED - (current.fewest if current else 0)
    result: Check | None = None
    for look in range(LOOKS):
        if missing > 0:
            say(f"measuring: {missing} launches of each layout")
            added = measuring.add(missing)
            current = _current(measuring, reference)
            if not added:
                say("the budget of time is spent")
                break
        if current is None:
            continue
        result = check(reference, current, alike, limits=limits, looks=LOOKS)
        missing = result.more or 0
        if result.verdict != INCONCLUSIVE or not missing or look == LOOKS - 1:
            break
        say(f"inconclusive: {missing} more launches can decide it")
    if result is None and current is not None:
        result = check(reference, current, alike, limits=limits, looks=LOOKS)
    if result is None:
        raise UserError("no valid launch was measured: give a larger BUDGET, or look at `harness status`")
    return result


def measure_more(launches: int, measuring: Measuring, *, say: Callable[[str], None]) -> Measurement:
    """Return all launches of the code as it is now, after adding `launches` of each layout.

    Raises:
        UserError: a launch failed, or the budget was too small for a single valid one.
    """
    before = _here(measuring)
    while True:
        current = _here(measuring)
        fresh = without(current, before) if current and before else current
        missing = launches - (fresh.fewest if fresh else 0)
        if missing <= 0 and current is not None:
            return current
        say(f"measuring: {missing} launches of each layout")
        if not measuring.add(missing):
            break
    if fresh is None or not fresh.launches:
        raise UserError("no valid launch was measured: give a larger BUDGET, or look at `harness status`")
    say(f"the budget of time is spent: {fresh.fewest} launches of each layout")
    assert current is not None
    return current


def _current(measuring: Measuring, reference: Measurement) -> Measurement | None:
    """Return the launches of the code as it is now, without the reference's own, None if there are none."""
    found = _here(measuring)
    left = without(found, reference) if found else None
    return left if left and left.launches else None


def _here(measuring: Measuring) -> Measurement | None:
    """Return the valid launches of the code as it is now, None if there are none."""
    if not measuring.folder.is_dir():
        return None
    here = _code()
    for found in measurements(load_sweep(measuring.folder, every_code=True), measuring.folder.name):
        if all(getattr(found.software, name) == value for name, value in here.items()):
            return found
    return None


def _code() -> dict[str, object]:
    """Return what is known of the code here without importing TensorFlow or MPI."""
    from harness.base import __version__

    commit, dirty = git_commit()
    versions: dict[str, object] = {name: package_version(name) for name in _PACKAGES}
    known = {"commit": commit, "dirty": dirty, "harness": __version__, "python": platform.python_version()}
    assert set(known) | set(versions) <= set(Software.__slots__)
    return known | versions
