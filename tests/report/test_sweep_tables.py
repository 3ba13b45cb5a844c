"""Launches that went on after ranks failed: what a sweep's page says of each."""

import re
from dataclasses import replace
from datetime import timedelta

import pandas as pd
import pytest

from harness.analysis.read_results import load_sweep
from harness.analysis.sync_calls import read_calls
from harness.analysis.time_parts import steps_repeated, stretch_rate, stretches_around
from harness.report.answer import Answer
from harness.report.html_pages import write_page
from harness.report.sweep_tables import failed_ranks_sections
from harness.schema.record import FailedRank, LossReason, Stretch
from tests.labs.factories import START, make_epochs, make_point, make_run, write_report, write_run, write_study
from tests.labs.sentences import refuses, says

SETTINGS = {"on_failure": "shrink"}


def loss(rank, seconds, made, ranks, went_on):
    return FailedRank(
        rank=rank,
        host="node1",
        pid=900 + made,
        noticed=START + timedelta(seconds=seconds),
        redone=1,
        ranks=ranks,
        reason=LossReason.GONE,
        epoch=made // 25,
        step=made % 25,
        recovery_s=went_on,
    )


def stretch(ranks, first, steps, begin, end, training):
    started, ended = (START + timedelta(seconds=seconds) for seconds in (begin, end))
    return Stretch(ranks=ranks, first=first, steps=steps, started=started, ended=ended, training_s=training)


def outlived():
    """Return a launch of 25 steps of 256 rows an epoch that lost a rank, then two at once; its ranks are made up."""
    run = make_run(make_point(4, **SETTINGS), seconds=[[1.0] * 4] * 3)
    losses = (loss(3, 3.0, 14, 4, 0.4), loss(1, 8.0, 45, 2, 0.6), loss(2, 8.0, 45, 2, 0.6))
    stretches = (
        stretch(4, 0, 14, 1.0, 3.0, 2.0),
        stretch(4, 14, 31, 3.4, 8.0, 4.0),
        stretch(2, 45, 30, 8.6, 20.0, 10.0),
    )
    rows = tuple(replace(rank, rows=3200) for rank in run.ranks[:2])
    epochs = make_epochs([[1.0] * 2] * 3, steps=25)
    return replace(run, ranks=rows, epochs=epochs, losses=losses, stretches=stretches, invalid=tuple(map(str, losses)))


def page_of(sweep, reports):
    sections = failed_ranks_sections(load_sweep(sweep).runs, "MNIST-DNN")
    return (
        write_page(Answer(sentence="", place=sweep.name, sections=sections), reports)
        .page.read_text()
        .replace("\u00a0", " ")
    )


def test_rates_are_of_the_stretch_before_and_of_the_one_after():
    run = outlived()
    assert [stretch_rate(run, each) for each in run.stretches] == pytest.approx([14 * 128, 31 * 64, 30 * 25.6])
    assert [stretches_around(run, each) for each in run.losses] == [
        run.stretches[:2],
        run.stretches[1:],
        run.stretches[1:],
    ]
    assert steps_repeated(run.losses) == 2


def test_a_partial_last_batch_counts_its_rows():
    run = replace(outlived(), ranks=tuple(replace(rank, rows=3150) for rank in outlived().ranks))
    whole = stretch(4, 0, 25, 0, 10, 10.0)
    assert stretch_rate(run, whole) == pytest.approx(630)


def test_what_needs_every_ranks_steps_says_where_else_to_look(tmp_path):
    with refuses("went on after ranks"):
        read_calls(write_run(tmp_path, outlived()), outlived())


def test_a_loss_behind_the_last_step_of_an_epoch_is_after_that_epoch():
    whole, begun = str(loss(3, 1.0, 50, 2, 0.4)), str(loss(3, 1.0, 0, 2, 0.4))
    says(whole, "ranks went on after", "rank 3", "epoch 2")
    says(begun, "steps of epoch", "rank 3", "0 steps", "epoch 1")
    assert "steps" not in whole.partition("epoch 2")[0]


def test_no_stretch_is_around_a_loss_before_the_first_step():
    run = replace(outlived(), losses=(loss(3, 0.5, 0, 4, 0.4),))
    assert stretches_around(run, run.losses[0]) == (None, run.stretches[0])


def test_a_sweep_without_a_failed_rank_has_no_such_section(tmp_path):
    write_run(tmp_path / "mnist-dnn", make_run(make_point(2)))
    assert failed_ranks_sections(load_sweep(tmp_path / "mnist-dnn").runs, "MNIST-DNN") == []


def test_the_page_lists_each_failure_and_what_was_trained_between(tmp_path):
    sweep, reports = tmp_path / "results" / "mnist-dnn", tmp_path / "reports"
    write_run(sweep, outlived())
    page = page_of(sweep, reports)
    says(page, "on to the end", "1 launch", "3 ranks", "600 ms", "600 ms", "2 steps", "39 %")
    says(page, "process had ended")
    table = pd.read_csv(reports / "mnist-dnn/timeline-1.csv", comment="#")
    assert table["ranks"].tolist() == [4, 4, 2]
    assert table["rows_per_s"].tolist() == pytest.approx([1792, 1984, 768])


@pytest.mark.slow
def test_a_launch_leads_to_its_timeline(tmp_path):
    sweep, reports = tmp_path / "results" / "mnist-dnn", tmp_path / "reports"
    write_study(sweep, ranks=(2, 4), **SETTINGS)
    write_run(sweep, make_run(make_point(2, **SETTINGS), seconds=[[1.1] * 2] * 3))
    write_run(sweep, outlived())
    page = write_report(sweep, reports)
    assert re.search(r'class="text[^"]*bad"><a href="#failed-ranks">no: ', page.read_text())
    assert 'id="failed-ranks"' in page.read_text() and (page.parent / "timeline-1.svg").exists()
