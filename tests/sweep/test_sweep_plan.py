"""The plan of a sweep: which launches, in which order, how long they take."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.schema.layout import Layout
from harness.schema.presets import resolve
from harness.schema.sweep import Sweep
from harness.sweep.job_plan import TurnMemory, plan_allocations, plan_turn_blocks
from harness.sweep.plan import Axes, combine, fill_nodes, format_seconds, launch_order, split_runnable, time_left
from harness.sweep.site import Partition
from tests.labs.factories import make_workload
from tests.labs.sentences import says

NODES = st.lists(st.integers(1, 64), min_size=1, max_size=8, unique=True)


def make_sweep(nodes: list[int], repeats: int, seed: int = 0) -> Sweep:
    layouts, _ = combine(Axes(nodes=nodes), None)
    return Sweep(workload=make_workload(seed=seed), layouts=layouts, repeats=repeats)


@given(NODES, st.integers(1, 6))
def test_every_point_is_launched_exactly_once(nodes: list[int], repeats: int) -> None:
    sweep = make_sweep(nodes, repeats)
    ordered = launch_order(sweep, sweep.layouts)
    assert sorted(ordered, key=repr) == sorted(sweep.points(), key=repr)
    assert len({point.folder for point in ordered}) == len(nodes) * repeats


@given(NODES, st.integers(1, 6))
def test_each_block_has_every_layout_once(nodes: list[int], repeats: int) -> None:
    sweep = make_sweep(nodes, repeats)
    ordered = launch_order(sweep, sweep.layouts)
    for block in range(repeats):
        layouts = [point.layout.nodes for point in ordered[block * len(nodes) : (block + 1) * len(nodes)]]
        assert sorted(layouts) == sorted(nodes)


@given(NODES, st.integers(1, 4))
def test_the_order_is_stable_and_more_repeats_only_add_to_it(nodes: list[int], repeats: int) -> None:
    first, longer = make_sweep(nodes, repeats), make_sweep(nodes, repeats + 2)
    random.seed(0)  # the order must not depend on the global generator
    before = launch_order(first, first.layouts)
    assert before == launch_order(first, first.layouts)
    assert launch_order(longer, longer.layouts)[: len(before)] == before


def test_the_order_is_shuffled_and_differs_between_blocks_and_studies() -> None:
    nodes = list(range(1, 9))
    orders = set()
    for seed in range(3):
        sweep = make_sweep(nodes, 3, seed)
        ordered = [point.layout.nodes for point in launch_order(sweep, sweep.layouts)]
        orders |= {tuple(ordered[:8]), tuple(ordered[8:16]), tuple(ordered[16:])}
    assert tuple(nodes) not in orders
    assert len(orders) == 9


@given(NODES, st.integers(1, 64))
def test_layouts_run_or_are_skipped_with_the_reason(nodes: list[int], cores: int) -> None:
    layouts, _ = combine(Axes(nodes=nodes, ranks_per_node=(2,), threads=(2,)), None)
    reason = "too big"
    runnable, skipped = split_runnable(layouts, lambda layout: reason if layout.cores > cores else None)
    assert {*runnable, *(entry.layout for entry in skipped)} == set(layouts)
    assert all(layout.cores <= cores for layout in runnable)
    assert all(entry.layout.cores > cores and entry.reason == reason for entry in skipped)


def test_skipped_layouts_are_not_launched() -> None:
    sweep = make_sweep([1, 2, 4], 2)
    ordered = launch_order(sweep, sweep.layouts[:2])
    assert {point.layout.nodes for point in ordered} == {1, 2}
    assert len(ordered) == 4


def test_time_left_uses_each_layouts_median_and_the_mean_for_new_ones() -> None:
    sweep = make_sweep([1, 2, 4], 1)
    one, two, _ = sweep.layouts
    seconds = {one: [10.0, 12.0, 90.0], two: [6.0]}
    assert time_left(sweep.points(), seconds) == pytest.approx(12 + 6 + 9)
    assert time_left((), seconds) == 0
    assert time_left(sweep.points(), {}) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def study(*, nodes, repeats, **change):
    """Return a sweep of one rank a node, its workload changed."""
    workload = resolve(dataset=change.pop("dataset", "adult"), model=change.pop("model", "dnn"), preset="default")
    layouts = tuple(Layout(nodes=count) for count in nodes)
    return Sweep(workload=replace(workload, **change), layouts=layouts, repeats=repeats)


def blocks_of(points, every, *, peak=2**30, free=2**40):
    """Return what `plan_turn_blocks` makes of missing `points`: mode and layouts of each job, and what it says."""
    jobs, notes = plan_turn_blocks(points, every, TurnMemory(rank_bytes=peak, free=free), Path("sweep"))
    return [(job.mode, [point.layout.ranks for point in job.points]) for job in jobs], notes


def test_a_block_has_one_repeat_of_every_layout_with_the_base_first():
    every = launch_order(sweep := study(nodes=(4, 1, 2), repeats=2), sweep.layouts)
    found, notes = blocks_of(every, every)
    assert [(mode, sorted(ranks)) for mode, ranks in found] == [("turns", [1, 2, 4])] * 2
    assert [ranks[0] for _, ranks in found] == [1, 1]
    assert notes == ()


def test_a_layout_that_is_added_later_trains_with_the_base_again():
    every = launch_order(sweep := study(nodes=(1, 2), repeats=1), sweep.layouts)
    missing = [point for point in every if point.layout.ranks == 2]
    assert blocks_of(missing, every)[0] == [("turns", [1, 2])]
    alone = [point for point in every if point.layout.ranks == 1]
    assert blocks_of(alone, every)[0] == [("jobs", [1])]


def test_layouts_that_do_not_fit_into_memory_together_have_blocks_of_their_own_each_with_the_base():
    every = launch_order(sweep := study(nodes=(1, 2, 4), repeats=1), sweep.layouts)
    found, notes = blocks_of(every, every, peak=10**9, free=5 * 10**9)
    assert sorted((mode, sorted(ranks)) for mode, ranks in found) == [("turns", [1, 2]), ("turns", [1, 4])]
    says(notes[0], "layouts at a time", "interleaved: 2 ", "GB")


def test_what_cannot_wait_for_a_turn_is_launched_alone():
    for change in ({"on_failure": "shrink"}, {"dataset": "imagenet", "model": "resnet50", "input": "files"}):
        sweep = study(nodes=(1, 2), repeats=1, **change)
        every = launch_order(sweep, sweep.layouts)
        assert sorted(blocks_of(every, every)[0]) == [("jobs", [1]), ("jobs", [2])]
    sweep = replace(study(nodes=(1, 2), repeats=1), oversubscribe=True)
    every = launch_order(sweep, sweep.layouts)
    assert sorted(blocks_of(every, every)[0]) == [("jobs", [1]), ("jobs", [2])]


def allocations_of(points, every, *, free=2**40, **options):
    """Return what `plan_allocations` makes of missing `points`."""
    memory = TurnMemory(rank_bytes=2**30, free=free, nodes=True)
    jobs, _ = plan_allocations(points, every, memory, Path("sweep"), **options)
    return jobs


def ranks_of(blocks):
    return [(block[0].repeat, [point.layout.ranks for point in block]) for block in blocks]


def test_a_sweep_is_one_job_whose_blocks_follow_each_other():
    every = launch_order(sweep := study(nodes=(1, 2, 4), repeats=3), sweep.layouts)
    (job,) = allocations_of(every, every, most_blocks=5)
    assert (job.mode, job.in_turns, job.layout.nodes, job.queued) == ("turns", True, 4, 1)
    assert [(repeat, sorted(ranks)) for repeat, ranks in ranks_of(job.needed_blocks)] == [
        (repeat, [1, 2, 4]) for repeat in range(3)
    ]
    assert [(repeat, sorted(ranks)) for repeat, ranks in ranks_of(job.extra_blocks)] == [
        (3, [1, 2, 4]),
        (4, [1, 2, 4]),
    ]
    assert {block[0].layout.ranks for block in (*job.needed_blocks, *job.extra_blocks)} == {1}
    assert len(job.launches) == 15


def test_what_is_missing_of_a_sweep_is_made_and_no_more():
    every = launch_order(sweep := study(nodes=(1, 2), repeats=3), sweep.layouts)
    missing = [point for point in every if point.repeat == 1 and point.layout.ranks == 2]
    (job,) = allocations_of(missing, every, most_blocks=24)
    assert (ranks_of(job.needed_blocks), job.extra) == ([(1, [1, 2])], ())
    bases = [point for point in every if point.layout.ranks == 1]
    (job,) = allocations_of(bases, every, most_blocks=24)
    assert (job.mode, job.in_turns, len(job.points), job.extra) == ("turns", False, 3, ())


def test_a_base_that_is_in_the_queue_is_in_no_other_job():
    every = launch_order(sweep := study(nodes=(1, 2), repeats=2), sweep.layouts)
    queued = [point for point in every if point.layout.ranks == 1 and point.repeat == 0]
    missing = [point for point in every if point not in queued]
    jobs = allocations_of(missing, every, queued=[point.folder for point in queued])
    assert not any(point in queued for job in jobs for point in job.launches)
    assert {point for job in jobs for point in job.launches} == set(missing)
    assert [(job.in_turns, len(job.points)) for job in jobs] == [(True, 2), (False, 1)]


def test_allocations_share_the_repeats():
    every = launch_order(sweep := study(nodes=(1, 2), repeats=6), sweep.layouts)
    jobs = allocations_of(every, every, allocations=3)
    repeats = [[block[0].repeat for block in job.needed_blocks] for job in jobs]
    assert sorted(repeats) == [[0, 3], [1, 4], [2, 5]]


def test_where_a_nodes_memory_does_not_hold_all_the_job_has_more_blocks_each_with_the_base():
    every = launch_order(sweep := study(nodes=(1, 2, 4), repeats=2), sweep.layouts)
    (job,) = allocations_of(every, every, free=2 * 2**30, most_blocks=3)
    blocks = [(repeat, sorted(ranks)) for repeat, ranks in ranks_of(job.needed_blocks)]
    assert sorted(blocks) == [(0, [1, 2]), (0, [1, 4]), (1, [1, 2]), (1, [1, 4])]
    assert len(job.extra_blocks) == 2
    assert len(job.launches) == 9


def test_nodes_are_full_where_nothing_else_is_asked_for():
    limit = Partition(name="standard", cores_per_node=128, numa_domains=8, gpus_per_node=4)
    filled = fill_nodes(Axes(nodes=(1, 2), threads=()), limit)
    assert (filled.ranks_per_node, filled.threads) == ((8,), (16,))
    assert fill_nodes(Axes(nodes=(1,), ranks_per_node=(4,), threads=()), limit).threads == (32,)
    assert fill_nodes(Axes(nodes=(1,), threads=(2,)), limit).ranks_per_node == (64,)
    assert fill_nodes(Axes(gpus=(1, 2), threads=()), limit).threads == (32,)
    assert fill_nodes(Axes(cores=(1, 2), threads=()), limit).threads == (1,)
    asked = Axes(nodes=(1,), ranks_per_node=(3,), threads=(5,))
    assert fill_nodes(asked, limit) == asked
    assert fill_nodes(Axes(nodes=(1,), threads=()), None).threads == (1,)
    unknown_domains = fill_nodes(Axes(nodes=(1,), threads=()), Partition(name="small", cores_per_node=4))
    assert (unknown_domains.ranks_per_node, unknown_domains.threads) == ((1,), (4,))
