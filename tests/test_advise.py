"""Advice: the way that holds the limits, what is predicted, what is refused, and the score of what ran afterwards."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from harness.analysis.read_results import load_sweep
from harness.analysis.stats import Interval
from harness.base.errors import UserError
from harness.cli.common import plain
from harness.cli.predict import predict as command
from harness.prediction.advice import (
    ADVICE,
    JobLimits,
    TrainingJob,
    Way,
    choose_way,
    measured_ways,
    one_more,
    predicted_ways,
    scores,
)
from harness.prediction.network_cost import read_links
from harness.schema.sweep import Layout, Point, Sweep
from tests.factories import make_epochs, make_ranks, make_run, make_workload, write_run, write_study


def write_sweep(
    results: Path, counts: list[int], accuracy: float = 0.9, share: float = 0.05, **changes: object
) -> Path:
    """Three launches a count: 1 minute besides, three epochs of 10 min over the ranks and a part that stays."""
    workload = make_workload(**changes)
    sweep = Sweep(workload=workload, layouts=tuple(Layout(nodes=count) for count in counts), repeats=3)
    folder = results / sweep.name
    write_study(folder, ranks=counts, **changes)
    for count in counts:
        for repeat in range(3):
            folder_run(folder, sweep, count, repeat, accuracy, share)
    return folder


def folder_run(
    folder: Path, sweep: Sweep, count: int, repeat: int, accuracy: float, share: float, **changes: datetime
) -> None:
    point = Point(workload=sweep.workload, layout=Layout(nodes=count), repeat=repeat)
    seconds = 600 * (1 / count + (share if count > 1 else 0)) * (1 + repeat / 500)
    begun = changes.get("started", datetime(2026, 1, 5, 12, repeat, tzinfo=UTC))
    epochs = make_epochs([[seconds] * count] * 3, 0.0 if count == 1 else share / (share + 1 / count))
    epochs = tuple(replace(one, test_accuracy=accuracy - 0.01 * (2 - n)) for n, one in enumerate(epochs))
    ended = begun + timedelta(seconds=3 * seconds + 60)
    ranks = make_ranks(count, 6400, 64)
    write_run(folder, make_run(point, started=begun, ended=ended, epochs=epochs, ranks=ranks))


def way(seconds: float, nodes: int, accuracy: float | None = 0.9, wide: float = 1.1) -> Way:
    return Way(
        folder=Path("x"), name="a", layout=Layout(nodes=nodes), launches=3, seconds=seconds,
        interval=Interval(low=seconds / wide, high=seconds * wide), accuracy=accuracy,
    )  # fmt: skip


def test_the_cheapest_that_is_sure_to_hold_the_deadline_else_the_fastest_within_the_budget() -> None:
    slow, middle, fast = way(3600, 1), way(2000, 2), way(1300, 4)
    assert choose_way([slow, middle, fast], JobLimits(deadline_s=2300)) is middle
    assert choose_way([slow, middle, fast], JobLimits(deadline_s=2100)) is fast  # the middle one's upper end is 2,200 s
    assert choose_way([slow, middle, fast], JobLimits(node_hours=1.3)) is middle
    assert choose_way([slow, middle, fast], JobLimits(deadline_s=2300, node_hours=1.0)) is None
    assert choose_way([way(100, 1, accuracy=0.8), slow], JobLimits(deadline_s=9000)) is slow  # trains another model
    assert choose_way([way(100, 1, accuracy=None), slow], JobLimits(deadline_s=9000)) is not slow


def test_the_best_of_several_ways_holds_its_interval_in_a_session_of_its_own() -> None:
    """Eight equal ways, 3 sessions of 2 launches, 6 % between sessions: the one that looks best was lucky."""
    random, session, held = np.random.default_rng(1), [0, 0, 1, 1, 2, 2], 0
    for _ in range(400):
        logs = np.repeat(random.normal(0, 0.06, (8, 3)), 2, axis=1) + random.normal(0, 0.01, (8, 6))
        seconds = np.exp(logs)
        best = int(np.median(seconds, axis=1).argmin())
        held += math.log(one_more(seconds[best], session, 8).high) >= random.normal(0, 0.06) + random.normal(0, 0.01)
    assert held >= 0.95 * 400


def test_a_job_is_what_is_done_once_and_its_epochs(tmp_path: Path) -> None:
    loaded = load_sweep(write_sweep(tmp_path, [1, 2]))
    one, two = measured_ways(loaded, "a", TrainingJob(epochs=3))
    assert one.seconds == pytest.approx(3 * 601.2 + 60 + 2, rel=1e-3) and one.accuracy == pytest.approx(0.9)
    assert one.interval.low < one.seconds < one.interval.high and two.layout.ranks == 2
    longer = next(measured_ways(loaded, "a", TrainingJob(epochs=30)))
    assert longer.seconds - one.seconds == pytest.approx(27 * (601.2 + 0.5 / 3), rel=1e-3) and longer.accuracy is None
    until = next(measured_ways(loaded, "a", TrainingJob(epochs=3, target=0.885)))
    assert until.seconds == pytest.approx(one.seconds - 601.2, rel=1e-2)  # the second epoch reaches it
    assert not list(measured_ways(loaded, "a", TrainingJob(epochs=3, target=0.99)))


def test_more_nodes_are_predicted_where_the_sweep_carries_it(tmp_path: Path) -> None:
    loaded = load_sweep(write_sweep(tmp_path, [1, 2, 4, 5, 10, 20, 25]))
    (found, missing), why = predicted_ways(loaded, "a", TrainingJob(epochs=3), [10, 50, 100])
    assert not why and not found.measured and found.layout.nodes == 50
    assert found.interval.low < 3 * 600 * (1 / 50 + 0.05) + 60 < found.interval.high
    assert math.isfinite(missing.seconds) and found.accuracy is None
    assert "how many epochs" in predicted_ways(loaded, "a", TrainingJob(epochs=3, target=0.9), [50])[1]
    few = load_sweep(write_sweep(tmp_path / "few", [1, 2]))
    assert "cannot carry a growth model" in predicted_ways(few, "a", TrainingJob(epochs=3), [50])[1]


def run(tmp_path: Path, *words: str) -> Result:
    where = ["--results", str(tmp_path), "--reports", str(tmp_path / "reports")]
    return CliRunner().invoke(command, ["--workload", *words, *where], catch_exceptions=False, standalone_mode=False)


def test_the_command_advises_and_scores_itself_when_the_run_is_made(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, [1, 2, 4])
    write_sweep(tmp_path, [2, 4], accuracy=0.7, share=0.01, sync="weights:epoch")
    write_sweep(tmp_path, [1, 2, 4], share=0.02, wire="bf16")
    done = run(tmp_path, "mnist-dnn", "--deadline", "19", "--json")
    told = json.loads(done.stdout)
    assert done.return_value == 0 and told["chosen"]["layout"]["nodes"] == 2 and len(told["ways"]) == 8
    assert "bf16" in told["answer"] and "make sweep DATASET=mnist MODEL=dnn" in told["answer"]
    (written,) = tmp_path.glob(f"*/{ADVICE}/*.json")
    chosen = written.parents[1]
    assert chosen != folder and not scores(load_sweep(chosen))
    page = plain(Path(told["page"]).read_text())
    assert "How should this job be run?" in page and "take: 3 launches" in page

    sweep = Sweep(workload=make_workload(wire="bf16"), layouts=(Layout(nodes=2),))
    folder_run(chosen, sweep, 2, 7, 0.9, 0.03, started=datetime.now(UTC) + timedelta(minutes=1))
    (score,) = scores(load_sweep(chosen))
    assert score.launches == 1 and score.error == pytest.approx(told["chosen"]["seconds"] / score.seconds - 1)
    again = run(tmp_path, "mnist-dnn", "--deadline", "1", "--quiet")
    assert again.return_value == 1 and "No way is certain to make 3 epochs within 1 min 00 s" in plain(again.stdout)
    assert np.abs(score.error) < 0.05


def test_a_policy_is_named_for_a_network_and_a_deadline(tmp_path: Path) -> None:
    """Summing every step is faster here; where a message takes 2 s, the policy that averages once an epoch is."""
    every, once = write_sweep(tmp_path, [2], share=0.0), write_sweep(tmp_path, [2], share=0.1, sync="weights:epoch")
    for network, named in (((), every), (("--network", "2,0"), once)):
        told = json.loads(run(tmp_path, "mnist-dnn", "--deadline", "999", *network, "--json").stdout)
        assert Path(told["chosen"]["folder"]) == named and len(told["ways"]) == 2
        assert ("over a network with alpha" in told["answer"]) == bool(network)
        assert ("predicted, not measured" in told["answer"]) == bool(network)
        assert (named / ADVICE).exists() == (not network)  # launches here would score another network
    loaded, job = load_sweep(every), TrainingJob(epochs=3)
    (here,), (there,) = (measured_ways(loaded, "a", job, network=it) for it in (None, read_links("2,0", None, 1)[0]))
    assert here.measured and not there.measured
    assert there.seconds == pytest.approx(here.seconds + 3 * 50 * 2)  # 50 steps an epoch
    assert there.interval.low < there.seconds < there.interval.high


def test_questions_without_an_answer_are_refused_in_a_sentence(tmp_path: Path) -> None:
    write_sweep(tmp_path, [1])
    with pytest.raises(UserError, match="--deadline MINUTES or --node-hours HOURS"):
        run(tmp_path, "mnist-dnn", "--epochs", "3")
    with pytest.raises(UserError, match="--network and --nodes cannot be combined"):
        run(tmp_path, "mnist-dnn", "--deadline", "5", "--network", "1,0", "--nodes", "4")
    with pytest.raises(UserError, match="no --sync, --node or --ranks-per-node"):
        run(tmp_path, "mnist-dnn", "--deadline", "5", "--ranks-per-node", "2")
    with pytest.raises(UserError, match="unknown SWEEP 'higgs'"):
        run(tmp_path, "higgs", "--deadline", "5")
    with pytest.raises(UserError, match="reach the end of the job"):
        run(tmp_path, "mnist", "--deadline", "5", "--accuracy", "0.99")
