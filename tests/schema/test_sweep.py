"""A sweep, its points, their keys, seeds and rows."""

import dataclasses

from harness.schema.layout import Layout
from harness.schema.presets import resolve
from harness.schema.sweep import Sweep
from tests.labs.sentences import refuses


def sweep(**changes):
    workload = resolve(dataset="mnist", model="dnn")
    return dataclasses.replace(Sweep(workload=workload, layouts=(Layout(nodes=1), Layout(nodes=2))), **changes)


def test_a_sweep_keeps_its_folder_when_layouts_and_repeats_are_added():
    more = sweep(layouts=(Layout(nodes=4),), repeats=9)
    assert more.name == sweep().name
    assert sweep(workload=resolve(dataset="mnist", model="dnn", seed=1)).name != sweep().name
    assert sweep(data_id="other-data").name != sweep().name
    places = {
        sweep(layouts=(Layout(nodes=1, gpus_per_rank=gpus),), scheduler=one).name.rsplit("-", 1)[0]
        for gpus in (0, 1)
        for one in ("local", "slurm", "pbs")
    }
    assert {name.removeprefix("mnist-dnn-default-strong") for name in places} == {
        "",
        "-slurm",
        "-pbs",
        "-gpus",
        "-gpus-slurm",
        "-gpus-pbs",
    }


def test_points_have_keys_of_their_own_that_do_not_change():
    points = sweep().points()
    assert len({point.key for point in points}) == len(points) == 6
    assert [point.key for point in sweep().points()] == [point.key for point in points]


def test_each_repeat_has_a_seed_of_its_own_at_every_rank_count():
    """All launches had one seed, so that accuracy had no spread."""
    assert {(point.repeat, point.seed) for point in sweep().points()} == {(0, 0), (1, 1), (2, 2)}
    assert {len({p.seed for p in sweep().points() if p.layout == layout}) for layout in sweep().layouts} == {3}
    fixed = sweep(workload=resolve(dataset="mnist", model="dnn", seed=7))
    assert {point.seed for point in fixed.points()} == {7}
    assert fixed.name != sweep().name and len({point.key for point in fixed.points()}) == 6


def test_weak_scaling_gives_rows_in_proportion_to_the_ranks():
    weak = sweep(scaling="weak", workload=resolve(dataset="mnist", model="dnn", samples=1000), repeats=1)
    assert [point.workload.samples for point in weak.points()] == [1000, 2000]
    with refuses("--samples"):
        sweep(scaling="weak")
