"""Time to accuracy, sync policies side by side, and the command that judges claims without running anything."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.analysis.accuracy_times import default_accuracy, speedups_to_accuracy, times_to_accuracy
from harness.report.html_pages import write_page
from harness.report.policies_answer import policies_answer
from harness.schema.record import RunRecord
from tests.labs.factories import epoch_frame, launch_frame, make_data, make_point, make_run, write_run, write_study
from tests.labs.page_text import Text
from tests.labs.sentences import refuses, says

BASE = "1 rank"


def learning(
    ranks: int, repeat: int, seconds: float, accuracies: tuple[float, ...], sync: str = "gradients"
) -> RunRecord:
    """Epochs of `seconds` each with these test accuracies."""
    run = make_run(make_point(ranks, repeat, sync=sync), seconds=[[seconds] * ranks] * len(accuracies))
    epochs = tuple(replace(e, test_accuracy=a) for e, a in zip(run.epochs, accuracies, strict=True))
    return replace(run, epochs=epochs)


def test_speed_to_accuracy_counts_the_epochs_that_it_takes() -> None:
    runs = [learning(1, k, 2.0, (0.8, 0.9, 0.95)) for k in range(6)]
    runs += [learning(2, k, 1.0, (0.5, 0.7, 0.93)) for k in range(6)]  # twice as fast an epoch, slower to learn
    epochs = epoch_frame(runs)
    times = times_to_accuracy(epochs, 0.9)
    base, two = speedups_to_accuracy(times, times[times["ranks"] == 1])
    assert (base.seconds, base.speedup, base.interval) == (4.0, 1.0, None)
    assert (two.seconds, two.reached) == (3.0, 6) and two.speedup == pytest.approx(4 / 3)
    assert two.interval is not None and two.interval.low == two.interval.high == pytest.approx(4 / 3)
    assert default_accuracy(launch_frame(runs), BASE) == pytest.approx(0.94)


def test_a_launch_that_never_arrives_takes_for_ever() -> None:
    runs = [learning(1, k, 2.0, (0.9,)) for k in range(6)]
    runs += [learning(2, k, 1.0, (0.9 if k < 4 else 0.8,)) for k in range(6)]
    runs += [learning(4, k, 0.5, (0.9 if k < 3 else 0.8,)) for k in range(6)]
    times = times_to_accuracy(epoch_frame(runs), 0.9)
    _, most, half = speedups_to_accuracy(times, times[times["ranks"] == 1])
    assert (most.reached, most.seconds, most.speedup, most.interval) == (4, 1.0, 2.0, None)
    assert (half.reached, half.seconds, half.speedup) == (3, None, None)
    assert times_to_accuracy(epoch_frame(runs), 0.99)["seconds"].eq(math.inf).all()


def test_untested_runs_have_no_target() -> None:
    run = make_run()
    silent = replace(run, epochs=tuple(replace(e, test_accuracy=None) for e in run.epochs))
    assert default_accuracy(launch_frame([silent]), BASE) is None
    assert default_accuracy(launch_frame([learning(1, 0, 1.0, (0.005,))]), BASE) is None  # below what it would be


@pytest.fixture
def policies(tmp_path: Path) -> tuple[Path, Path]:
    """`gradients` learns; `weights:epoch` runs epochs faster and needs more of them."""
    folders = (tmp_path / "results" / "every step", tmp_path / "results" / "every epoch")
    for folder, sync, seconds, accuracies in (
        (folders[0], "gradients", 1.2, (0.90, 0.95)),
        (folders[1], "weights:epoch", 1.0, (0.80, 0.88)),
    ):
        write_study(folder, sync=sync)
        for repeat in range(6):
            write_run(folder, learning(1, repeat, 2.0, (0.90, 0.95), sync))
            write_run(folder, learning(2, repeat, seconds, accuracies, sync))
    return folders


def test_a_policy_cannot_look_better_than_it_is(policies: tuple[Path, Path], tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    page = write_page(policies_answer(policies, reports), reports).page
    assert page is not None
    text = str(Text(page.read_text())).replace("\u00a0", " ")
    says(text, "Which of these sweeps", "94.0 %", "gradients", "2 ranks", "2.40 s")
    assert "0 of 6" in says(text, "not reached")  # though its epochs are twice as fast
    table = (page.parent / "accuracy-by-policy.csv").read_text()
    assert "weights:epoch" in table and "gradients" in table
    low = policies_answer(policies, reports, target=0.85).sentence
    says(low, "test accuracy is reached", "85.0 %", "gradients", "2 ranks", "1.20 s")


def test_side_by_side_compares_like_with_like(policies: tuple[Path, Path], tmp_path: Path) -> None:
    with refuses("side needs at least"):
        policies_answer(policies[:1], tmp_path / "reports")
    other = tmp_path / "results" / "other"
    write_study(other, dataset="adult")
    write_run(other, make_run(make_point(1, dataset="adult"), data=make_data(name="adult", sha256="ef" * 32)))
    with refuses("are not of one"):
        policies_answer([policies[0], other], tmp_path / "reports")
    assert not (tmp_path / "reports").exists()


@pytest.mark.slow
def test_claims_are_judged_by_what_is_there(policies: tuple[Path, Path], tmp_path: Path) -> None:
    from harness.cli.command_claims import claims_command as command

    where = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    CliRunner().invoke(command, where, catch_exceptions=False)
    page = tmp_path / "reports" / "claims" / "index.html"
    content = page.read_text()
    text = str(Text(content)).replace("\u00a0", " ")
    says(text, 32)
    says(text, "valid launches", "cores")  # no other workload has a base here
    links = [link for link in Text(content).links if "n2x1x1" in link]
    assert links  # the dots of the figure, and the ledger
    assert all((page.parent / link.replace("%20", " ")).is_dir() for link in links)
