"""What warnings say, on the page and beside an answer."""

from pathlib import Path

from harness.regression.checks import Check, compare_measurements
from harness.regression.history import history_of
from harness.regression.measurement import measured_in
from harness.report.answer import plain
from harness.report.check_answer import check_answer
from harness.report.compare_answer import comparison_answer
from harness.report.explain_answer import explain_answer
from harness.report.history_answer import history_answer
from harness.report.sweep_warnings import doubts, sweep_warnings
from harness.schema.record_notes import Note, NoteCode
from harness.why.explanation import explain_sweep
from tests.labs.factories import (
    launch_frame,
    make_data,
    make_launch,
    make_point,
    make_run,
    write_report,
    write_run,
    write_study,
)
from tests.labs.planted_overheads import plant

BUSY = "other processes kept 1.2 cores of node1 busy"


MET = Note(code=NoteCode.OTHER_WORK, values={"reason": BUSY})


def test_reasons_carry_the_warnings_of_the_numbers_that_they_explain(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    plant(folder, launches=2)
    write_run(folder, make_launch(2, 0, 1.0, invalid=(BUSY,)))
    found = explain_sweep(folder)
    answer = explain_answer(found, (), "harness explain")
    assert answer.banners == sweep_warnings(found.loaded, found.scaling)
    said = plain(" ".join(banner.text for banner in answer.banners))
    assert "1 of 5 launches are invalid" in said and "51,200 of 60,000 training rows" in said


def test_what_is_compared_carries_the_warnings_of_its_launches(tmp_path: Path) -> None:
    write_study(tmp_path / "limit", sync="none")
    for repeat in range(3):
        for ranks, seconds in ((1, 1.0), (2, 0.3)):
            point = make_point(ranks, repeat, sync="none")
            data = make_data(kind="synthetic")
            write_run(
                tmp_path / "limit",
                make_run(
                    point,
                    seconds=[[seconds] * ranks] * 3,
                    data=data,
                    notes=(MET,),
                    invalid=(BUSY,) * (repeat == 2),
                ),
            )
    assert "test accuracy 2 ranks" not in write_report(tmp_path / "limit", tmp_path / "reports").read_text()
    limit = measured_in(tmp_path / "limit", "limit", None)
    rows = compare_measurements(limit, limit, practical=0.03)
    check = Check(reference=limit, current=limit, practical=0.03, rows=tuple(rows))
    for answer in (
        comparison_answer(("limit", "limit"), (limit, limit), [rows], (0,), "harness compare"),
        check_answer(check, "harness check"),
        history_answer(history_of([limit])),
    ):
        said = plain(" ".join(banner.text for banner in answer.banners)).replace(limit.state, "limit")
        assert "2 of 6 launches of limit are not valid and left out." in said, answer.kind
        assert "4 of 6 launches of limit trained in turns beside other work" in said
        assert "limit ran without synchronisation: a limit of the machine, no training." in said
        assert "Synthetic data" in said
        assert ("Efficiency far above 100 %" in said) == (answer.kind != "history")


def test_launches_in_turns_beside_other_work_are_said_first() -> None:
    runs = [make_launch(1, k, 1.0, notes=(MET,) if k else ()) for k in range(3)]
    said = plain(" ".join(doubts(runs, launch_frame(runs))))
    assert "2 of 3 launches trained in turns beside other work" in said
