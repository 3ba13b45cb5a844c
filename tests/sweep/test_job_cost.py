"""What a block will take, by earlier ones: the time limit of the next job, and what is said of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.files import write_atomic
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import encode
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.job_cost import FIRST_LIMIT_S, PastLaunches, estimate, past_launches, time_limit
from harness.sweep.job_plan import Job
from harness.sweep.site import JobRequest
from harness.sweep.turn_block import BlockMade, SeriesProgress
from tests.labs.factories import make_point
from tests.labs.sentences import says

ONE, TWO, FOUR = Layout(nodes=1), Layout(nodes=2), Layout(nodes=4)
IN_TURNS = JobRequest(mode="turns")


def point(layout: Layout, repeat: int = 0) -> Point:
    return replace(make_point(), layout=layout, repeat=repeat)


def write_blocks(
    files: SweepFolder, layouts: tuple[Layout, ...], seconds: list[float], *, partition: str = "", failed: int = -1
) -> None:
    """Leave what a job of so many blocks leaves: the points of its launches, and the seconds of its blocks.

    A launch of the block with the number `failed` has failed.
    """
    blocks = []
    for repeat, block_s in enumerate(seconds):
        points = [point(layout, repeat) for layout in layouts]
        for one in points:
            write_atomic(files.point(one.folder), encode(one))
        blocks.append(
            BlockMade(launches=tuple(one.folder for one in points), seconds=block_s, code=int(repeat == failed))
        )
    total_s = sum(seconds)
    progress = SeriesProgress(blocks=tuple(blocks), least=3, most=24, nodes=4, partition=partition, seconds=total_s)
    write_atomic(files.blocks_made("adult-00000001"), encode(progress))


@pytest.fixture
def files(tmp_path: Path) -> SweepFolder:
    """Return an empty sweep's files."""
    found = SweepFolder(tmp_path)
    found.jobs.mkdir()
    return found


def block_job(layouts: tuple[Layout, ...], blocks: int) -> Job:
    points = [point(layout, repeat) for repeat in range(blocks) for layout in layouts]
    return Job(folder=Path("sweep"), mode="turns", points=tuple(points), in_turns=True)


def test_a_block_takes_what_earlier_blocks_took_but_for_the_first_of_a_job(files: SweepFolder) -> None:
    write_blocks(files, (ONE, TWO), [100.0, 20.0, 24.0, 22.0])
    past = past_launches(files, "")
    assert past.total((ONE, TWO)) == pytest.approx(22.0)
    assert past.launches == 6


def test_the_only_block_of_a_job_counts(files: SweepFolder) -> None:
    write_blocks(files, (ONE, TWO), [100.0])
    assert past_launches(files, "").total((ONE, TWO)) == pytest.approx(100.0)


def test_a_block_in_which_a_launch_failed_does_not_count(files: SweepFolder) -> None:
    write_blocks(files, (ONE, TWO), [50.0, 20.0, 2.0], failed=2)
    assert past_launches(files, "").total((ONE, TWO)) == pytest.approx(20.0)


def test_blocks_of_another_partition_say_nothing(files: SweepFolder) -> None:
    write_blocks(files, (ONE, TWO), [100.0, 20.0], partition="fast")
    assert past_launches(files, "slow").total((ONE, TWO)) is None
    assert past_launches(files, "fast").total((ONE, TWO)) == pytest.approx(20.0)


def test_a_layout_that_is_not_known_takes_as_long_as_the_longest_and_in_proportion_to_fewer_cores() -> None:
    past = PastLaunches(seconds={TWO: 10.0, FOUR: 6.0}, launches=2)
    assert past.total((FOUR, Layout(nodes=8))) == pytest.approx(6.0 + 10.0)
    assert past.total((ONE,)) == pytest.approx(20.0)


def test_the_limit_of_a_job_in_turns_is_of_three_blocks_at_least_and_a_reserve() -> None:
    past = PastLaunches(seconds={ONE: 40.0, FOUR: 20.0}, launches=8)
    assert time_limit(block_job((ONE, FOUR), 3), IN_TURNS, None, past) == 420  # 1.5 x 3 x 60 s, and 120 s
    assert time_limit(block_job((ONE, FOUR), 1), IN_TURNS, None, past) == 420
    assert time_limit(block_job((ONE, FOUR), 6), IN_TURNS, None, past) == 660
    assert time_limit(block_job((ONE, FOUR), 6), replace(IN_TURNS, walltime="0:05:00"), None, past) == 300


def test_launches_that_follow_each_other_have_the_sum_of_theirs() -> None:
    job = Job(folder=Path("sweep"), mode="turns", points=(point(ONE), point(FOUR)))
    past = PastLaunches(seconds={ONE: 40.0, FOUR: 20.0}, launches=2)
    assert time_limit(job, IN_TURNS, None, past) == 240  # 1.5 x 60 s, and 120 s
    twice = Job(folder=Path("sweep"), mode="turns", points=(*job.points, point(ONE, 1), point(FOUR, 1)))
    assert time_limit(twice, IN_TURNS, None) == 2 * FIRST_LIMIT_S


def test_before_it_is_submitted_the_cost_says_what_the_limit_rests_on() -> None:
    plans = [block_job((ONE, FOUR), 3)]
    first = estimate(plans, IN_TURNS, None, {})
    assert (first.limit, first.expected) == (2.0, None)  # node-hours: four nodes for half an hour
    says(str(first), "0:30:00", "no launch")
    past = PastLaunches(seconds={ONE: 40.0, FOUR: 20.0}, launches=8)
    known = estimate(plans, IN_TURNS, None, {}, past)
    assert known.limit == pytest.approx(4 * 420 / 3600)
    assert known.expected == pytest.approx(4 * 180 / 3600)
    says(str(known), "0:07:00", "8 earlier launches")
    asked = estimate(plans, replace(IN_TURNS, walltime="0:10:00"), None, {}, past)
    assert "0:10:00" not in str(asked)
