"""What the page of a sweep says: sentence, captions, banners, and what is left out."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from harness.analysis.accuracy_times import TimeToAccuracy
from harness.analysis.confidence_intervals import Interval
from harness.analysis.scaling import scale
from harness.report import sweep_sentences
from harness.report.answer import plain
from tests.labs.factories import (
    launch_frame,
    make_data,
    make_launch,
    make_point,
    make_provenance,
    make_run,
    make_workload,
    write_failure,
    write_report,
    write_run,
    write_study,
)
from tests.labs.page_text import Text
from tests.labs.sentences import refuses, says

WEEK = timedelta(days=7)


FIGURES = ("speedup", "efficiency", "epoch-time", "throughput", "epoch-breakdown", "launch-breakdown")


CURVES = ("loss-time", "loss-samples", "accuracy-time", "accuracy-samples")


def test_first_sentence_is_the_verdict(page: Text) -> None:
    says(
        str(page),
        "2 ranks train MNIST-DNN 1.60 times as fast as 1 rank (95 % CI",
        "), efficiency 80 %. The interval is over 3 launches each (1 of 7 launches invalid and left out). ",
        "4 ranks on a node like this: about",
    )


def test_every_caption_states_base_seconds_scaling_batch_and_repeats(report: Path) -> None:
    found = re.findall(r"<figcaption>(.*?)<span", report.read_text(), flags=re.DOTALL)
    assert len(found) == len(FIGURES + CURVES)
    for caption in found:
        text = caption.replace("\u00a0", " ")
        for fact in ("Base: 1 rank, 2.00 s per epoch", "Strong scaling", "per rank 64", "64 on 1 rank and 128 on 2"):
            assert fact in text
        assert "3 launches per point" in text and ("95 % CI" in text or "no interval drawn" in text)


def test_invalid_skipped_failed_and_damaged_are_listed_with_reasons(page: Text) -> None:
    text = str(page)
    assert "other processes kept 1.4 cores <busy>" in text and "+ 1 invalid" in text
    assert "4 ranks need 4 cores, this machine has 2" in text
    assert "rank 1: the shard is empty" in text
    assert "cut or damaged" in text


def test_verdict_comes_first_and_says_what_caps_it(page: Text) -> None:
    text = str(page)
    assert text.index("Largest overhead computation") < text.index(
        "Scaling Predicted beyond this machine Where the time goes"
    )
    assert "1 launch invalid and excluded" in text


@pytest.mark.slow
def test_another_base_is_one_option_away(study: Path, tmp_path: Path) -> None:
    text = str(Text(write_report(study, tmp_path, base=2).read_text()))
    assert "Speedup over 2 ranks" in text.replace("\u00a0", " ") and "1 (base)" in text
    with refuses("no valid launch: choose", "16", "1", "2"):
        write_report(study, tmp_path, base=16)


def test_three_launches_give_intervals_in_table_and_caption(tmp_path: Path) -> None:
    for repeat, seconds in enumerate((1.0, 1.05, 1.1)):
        write_run(tmp_path / "s", make_launch(1, repeat, 2 * seconds))
        write_run(tmp_path / "s", make_launch(2, repeat, seconds))
    text = str(Text(write_report(tmp_path / "s", tmp_path / "reports").read_text()))
    assert "2.00 times as fast as 1 rank (95 % CI" in text
    assert "3 launches per point; bars: 95 % CI over blocks." in text
    assert "too few" not in text


def test_synthetic_and_held_out_data_are_said_in_a_banner(tmp_path: Path) -> None:
    data = make_data(kind="synthetic", held_out=True, note="no MNIST files in data/")
    write_run(tmp_path / "s", make_launch(1, 0, 1.0, data=data))
    content = write_report(tmp_path / "s", tmp_path / "reports").read_text()
    banners = " ".join(re.findall(r'<div class="banner data">(.*?)</div>', content, flags=re.DOTALL))
    assert "Synthetic data:" in banners and "held out" in banners
    assert "no MNIST files in data/" in content


@pytest.mark.slow
def test_one_point_gives_no_speedup_but_its_time(tmp_path: Path) -> None:
    write_run(tmp_path / "s", make_launch(4, 0, 1.0))
    page = write_report(tmp_path / "s", tmp_path / "reports")
    assert "no other rank count has a valid launch, so there is no speedup" in str(Text(page.read_text()))
    assert not (page.parent / "speedup.svg").exists() and (page.parent / "epoch-time.svg").exists()


def test_only_invalid_launches_give_a_page_without_numbers(tmp_path: Path) -> None:
    write_run(tmp_path / "s", make_launch(2, 0, 1.0, invalid=("2 ranks on 1 core",)))
    text = str(Text(write_report(tmp_path / "s", tmp_path / "reports").read_text()))
    assert "No launch of MNIST-DNN is valid" in text and "do not count, mostly: 2 ranks on 1 core. The same" in text


def test_only_failures_give_a_page_and_nothing_at_all_an_error(tmp_path: Path) -> None:
    write_study(tmp_path / "s")
    with refuses("holds no launch: run"):
        write_report(tmp_path / "s", tmp_path / "reports")
    assert not (tmp_path / "reports").exists()
    write_failure(tmp_path / "s", make_point(2), "rank 0: out of memory")
    text = str(Text(write_report(tmp_path / "s", tmp_path / "reports").read_text()))
    assert "No launch of MNIST-DNN can be read" in text and "rank 0: out of memory" in text


@pytest.mark.slow
def test_points_that_sum_in_different_ways_say_so_in_every_caption(tmp_path: Path) -> None:
    for ranks, name in ((1, "none"), (2, "native, shared memory"), (4, "native, messages")):
        how = replace(make_provenance(), reduction=name)
        write_run(tmp_path / "study", make_launch(ranks, 0, 4 / ranks, provenance=how))
    page = write_report(tmp_path / "study", tmp_path / "reports").read_text(encoding="utf-8")
    found = re.findall(r"<figcaption>(.*?)</figcaption>", page, flags=re.DOTALL)
    how_it_sums = "differ in how ranks sum: native, shared memory on 2 ranks; native, messages on 4 ranks."
    assert len(found) >= 10 and all(how_it_sums in caption for caption in found)
    assert "differ in way of summing" in str(Text(page))


@pytest.mark.slow
def test_a_layout_launched_a_week_later_has_no_interval_and_says_why(tmp_path: Path) -> None:
    for repeat in range(6):
        write_run(tmp_path / "study", make_launch(1, repeat, 2.0 + repeat / 100))
        late = make_launch(2, repeat, 1.2 + repeat / 100)
        write_run(tmp_path / "study", replace(late, started=late.started + WEEK, ended=late.ended + WEEK))
    page = str(Text(write_report(tmp_path / "study", tmp_path / "reports").read_text(encoding="utf-8")))
    assert "6 launches each: measured more than an hour apart, so no interval: " in page
    assert "no interval: launched in another session than the base" in page and "0 launches short" not in page


def test_weak_headline_speaks_of_rates() -> None:
    runs = [
        make_run(make_point(ranks, scaling="weak", samples=1000 * ranks), rows=1000 * ranks, seconds=[[t] * ranks])
        for ranks, t in ((1, 1.0), (4, 1.25))
    ]
    scaling = scale(launch_frame(runs))
    assert scaling is not None
    sentence = sweep_sentences.headline(scaling, make_workload()).replace("\u00a0", " ")
    assert sentence.startswith("4 ranks train MNIST-DNN on 4 times the samples of 1 rank at 3.20 times the rate")


@pytest.mark.parametrize(
    ("speedup", "settings", "has_reason"), [(0.86, {}, True), (1.98, {}, False), (0.86, {"global_batch": 64}, False)]
)
def test_a_lower_speedup_to_accuracy_has_its_reason(speedup: float, settings: dict[str, int], has_reason: bool) -> None:
    """The global batch doubles on 2 ranks. It does not where it is fixed."""
    runs = [make_run(make_point(n, k, **settings), seconds=[[1.6 / n] * n]) for n in (1, 2) for k in range(3)]
    scaling = scale(launch_frame(runs))
    assert scaling is not None
    target = TimeToAccuracy(
        layout=scaling.others[-1].layout,
        ranks=2,
        launches=3,
        reached=3,
        seconds=1.0,
        epochs=3.0,
        speedup=speedup,
        interval=None,
    )
    of_base = replace(target, layout=scaling.base.layout, ranks=1, epochs=2.0, speedup=1.0)
    sentence = plain(sweep_sentences.to_accuracy(scaling, make_workload(**settings), [of_base, target], 0.9))
    says(sentence, "90.00 % test accuracy", f"{speedup:.2f} times as fast as 1 rank", "2 on 1 rank", "3 on 2 ranks")
    assert ("is 128 instead of 64 (--global-batch 64 keeps it)" in sentence) == has_reason


def test_a_speedup_with_interference_names_who_lost_more() -> None:
    """The base's times hold more of other work's than those of 2 ranks, so that the speedup with it is larger."""
    scaling = scale(launch_frame([make_launch(n, k, 1.0 / n) for n in (1, 2) for k in range(3)]))
    assert scaling is not None
    base, last = scaling.points
    for ran_speedup, loser in ((2.4, "1 rank lost"), (1.6, "2 ranks lost")):
        narrow = Interval(low=ran_speedup - 0.1, high=ran_speedup + 0.1)
        wide = Interval(low=1.1, high=2.9)
        for interval, is_beyond in ((narrow, True), (wide, False), (None, False)):
            point = replace(last, ran_speedup=ran_speedup, ran_speedup_interval=interval)
            words = " ".join(sweep_sentences.details(replace(scaling, points=(base, point))))
            says(words, "Including interference", f"{ran_speedup:.2f}")
            assert (loser in plain(words)) == is_beyond
