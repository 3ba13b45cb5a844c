"""The blocks of a job in turns: how many are made, and what is left when there is no time for more."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest

from harness.cli import job_blocks
from harness.cli.sweep_end import MeasuredWidth
from harness.schema.record import Failure, decode_file, encode
from harness.schema.sweep_folder import SweepFolder
from harness.sweep import block_program
from harness.sweep.block_program import run_series
from harness.sweep.job_loop import NotMade, Outcome, Settler
from harness.sweep.scheduler_answers import State
from harness.sweep.schedulers import open_scheduler
from harness.sweep.submission_settings import Submission, write_submission
from harness.sweep.sweep_files import Running
from harness.sweep.turn_block import (
    RANK_PYTHON,
    BlockEnd,
    BlockMade,
    BlockSeries,
    LaunchSpec,
    SeriesProgress,
    TurnBlock,
    WhyEnded,
)
from tests.labs.factories import make_point


class Machine:
    """Blocks that take a planned time by a planned clock; `codes` are exit codes of launches, 0 by default."""

    def __init__(self, seconds: list[float], codes: dict[str, int]) -> None:
        self.now = 0.0
        self.made: list[str] = []
        self._seconds = seconds
        self._codes = codes

    def monotonic(self) -> float:
        return self.now

    def run_block(self, block: TurnBlock, host: str) -> BlockEnd:
        self.now += self._seconds[len(self.made)]
        self.made.append(block.name)
        codes = {launch.name: self._codes.get(launch.name, 0) for launch in block.launches}
        return BlockEnd(codes=codes, turns=pd.DataFrame())


def machine(monkeypatch: pytest.MonkeyPatch, seconds: list[float], codes: dict[str, int] | None = None) -> Machine:
    """Return the machine on which `run_series` runs."""
    planned = Machine(seconds, codes or {})
    monkeypatch.setattr(block_program, "run_block", planned.run_block)
    monkeypatch.setattr(block_program.time, "monotonic", planned.monotonic)
    return planned


def make_series(folder: Path, blocks: int, **facts: object) -> BlockSeries:
    """Return a series of blocks of two launches each."""
    made = []
    for number in range(blocks):
        names = (f"one-{number}", f"two-{number}")
        specs = [
            LaunchSpec(
                name=name, words=("true",), log=str(folder / f"{name}.log"), exit_file=str(folder / f"{name}.exit")
            )
            for name in names
        ]
        made.append(TurnBlock(name=f"b{number}", launches=tuple(specs), rounds=str(folder / f"b{number}.parquet")))
    return BlockSeries(blocks=tuple(made), progress_file=str(folder / "progress"), nodes=4, **facts)  # type: ignore[arg-type]


def progress_of(folder: Path) -> SeriesProgress:
    progress = decode_file(folder / "progress", SeriesProgress)
    assert progress is not None
    return progress


def test_blocks_are_made_until_the_speedups_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = machine(monkeypatch, [90.0] + [10.0] * 9)
    answers = iter((False, True))
    series = make_series(tmp_path, 9, least=3)
    assert run_series(series, "localhost", lambda folder: next(answers)) == 0
    assert planned.made == ["b0", "b1", "b2", "b3"]
    assert (tmp_path / "one-3.exit").read_text() == "0\n"
    assert not (tmp_path / "one-4.exit").exists()
    progress = progress_of(tmp_path)
    assert (progress.nodes, progress.seconds, progress.why) == (4, 120.0, WhyEnded.ENOUGH)
    assert (progress.least, progress.most) == (3, 9)
    assert [block.seconds for block in progress.blocks] == [90.0, 10.0, 10.0, 10.0]
    assert progress.blocks[3].launches == ("one-3", "two-3")


def test_how_far_a_series_is_can_be_read_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = machine(monkeypatch, [10.0] * 3)
    seen: list[int] = []
    run_block = planned.run_block

    def look_and_run(block: TurnBlock, host: str) -> BlockEnd:
        progress = progress_of(tmp_path)
        assert progress.why is None
        seen.append(len(progress.blocks))
        return run_block(block, host)

    monkeypatch.setattr(block_program, "run_block", look_and_run)
    run_series(make_series(tmp_path, 3, least=3), "localhost", None)
    assert seen == [0, 1, 2]


def test_the_speedups_are_looked_at_after_whole_repeats_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = machine(monkeypatch, [1.0] * 12)
    answers = iter((False, False, True))
    series = make_series(tmp_path, 12, least=6, of_repeat=2)  # where memory does not hold all launches of a repeat
    assert run_series(series, "localhost", lambda folder: next(answers)) == 0
    assert len(planned.made) == 10


def test_repeats_are_asked_for_in_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_submission(SweepFolder(tmp_path), Submission())
    widths = iter([(0.5, 3), (0.5, 4), (0.5, 5), (0.005, 6), (0.5, 7), (0.005, 8)])
    measured = (MeasuredWidth(reach=reach, repeats=repeats, repeat_s=60.0) for reach, repeats in widths)
    monkeypatch.setattr(job_blocks, "measure_width", lambda folder: next(measured))
    is_known = job_blocks.until_known()
    # Wide after 3: the next look is after 6. Narrow then: two more confirm it.
    assert [is_known(tmp_path) for _ in range(6)] == [False, False, False, False, False, True]


def test_no_block_begins_that_would_not_end_and_whole_ones_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = machine(monkeypatch, [40.0] * 4)
    assert run_series(make_series(tmp_path, 4, least=4, limit_s=100.0), "localhost", None) == 1
    assert planned.made == ["b0", "b1"]
    assert (tmp_path / "two-1.exit").read_text() == "0\n"
    assert not (tmp_path / "two-2.exit").exists()
    assert progress_of(tmp_path).why == WhyEnded.LIMIT


def test_extra_blocks_that_the_limit_leaves_no_time_for_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = machine(monkeypatch, [40.0] * 4)
    series = make_series(tmp_path, 4, least=2, limit_s=100.0)
    assert run_series(series, "localhost", lambda folder: False) == 0
    assert planned.made == ["b0", "b1"]
    assert not (tmp_path / "two-2.exit").exists()
    assert progress_of(tmp_path).why == WhyEnded.LIMIT


def test_a_block_whose_ranks_the_limit_has_ended_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = machine(monkeypatch, [40.0, 20.0, 46.0, 1.0], {"two-2": 143})
    assert run_series(make_series(tmp_path, 4, least=4, limit_s=105.0), "localhost", None) == 1
    assert planned.made == ["b0", "b1", "b2"]
    progress = progress_of(tmp_path)
    assert (len(progress.blocks), progress.why) == (2, WhyEnded.LIMIT)
    assert not (tmp_path / "one-2.exit").exists()
    assert not (tmp_path / "two-2.exit").exists()
    assert not (tmp_path / "b2.parquet").exists()


def test_a_launch_that_fails_past_a_limit_that_nobody_enforces_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, [40.0], {"two-0": 7})
    series = make_series(tmp_path, 2, least=2, limit_s=30.0, enforced=False)
    assert run_series(series, "localhost", None) == 7
    assert (tmp_path / "two-0.exit").read_text() == "7\n"
    assert len(progress_of(tmp_path).blocks) == 1


def test_a_block_that_ends_late_and_well_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [40.0, 20.0, 46.0])
    assert run_series(make_series(tmp_path, 3, least=3, limit_s=105.0), "localhost", None) == 0
    progress = progress_of(tmp_path)
    assert (len(progress.blocks), progress.why) == (3, WhyEnded.ALL)
    assert (tmp_path / "two-2.exit").read_text() == "0\n"


def test_the_start_of_the_job_counts_against_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = machine(monkeypatch, [40.0] * 4)
    assert run_series(make_series(tmp_path, 4, least=4, limit_s=100.0), "localhost", None, spent_s=20.0) == 1
    assert planned.made == ["b0"]
    assert progress_of(tmp_path).seconds == 60.0


def outcome_of(folder: Path, block: int, state: State, why: WhyEnded | None = None) -> Outcome:
    """Return what is made of a launch with exit code 1 and no record, whose job has made two blocks of four."""
    files = SweepFolder(folder)
    point = make_point(repeat=block)
    running = Running(
        point=point, job="7", started=datetime.now(UTC), scheduler="slurm", name="job", together=2, block=block
    )
    files.jobs.mkdir(parents=True, exist_ok=True)
    files.logs.mkdir(exist_ok=True)
    files.exit_code(point.folder).write_text("1\n")
    blocks = (BlockMade(launches=(), seconds=9.0, code=1), BlockMade(launches=(), seconds=9.0))
    progress = SeriesProgress(blocks=blocks, least=4, most=4, nodes=2, partition="", seconds=20.0, why=why)
    files.blocks_made("job").write_bytes(encode(progress))
    outcome = Settler(files=files, scheduler=open_scheduler("slurm")).settle(running, state)
    assert outcome is not None
    assert files.failure(point.folder).exists() is isinstance(outcome, Failure)
    return outcome


TIMED_OUT = State(phase="ended", word="TIMEOUT", exit_code=0, forced=True, timed_out=True)
FAILED = State(phase="ended", word="FAILED", exit_code=1)


def test_a_launch_whose_block_the_limit_cut_when_its_ranks_began_is_not_made(tmp_path: Path) -> None:
    assert isinstance(outcome_of(tmp_path, 2, TIMED_OUT), NotMade)
    assert isinstance(outcome_of(tmp_path, 2, FAILED, WhyEnded.LIMIT), NotMade)


def test_a_launch_that_failed_before_the_limit_has_failed(tmp_path: Path) -> None:
    assert isinstance(outcome_of(tmp_path, 0, TIMED_OUT), Failure)
    assert isinstance(outcome_of(tmp_path, 0, FAILED, WhyEnded.LIMIT), Failure)
    assert isinstance(outcome_of(tmp_path, 2, FAILED), Failure)


def test_a_series_with_a_failed_launch_is_made_as_asked_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = machine(monkeypatch, [1.0] * 9, {"two-0": 7})
    assert run_series(make_series(tmp_path, 9, least=3), "localhost", lambda folder: False) == 7
    assert planned.made == ["b0", "b1", "b2"]
    assert progress_of(tmp_path).why == WhyEnded.FAILED


def test_a_block_that_is_all_is_made_without_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [1.0])
    assert run_series(make_series(tmp_path, 1), "localhost", None) == 0
    assert progress_of(tmp_path).why == WhyEnded.ALL


def test_ranks_start_by_the_words_of_the_job_in_the_place_of_python(monkeypatch, tmp_path):
    started: list[LaunchSpec] = []

    def run_block(block: TurnBlock, host: str) -> BlockEnd:
        started.extend(block.launches)
        return BlockEnd(codes={launch.name: 0 for launch in block.launches}, turns=pd.DataFrame())

    monkeypatch.setattr(block_program, "run_block", run_block)
    monkeypatch.setenv(RANK_PYTHON, "forking 'its server'")
    words = ("mpirun", "-n", "2", sys.executable, "-m", "harness", "train")
    specs = [LaunchSpec(name=word[0], words=word, log=str(tmp_path / "log")) for word in (words, ("script", "-m"))]
    block = TurnBlock(name="b", launches=tuple(specs), rounds=str(tmp_path / "b.parquet"))
    run_series(BlockSeries(blocks=(block,)), "localhost", None)
    assert started[0].words == ("mpirun", "-n", "2", "forking", "its server", "-m", "harness", "train")
    assert started[0].changes == {RANK_PYTHON: None}
    assert started[1] == specs[1]
