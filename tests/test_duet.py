"""Duets: two versions launched in turn; what is judged, when it stops, and what is really launched."""

import itertools
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.cli import main
from harness.datasets import locate
from harness.regression.baselines import save_baseline
from harness.regression.checks import check_duet
from harness.regression.duet import PAIRS, Duet, Version, checkout, decide_duet, why_no_checkout
from harness.regression.significance import needed_pairs, paired_interval, paired_shift, signed_tail_count
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement
from harness.schema.record import read_run
from harness.sweep.plan import build_sweep
from tests.factories import make_workload
from tests.histories import MachineNoise, make_measurement, make_summary, real_rests, simulate_duet

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(("n", "critical"), [(5, None), (6, 0), (8, 3), (10, 8), (12, 13), (15, 25), (20, 52)])
def test_the_tail_of_the_signed_ranks_is_that_of_the_tables(n: int, critical: int | None) -> None:
    """The critical values of Wilcoxon's signed-rank test, two-sided at 5 %, as statistics books print them."""
    assert signed_tail_count(n, 0.025) == critical
    assert (needed_pairs(0.95) <= n) == (critical is not None)


def test_many_pairs_use_the_normal_tail() -> None:
    exact, normal = signed_tail_count(60, 0.025), signed_tail_count(61, 0.025)
    assert exact is not None and normal is not None and 0 < normal - exact < 40


def test_whatever_the_machine_did_chance_alone_decides_how_often_equal_halves_differ() -> None:
    """Over every order that chance can choose, at most one interval in ten of 90 % leaves out 0; for wild times too."""
    random = np.random.default_rng(4)
    for times in (random.normal(size=(8, 2)), random.standard_cauchy((8, 2)), np.cumsum(np.ones((8, 2)), axis=None)):
        slots = np.reshape(times, (8, 2))
        wrong = 0
        for signs in itertools.product((-1, 1), repeat=8):
            interval = paired_interval((slots[:, 1] - slots[:, 0]) * np.array(signs), 0.9)
            assert interval is not None
            wrong += not interval.low <= 0 <= interval.high
        assert wrong / 2**8 <= 0.1


def test_a_shift_of_all_pairs_is_found_beside_a_wild_one() -> None:
    differences = np.array([0.05, 0.06, 0.04, 0.05, 3.0, 0.05, 0.045, 0.055, 0.05, 0.06, 0.05, 0.045, 0.055, 0.05])
    assert paired_shift(differences) == pytest.approx(0.05, abs=0.01)
    interval = paired_interval(differences, 0.95)
    assert interval is not None and 0.04 <= interval.low <= 0.05 <= interval.high < 1


class Played:
    """Stands in for a duet: every block is one of a simulated session."""

    def __init__(self, loss: float, *, blocks: int = 100) -> None:
        machine = MachineNoise(rests=real_rests(), modes=0.05)
        self._sides = simulate_duet(np.random.default_rng(1), machine, blocks=2 * PAIRS, loss=loss)
        self._most = blocks
        self._done = 0

    def add_block(self) -> bool:
        self._done += self._done < self._most
        return self._done < self._most

    @property
    def launched(self) -> int:
        """The blocks that were launched."""
        return self._done

    def pairs(self) -> int:
        return self._done

    def measured(self) -> tuple[Measurement, Measurement]:
        old, new = (self._until(side) for side in self._sides)
        return old, new

    def _until(self, side: Measurement) -> Measurement:
        return make_measurement([one for one in side.launches if one.repeat < self._done], commit=side.software.commit)


@pytest.mark.parametrize(("loss", "verdict"), [(0.0, "pass"), (0.12, "regression"), (-0.15, "improvement")])
def test_a_duet_stops_when_it_is_decided(loss: float, verdict: str) -> None:
    played = Played(loss)
    assert decide_duet(played, say=print).verdict == verdict  # type: ignore[arg-type]
    assert played.pairs() in (PAIRS, 2 * PAIRS)


def test_a_duet_that_its_budget_ends_early_is_inconclusive_and_asks_for_more() -> None:
    found = decide_duet(Played(0.2, blocks=5), say=print)  # type: ignore[arg-type]
    assert found.verdict == "inconclusive"
    assert found.more is not None and found.more >= 5


class Disturbed(Played):
    """A machine on which no launch is valid: other load from the first to the last."""

    def pairs(self) -> int:
        return 0

    def measured(self) -> tuple[Measurement, Measurement]:
        raise UserError("no launch counts: other load")


def test_a_duet_on_a_machine_where_no_launch_counts_is_given_up_at_once() -> None:
    disturbed = Disturbed(0.0)
    with pytest.raises(UserError, match="other load"):
        decide_duet(disturbed, say=print)  # type: ignore[arg-type]
    assert disturbed.launched <= 3


def test_pairs_that_lack_a_half_do_not_count() -> None:
    old, new = simulate_duet(np.random.default_rng(1), MachineNoise(rests=real_rests()), blocks=PAIRS, loss=0.3)
    unpaired = make_measurement([make_summary(1, 50 + block, 1.0, minutes=block) for block in range(PAIRS)])

    assert check_duet(old, new).verdict == "regression"
    assert check_duet(old, unpaired).verdict == "inconclusive"


def test_a_baseline_that_no_commit_names_has_no_duet(tmp_path: Path) -> None:
    def reason(commit: str, *, dirty: bool = False) -> str:
        launches = [make_summary(1, block, 1.0, minutes=block) for block in range(6)]
        one = make_measurement(launches, commit=commit, dirty=dirty)
        save_baseline(one, "main", tmp_path, replace_it=True)
        return why_no_checkout(one.software)

    assert "uncommitted" in reason("a" * 40, dirty=True)
    words = ["check", "--decide", "--duet", "--results", str(tmp_path), "--baselines", str(tmp_path)]
    refused = CliRunner().invoke(main, words, standalone_mode=False)
    assert isinstance(refused.exception, UserError)
    assert "not in this checkout" in reason("a" * 40) or not (ROOT / ".git").exists()
    assert reason("") != ""


def test_duet_options_need_a_measurement() -> None:
    result = CliRunner().invoke(main, ["check", "--duet"], standalone_mode=False)
    assert isinstance(result.exception, UserError) and "--decide" in str(result.exception)
    lone = CliRunner().invoke(main, ["compare", "--duet", "a.py"], standalone_mode=False)
    assert isinstance(lone.exception, UserError) and "two scripts or models" in str(lone.exception)


@pytest.mark.mpi
@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_commit_of_the_baseline_is_launched_beside_the_code_as_it_is_now(tmp_path: Path) -> None:
    """Holds on a busy machine too: what is looked at is what ran, not how fast."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout")

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.strip()

    commit = git("rev-parse", "HEAD")
    workload = make_workload(data="synthetic", samples=256, epochs=1)
    study = build_sweep(workload, layouts=(Layout(nodes=1),), repeats=1)
    assert study.data_id == locate(workload, None).data_id
    with checkout(commit) as tree:
        sides = (Version(name="then", sweep=study, tree=tree, commit=commit), Version(name="now", sweep=study))
        duet = Duet(*sides, folder=tmp_path / "duet", data_dir=None, budget_s=600)
        assert duet.add_block() and duet.add_block()
    assert not tree.exists() and str(tree) not in git("worktree", "list")
    runs = {
        side: [read_run(path.parent) for path in tmp_path.glob(f"duet/{side}/*/*/run.json")] for side in ("old", "new")
    }
    assert {run.provenance.commit for run in runs["old"]} == {commit}
    assert not any(run.provenance.dirty for run in runs["old"])
    assert [sorted(run.point.repeat for run in side) for side in runs.values()] == [[0, 1], [0, 1]]
    order = sorted((run.started, run.point.repeat) for side in runs.values() for run in side)
    assert [repeat for _, repeat in order] == [0, 0, 1, 1]  # in turn
