"""Sums on GPUs, whose times the host does not know, are nowhere stated as taking no time."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.launch_frames import launch_frame as frame_of
from harness.analysis.read_results import load_sweep
from harness.analysis.scaling import scale
from harness.analysis.time_parts import breakdown_frame
from harness.prediction.extrapolation import extrapolate
from harness.report.figures.breakdown import EPOCH
from harness.report.sweep_tables import launches_table, parts_table
from harness.report.sweep_warnings import doubts
from harness.report.table_cells import NOT_MEASURED
from harness.schema.record_notes import Note, NoteCode
from harness.schema.sweep import Layout
from harness.why.efficiencies import NAMES
from harness.why.explanation import explain_sweep
from tests.labs.factories import launch_frame, make_launch, write_study
from tests.labs.planted import write_planted

NOTE = Note(code=NoteCode.SUMS_NOT_TIMED)
RUNS = [
    *(make_launch(1, repeat, 2.0, sync=0.0) for repeat in range(6)),
    *(make_launch(2, repeat, 1.1, sync=0.0, notes=(NOTE,)) for repeat in range(6)),
]


def test_tables_leave_them_out_and_a_warning_says_so() -> None:
    launches = launch_frame(RUNS)
    names = {str(run.point.layout): str(run.point.layout) for run in RUNS}
    parts = parts_table("One epoch", breakdown_frame(launches), EPOCH, names)
    unknown = [[cell is NOT_MEASURED for cell in row[2:]] for row in parts.rows]
    assert unknown == [[False] * 4, [False, False, True, True]]
    table = launches_table(launches, "folder", ())
    place = table.headings.index("Synchro-\nnisation")
    assert [row[place] is NOT_MEASURED for row in table.rows] == [False] * 6 + [True] * 6
    assert any("6 of 12 launches summed on GPUs" in doubt for doubt in doubts(RUNS, launches))
    assert not any("summed on GPUs" in doubt for doubt in doubts(RUNS[:6], launch_frame(RUNS[:6])))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Return a sweep over 1 and 2 ranks, whose launches on 2 have no times of sums."""
    folder = tmp_path / "sweep"
    write_study(folder)
    for repeat in range(6):
        for ranks in (1, 2):
            notes = (NOTE,) if ranks > 1 else ()
            write_planted(
                folder, ranks, repeat, lambda rng, steps, n=ranks: rng.normal(1e-3, 1e-5, (steps, n)), notes=notes
            )
    return folder


def test_efficiencies_are_of_the_whole_alone_and_nothing_is_predicted(sweep: Path) -> None:
    alone, two = explain_sweep(sweep).efficiencies
    assert set(alone.metrics) == set(NAMES)
    assert set(two.metrics) == {NAMES[0]}
    loaded = load_sweep(sweep)
    scaling = scale(frame_of(loaded.runs, loaded.epochs))
    assert scaling
    predicted, reason = extrapolate(loaded, scaling, [Layout(nodes=4)])
    assert predicted == ()
    assert "sums on GPUs" in reason
    timed = [replace(run, notes=()) for run in loaded.valid]
    assert all(run.sums_timed for run in timed)
