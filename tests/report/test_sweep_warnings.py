"""What warnings say, on the page and beside an answer."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.analysis.scaling import scale
from harness.cli.command_report import report_command
from harness.regression.history import history_of
from harness.regression.launch_comparison import compare_measurements
from harness.regression.measurement import measured_in
from harness.regression.session_check import check_sessions
from harness.report import sweep_sentences
from harness.report.answer import plain
from harness.report.compare_answer import comparison_answer
from harness.report.explain_answer import explain_answer
from harness.report.history_answer import history_answer
from harness.report.session_answer import session_answer
from harness.report.sweep_warnings import doubts, mixtures, sweep_warnings
from harness.schema.record import RunRecord
from harness.schema.record_notes import Note, NoteCode
from harness.why.explanation import explain_sweep
from tests.labs.factories import (
    launch_frame,
    make_data,
    make_launch,
    make_point,
    make_provenance,
    make_run,
    make_workload,
    write_report,
    write_run,
    write_study,
)
from tests.labs.planted_overheads import plant
from tests.labs.sentences import says

BUSY = "other processes kept 1.2 cores of node1 busy"
MET = Note(code=NoteCode.OTHER_WORK, values={"reason": BUSY})


def test_a_loss_that_is_no_longer_finite_is_not_hidden_by_an_earlier_one() -> None:
    run = make_run()
    epochs = list(run.epochs)
    epochs[-1] = type(epochs[-1])(epoch=2, steps=1, seconds=(1.0,), sync_seconds=(0.0,), train_loss=None)
    diverged = make_run(epochs=tuple(epochs))
    assert math.isnan(launch_frame([diverged]).iloc[0]["train_loss"])
    assert "not finite" in doubts([diverged], launch_frame([diverged]))[0]


def test_mixed_commits_and_machines_are_named() -> None:
    runs = [make_run(), make_run(provenance=make_provenance(commit="fedcba9876543210", hostname="node2"))]
    sentences = mixtures(runs)
    assert len(sentences) == 2 and "commit (0123456789ab, fedcba987654)" in sentences[0] and "node2" in sentences[1]
    assert mixtures(runs[:1]) == ()
    alone = make_run(provenance=replace(make_provenance(), reduction="none"))
    assert mixtures([alone, make_run(make_point(2))]) == ()  # one rank reduces nothing
    dirty = [make_run(provenance=make_provenance(dirty=True))]
    assert "uncommitted" in doubts(dirty, launch_frame(dirty))[0]


def headline(runs: list[RunRecord], **changes: object) -> str:
    """The sentence of a sweep of these `runs`."""
    scaling = scale(launch_frame(runs))
    assert scaling is not None
    return plain(sweep_sentences.headline(scaling, make_workload(**changes)))


def details(runs: list[RunRecord]) -> str:
    """What stands below the sentence of a sweep of these `runs`."""
    scaling = scale(launch_frame(runs))
    assert scaling is not None
    return plain(" ".join(sweep_sentences.details(scaling)))


def launches(seconds: dict[int, float], **changes: object) -> list[RunRecord]:
    """Six launches a rank count of so many seconds."""
    return [make_launch(n, k, s * (1 + k / 100), **changes) for n, s in seconds.items() for k in range(6)]


def test_reasons_carry_the_warnings_of_the_numbers_that_they_explain(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    plant(folder, launches=2)
    write_run(folder, make_launch(2, 0, 1.0, invalid=(BUSY,)))
    found = explain_sweep(folder)
    answer = explain_answer(found, (), "harness explain")
    assert answer.banners == sweep_warnings(found.loaded, found.scaling)
    said = plain(" ".join(banner.text for banner in answer.banners))
    assert "1 of 5 launches are invalid" in said and "51,200 of 60,000 training samples" in said


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
    rows = compare_measurements(limit, limit, threshold=0.03)
    check = check_sessions(limit, limit)
    for answer in (
        comparison_answer(("limit", "limit"), (limit, limit), [rows], (0,), "harness compare"),
        session_answer(check, "harness check"),
        history_answer(history_of([limit])),
    ):
        said = plain(" ".join(banner.text for banner in answer.banners)).replace(limit.state, "limit")
        assert "2 of 6 launches of limit are left out: not valid, or all beside other work." in said, answer.kind
        assert "4 of 6 launches of limit trained interleaved beside other work" in said
        assert "limit ran without synchronisation: a limit of the machine, no training." in said
        assert "Synthetic data" in said
        assert ("Efficiency far above 100 %" in said) == (answer.kind != "history")


def test_launches_in_turns_beside_other_work_are_said_first() -> None:
    runs = [make_launch(1, k, 1.0, notes=(MET,) if k else ()) for k in range(3)]
    said = plain(" ".join(doubts(runs, launch_frame(runs))))
    assert "2 of 3 launches trained interleaved beside other work" in said


def test_a_sentence_counts_the_launches_that_are_invalid() -> None:
    runs = [*launches({1: 1.0, 2: 0.6}), make_launch(2, 6, 0.6, invalid=(BUSY,))]
    assert "(1 of 13 launches invalid and left out)" in details(runs)
    assert "invalid" not in details(launches({1: 1.0, 2: 0.6}))


def test_without_synchronisation_nothing_trains() -> None:
    runs = [
        make_run(make_point(n, k, sync="none"), seconds=[[t] * n]) for n, t in ((1, 1.0), (2, 0.52)) for k in (0, 1)
    ]
    said = headline(runs, sync="none")
    assert said.startswith("2 ranks without synchronisation compute MNIST-DNN 1.92 times")
    assert said.endswith("an upper limit, no training.")


def test_more_speedup_than_caches_explain_is_no_headline() -> None:
    assert headline(launches({1: 1.0, 2: 0.26})).startswith("No speedup to rely on")
    assert headline(launches({1: 1.0, 2: 0.48})).startswith("2 ranks train")


def test_an_interval_that_says_little_is_no_headline() -> None:
    unsteady = [make_launch(2, k, 0.5 * 2 ** (k % 2)) for k in range(6)]
    said = headline([*(make_launch(1, k, 1.0) for k in range(6)), *unsteady])
    assert said.startswith("No speedup to rely on, its repetitions differ too much: 2 ranks train")


@pytest.mark.slow
def test_a_quiet_sentence_and_the_page_carry_the_same_warnings(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "busy"
    write_study(folder)
    for run in [*launches({1: 1.0, 2: 0.26}), make_launch(2, 6, 0.6, invalid=(BUSY,))]:
        write_run(folder, run)
    where = ["--results", str(folder.parent), "--reports", str(tmp_path / "reports")]
    told = CliRunner().invoke(report_command, [*where, "--quiet"], catch_exceptions=False)
    said = " ".join(told.output.split())
    page = plain((tmp_path / "reports" / "busy" / "index.html").read_text())
    for text in (
        f"1 of 13 launches are invalid and left out, mostly: {BUSY}.",
        "Efficiency far above 100 % on 2 ranks",
    ):
        assert text in said and text in page
    assert "Warning: Efficiency far above 100 % on 2 ranks" in plain((tmp_path / "reports/index.html").read_text())


def test_a_comparison_says_which_launches_are_left_out(tmp_path: Path) -> None:
    for name, seconds in (("first", (1, 1, 1, 1.3, 1.3, 1.3, 1.3)), ("other", (1, 1, 1, 1, 1.3, 1.3, 1.3))):
        write_study(tmp_path / name, ranks=(1,))
        for repeat, one in enumerate(seconds):
            write_run(tmp_path / name, make_launch(1, repeat, float(one)))
    write_run(tmp_path / "other", make_launch(1, 7, 1.0, invalid=(BUSY,)))
    first, other = (measured_in(tmp_path / name, name, None) for name in ("first", "other"))
    rows = [compare_measurements(first, other, threshold=0.03)]
    answer = comparison_answer(("first", "other"), (first, other), rows, (0,), "harness compare first other")
    assert [plain(banner.text) for banner in answer.banners] == [
        "1 of 8 launches of other are left out: not valid, or all beside other work."
    ]


def test_a_launch_that_trains_for_a_moment_says_how_many_epochs_are_enough() -> None:
    brief = [make_run(make_point(ranks), seconds=[[0.1 / ranks] * ranks] * 3) for ranks in (1, 2)]
    (sentence,) = doubts(brief, launch_frame(brief))
    says(sentence, "2 of 2", "1 s", "--epochs 100", "5 s")
    assert not doubts([make_run()], launch_frame([make_run()]))
    in_turns = [replace(run, block="b") for run in brief]  # they go on for the rounds that ratios are of
    assert not doubts(in_turns, launch_frame(in_turns))
