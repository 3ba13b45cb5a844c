"""Two versions in turns: what is refused, and what is really trained."""

import itertools
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from harness.base.errors import UserError
from harness.base.processes import run_program
from harness.datasets import locate
from harness.regression import version_duel
from harness.regression.checks import IMPROVEMENT, INCONCLUSIVE, PASS, PRACTICAL, REGRESSION, SMALL, Check
from harness.regression.measurement import EFFICIENCY, STEP
from harness.regression.version_duel import (
    HERE,
    LOOKS,
    MEAN,
    SIDES,
    BlockSample,
    TurnsStudy,
    Version,
    VersionDuel,
    block_samples,
    checkout,
    judge_samples,
    run_duel,
)
from harness.regression.version_entry import INTERFACE
from harness.schema.layout import Layout
from harness.schema.record import encode, read_point
from harness.schema.sweep import Sweep
from tests.labs.factories import make_workload
from tests.labs.sentences import says

LAYOUTS = (Layout(nodes=1), Layout(nodes=2))
WORKLOAD = make_workload(data="synthetic", samples=6000, epochs=30)
STUDY = Sweep(workload=WORKLOAD, layouts=LAYOUTS, repeats=1, data_id=locate(WORKLOAD, None).data_id)


def git(*words: str) -> str:
    """Return what git says in this checkout."""
    return subprocess.run(["git", "-C", HERE, *words], capture_output=True, text=True, check=True).stdout.strip()


def test_a_version_that_no_other_can_ask_is_told(tmp_path: Path) -> None:
    old = Version(name="main", sweep=STUDY, tree=tmp_path, commit="a" * 40)
    both = VersionDuel(old, Version(name="now", sweep=STUDY), folder=tmp_path / "x", data_dir=None, budget_s=60)
    with pytest.raises(UserError, match="a" * 12):
        run_duel(both, say=print)
    assert not (tmp_path / "x").exists()


def test_launches_that_train_shorter_than_they_start_get_more_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 epochs of 4 s in turns become 150, once; a script's own number of epochs stays."""
    trained: list[int] = []

    def train(self: VersionDuel, say: object) -> pd.DataFrame:
        trained.append(self._versions["new"].sweep.workload.epochs)
        return pd.DataFrame({"round": [0, 1], "at_s": [0.5, 0.5 + 4 * trained[-1] / 30]})

    def prepare(self: VersionDuel) -> None:
        for side in SIDES:
            (self._folder / side).mkdir(parents=True)  # once only: what was measured before is gone
        self._points = {"old": []}

    monkeypatch.setattr(VersionDuel, "_train_until_it_counts", train)
    monkeypatch.setattr(VersionDuel, "prepare", prepare)
    said: list[str] = []
    for name, study in (("own", STUDY), ("script", script_study(STUDY, tmp_path))):
        versions = (Version(name=side, sweep=study) for side in SIDES)
        both = VersionDuel(*versions, folder=tmp_path / name, data_dir=None, budget_s=60)
        assert both.add_block(said.append) and both.add_block(said.append) and len(both.blocks) == 2
    assert trained == [30, 150, 150, 30, 30]
    (line,) = (line for line in said if "epochs" in line)
    says(line, "s in turns: launches", 30, "4 s", 150)


def test_a_version_writes_its_point_files_by_its_own_entry(tmp_path: Path) -> None:
    version = Version(name="now", sweep=STUDY)
    (tmp_path / "sweep.json").write_bytes(encode(STUDY))
    (tmp_path / "points").mkdir()
    words = [*version.entry(), str(INTERFACE), str(tmp_path / "sweep.json"), str(tmp_path / "points")]
    reply = run_program(words, changes=version.environment())
    assert reply.code == 0, reply
    written = [read_point(path) for path in sorted((tmp_path / "points").glob("*.json"))]
    assert [point.layout for point in written] == list(LAYOUTS)


def test_a_version_that_is_asked_by_another_interface_says_so(tmp_path: Path) -> None:
    reply = run_program([*Version(name="now", sweep=STUDY).entry(), "0", "sweep.json", "points"])
    assert reply.code == 1 and "interface" in reply.last_error


def script_study(study: Sweep, folder: Path) -> Sweep:
    """Return `study` of a user's script."""
    workload = replace(study.workload, dataset="script", preset="script", data_file=str(folder / "a.py"))
    return replace(study, workload=workload)


# What a slower version has at the end of its turn_pass.py: steps by way of Python, where each of them waits.
DELAYED = """
import time

_pass_at_once = _pass


def _operations(current):
    return None


def _pass(_):
    time.sleep({seconds})
    return _pass_at_once(_)
"""


# Not with the fixture `warm`: what it starts has imported the harness of this tree.
def compared(folder: Path, *, delay_s: float = 0.0, budget_s: float = 300, epochs: int = 30) -> Check:
    """Return the check of this commit against itself, the new one with `delay_s` more in every step."""
    study = replace(STUDY, workload=replace(STUDY.workload, epochs=epochs))
    commit = git("rev-parse", "HEAD")
    assert STUDY.data_id == locate(STUDY.workload, None).data_id
    with checkout(commit) as tree:
        new = folder / "tree"
        shutil.copytree(tree, new, ignore=shutil.ignore_patterns(".git"))
        if delay_s:
            with (new / "harness/comm/turn_pass.py").open("a") as module:
                module.write(DELAYED.format(seconds=delay_s))
        old = Version(name="then", sweep=study, tree=tree, commit=commit)
        both = VersionDuel(
            old, Version(name="now", sweep=study, tree=new), folder=folder / "x", data_dir=None, budget_s=budget_s
        )
        found = run_duel(both, say=print)
    assert not tree.exists() and str(tree) not in git("worktree", "list")
    assert len(found.rows) == 5 and found.spent is not None and found.spent.rounds > 3 * found.spent.blocks
    assert not found.reference.software.dirty
    assert {launch.layout for launch in found.current.launches} == set(LAYOUTS)
    return found


@pytest.mark.mpi
@pytest.mark.e2e
@pytest.mark.alone
@pytest.mark.campaign
def test_a_commit_against_itself_is_no_regression(tmp_path: Path) -> None:
    if not (HERE / ".git").exists():
        pytest.skip("no git checkout")
    found = compared(tmp_path, budget_s=230)
    assert found.verdict != REGRESSION, found.rows


@pytest.mark.mpi
@pytest.mark.e2e
@pytest.mark.alone
def test_a_delay_in_every_step_is_a_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that short blocks show."""
    monkeypatch.setattr(version_duel, "_BLOCK_S", 8.0)
    if not (HERE / ".git").exists():
        pytest.skip("no git checkout")
    found = compared(tmp_path, delay_s=0.002, epochs=10)
    assert found.verdict == REGRESSION, found.rows


# Verdicts of versions in turns: what they promise, by simulation, and what a block's turns are worth.

BLOCK, ROUND = 0.009, 0.05  # standard deviations of log ratios: from start to start, and from round to round
ROUNDS = 100
CHECKS = 120


def simulated(
    random: np.random.Generator, loss: tuple[float, float], *, slow_part: float = 1.0, block: float = BLOCK
) -> tuple[str, int]:
    """Return the verdict and the blocks of a check on 1 and 2 ranks; a part of the steps is slower by `loss`."""
    shape = (LOOKS[-1], ROUNDS, 2)
    costs = random.normal(0, block, (LOOKS[-1], 1, 2)) + random.normal(0, ROUND, shape)
    costs[:, : round(slow_part * ROUNDS)] += np.log1p(np.array(loss))
    curves = {STEP: costs[..., 0], f"{STEP} 2": costs[..., 1]}
    verdict = INCONCLUSIVE
    for blocks in LOOKS:
        samples = [
            BlockSample(
                quantity=name + (MEAN if middle is np.mean else ""),
                layout=None,
                blocks=middle(curve[:blocks], axis=1),
                rounds=curve[:blocks].ravel(),
                values=(1.0, 1.0),
            )
            for name, curve in curves.items()
            for middle in (np.median, np.mean)
        ]
        verdicts = {row.verdict for row in judge_samples(samples, PRACTICAL)}
        verdict = REGRESSION if REGRESSION in verdicts else INCONCLUSIVE if INCONCLUSIVE in verdicts else PASS
        if verdict != INCONCLUSIVE:
            break
    return verdict, blocks


def repeated(loss: tuple[float, float], **changes: float) -> list[tuple[str, int]]:
    """Return `simulated` checks, seeded."""
    random = np.random.default_rng(1)
    return [simulated(random, loss, **changes) for _ in range(CHECKS)]


@pytest.mark.parametrize("block", [0.0, BLOCK, 0.03])
def test_the_same_code_is_a_regression_in_fewer_than_one_of_twenty_checks(block: float) -> None:
    alarms = sum(verdict == REGRESSION for verdict, _ in repeated((0.0, 0.0), block=block))
    assert float(binomtest(alarms, CHECKS, 0.05, alternative="greater").pvalue) > 0.01


def test_the_same_code_mostly_passes_within_eight_blocks() -> None:
    passed = [blocks for verdict, blocks in repeated((0.0, 0.0)) if verdict == PASS]
    assert sum(blocks <= 8 for blocks in passed) >= 0.8 * CHECKS


def test_a_slowdown_of_five_percent_is_found_within_four_blocks_in_the_median() -> None:
    found = repeated((0.05, 0.05))
    assert sum(verdict == REGRESSION for verdict, _ in found) >= 0.95 * CHECKS
    assert median(blocks for _, blocks in found) <= 4


def test_a_slowdown_of_five_percent_on_two_ranks_alone_is_found() -> None:
    assert sum(verdict == REGRESSION for verdict, _ in repeated((0.0, 0.05))) >= 0.95 * CHECKS


def test_two_of_five_epochs_slower_are_found_which_no_median_shows() -> None:
    assert sum(verdict == REGRESSION for verdict, _ in repeated((0.3, 0.3), slow_part=0.4)) >= 0.95 * CHECKS


def test_a_slowdown_below_the_practical_size_is_no_regression_and_said_to_be_small() -> None:
    random = np.random.default_rng(2)
    rounds = random.normal(0.0175, 0.01, (8, 50))
    sample = BlockSample(
        quantity=STEP, layout=LAYOUTS[0], blocks=np.median(rounds, axis=1), rounds=rounds.ravel(), values=(1.0, 1.02)
    )
    (row,) = judge_samples([sample], PRACTICAL)
    assert row.verdict == SMALL
    assert row.interval is not None and 0.01 < row.interval.low < 0.0175 < row.interval.high < 0.025


def test_blocks_that_the_rounds_do_not_bear_out_are_no_regression() -> None:
    """Three medians near each other may be chance, if the rounds lie on both sides of 0."""
    rounds = np.concatenate([np.full(20, 0.06), np.full(19, -0.5)])
    sample = BlockSample(
        quantity=STEP,
        layout=None,
        blocks=np.array([0.06, 0.0601, 0.0599]),
        rounds=np.tile(rounds, 3),
        values=(1.0, 1.0),
    )
    assert judge_samples([sample], PRACTICAL)[0].verdict == INCONCLUSIVE
    gain = BlockSample(quantity=STEP, layout=None, blocks=-sample.blocks, rounds=-np.full(60, 0.06), values=(1.0, 1.0))
    assert judge_samples([gain], PRACTICAL)[0].verdict == IMPROVEMENT


def test_two_blocks_decide_nothing() -> None:
    sample = BlockSample(
        quantity=STEP, layout=None, blocks=np.array([0.5, 0.5]), rounds=np.full(100, 0.5), values=(1.0, 1.5)
    )
    (row,) = judge_samples([sample], PRACTICAL)
    assert (row.verdict, row.interval) == (INCONCLUSIVE, None)


def turns(rounds: int, seconds: dict[str, float], *, slow: dict[str, float] | None = None) -> pd.DataFrame:
    """Return a block's turns: `seconds` a step of each launch, in the first two of five parts times its `slow`."""
    rows = [
        {
            "round": number,
            "launch": launch,
            "place": place,
            "steps": 20,
            "cores": 1.0,
            "at_s": 0.1 * number,
            "seconds": 20
            * step
            * ((slow or {}).get(launch, 1.0) if number < 0.4 * rounds else 1.0)
            * (1 + 0.2 * (number % 3)),  # which falls on all of a round
        }
        for number, (place, (launch, step)) in itertools.product(range(rounds), enumerate(seconds.items()))
    ]
    return pd.DataFrame(rows)


STUDY_of_version_samples = TurnsStudy(layouts=LAYOUTS, steps=((100, 50), (100, 50)))
SECONDS = {"old-0": 0.001, "old-1": 0.0011, "new-0": 0.001, "new-1": 0.00121}


def test_what_differs_is_found_within_rounds_at_each_layout_and_over_the_curve() -> None:
    found = {
        (one.quantity, one.layout): one for one in block_samples([turns(30, SECONDS)] * 3, STUDY_of_version_samples)
    }
    assert [one.decides for one in found.values()] == [True] * 4 + [False]
    on_two, curve = found[STEP, LAYOUTS[1]], found[EFFICIENCY, None]
    assert found[STEP, LAYOUTS[0]].blocks == pytest.approx([0, 0, 0])
    assert on_two.blocks == pytest.approx([np.log(1.1)] * 3) and curve.blocks == pytest.approx([np.log(1.1)] * 3)
    assert len(on_two.rounds) == 90 and np.ptp(on_two.rounds) == pytest.approx(0)
    assert curve.values == pytest.approx((1 / 1.1, 1 / 1.21))


def test_the_mean_of_all_steps_has_the_slow_epochs_and_the_median_has_not() -> None:
    same = dict.fromkeys(SECONDS, 0.001)
    blocks = [turns(60, same, slow={"new-0": 1.3})] * 3
    found = {one.quantity: one for one in block_samples(blocks, STUDY_of_version_samples) if one.layout == LAYOUTS[0]}
    assert found[STEP].blocks == pytest.approx([0, 0, 0])
    assert found[STEP + MEAN].blocks == pytest.approx([np.log(1.12)] * 3, rel=0.1)


def test_more_steps_in_an_epoch_count_as_slower() -> None:
    twice = TurnsStudy(layouts=LAYOUTS[:1], steps=((100,), (200,)))
    (first, _) = block_samples([turns(30, SECONDS)] * 3, twice)
    assert first.blocks == pytest.approx([np.log(2)] * 3)


def test_long_steps_have_turns_of_three_which_count() -> None:
    few = turns(30, SECONDS).assign(steps=3)
    assert len(block_samples([few] * 3, STUDY_of_version_samples)[0].rounds) == 90
