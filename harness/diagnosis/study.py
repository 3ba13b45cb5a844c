"""What is known to be wrong with the launches of a sweep."""

from contextlib import suppress

from harness.analysis.calls import Calls, read_calls
from harness.analysis.frames import launch_frame, middle_launch
from harness.analysis.read_results import Loaded
from harness.base.errors import UserError
from harness.diagnosis.case import Case, Finding
from harness.diagnosis.catalogue import diagnose
from harness.schema.record import RunRecord, read_run

MOST = 24
"""Launches that are looked into: reading every call of thousands would take minutes."""


def diagnose_sweep(loaded: Loaded) -> tuple[Finding, ...]:
    """Return the findings of at most MOST launches and of all failures, the dearest first.

    Looked into are launches with a slow rank first, then one of each layout, the largest first, and then the rest;
    invalid ones too, whose reasons are causes as well.
    """
    if not loaded.runs:
        return diagnose((), loaded.failures)
    base = _base(loaded)
    cases = [case for run in _chosen(loaded) if (case := _case(loaded, run, base))]
    return diagnose(cases, loaded.failures)


def _chosen(loaded: Loaded) -> list[RunRecord]:
    slow = {one.run for one in loaded.slow}
    seen = dict[str, int]()
    places = []
    for run in loaded.runs:
        layout = str(run.point.layout)
        seen[layout] = seen.get(layout, 0) + 1
        places.append((run.point.folder not in slow, seen[layout], -run.point.layout.ranks))
    order = sorted(range(len(places)), key=places.__getitem__)
    return [loaded.runs[place] for place in order[:MOST]]


def _base(loaded: Loaded) -> RunRecord | None:
    """Return the middle launch on fewest ranks with its epochs, None where none is valid."""
    if not loaded.valid:
        return None
    fewest = min(run.point.layout.ranks for run in loaded.valid)
    frame = launch_frame([run for run in loaded.valid if run.point.layout.ranks == fewest], loaded.epochs)
    return read_run(loaded.folder / middle_launch(frame))


def _case(loaded: Loaded, run: RunRecord, base: RunRecord | None) -> Case | None:
    """Return the launch with its epochs and calls; None where its files went away, no calls where they cannot tell."""
    folder = loaded.folder / run.point.folder
    try:
        whole = read_run(folder)
    except UserError:
        return None
    calls: tuple[Calls, ...] = ()
    with suppress(UserError):  # of an older harness: its record has what the other causes need
        calls = read_calls(folder, whole)
    return Case(run=whole, calls=calls, base=base)
