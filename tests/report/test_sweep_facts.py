"""Facts beside an answer: the scheduler's accounting, the input of images, the machine."""

import dataclasses
from dataclasses import replace

import pytest

from harness.analysis.time_parts import EPOCH_PARTS, breakdown_frame
from harness.report.sweep_facts import account_facts, data_facts, machine_facts
from harness.report.sweep_warnings import doubts
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.presets import resolve
from harness.schema.record import Account, JobUsage
from tests.labs.factories import (
    launch_frame,
    make_data,
    make_point,
    make_ranks,
    make_run,
    write_report,
    write_run,
)
from tests.labs.sentences import says


def test_accounting_in_words() -> None:
    one = JobUsage(elapsed_s=1800, nodes=4, cpu_s=3600, memory_bytes=2**30, memory_of="a process", energy_j=3.6e6)
    accounts = [
        Account(job="1", scheduler="slurm", launch="a", usage=one),
        Account(job="1", scheduler="slurm", launch="b", usage=one),  # of the same job
        Account(job="2", scheduler="slurm", launch="c", usage=replace(one, energy_j=None)),
        Account(job="3", scheduler="slurm", launch="d"),
    ]
    (fact,) = account_facts(accounts)
    assert fact.value.replace("\u00a0", " ") == (
        "4.0 node-hours of 2 jobs, CPU time 2 h 00 min, memory at most 1.0 GiB in a process, "
        "energy 1.0 kWh (of 1 of them); none of 1 job: nothing is known yet"
    )
    none = Account(job="1", scheduler="slurm", launch="a", missing="sacct: Slurm accounting storage is disabled")
    assert account_facts([none])[0].value.endswith("job: sacct: Slurm accounting storage is disabled")
    assert account_facts([]) == ()


def test_launches_whose_cores_came_nearer_or_went_apart_say_so():
    pairs = ((130.4, 480.0), (480.0, 130.0), (120.0, 140.0), (0.0, 130.0), ())
    runs = [make_run(make_point(2, repeat), core_ns=core_ns) for repeat, core_ns in enumerate(pairs)]
    assert [run.moved for run in runs] == [True, True, False, False, False]
    says(doubts(runs, launch_frame(runs))[0], "2 of 5 launches had ranks", "2 ranks, repeat 1; 2 ranks, repeat 2.")
    (fact,) = (fact for fact in machine_facts(runs) if fact.name == "Core to core")
    assert fact.value == "120 to 480 ns there and back, before and after launches"


def launch(ranks, repeat, seconds, *, model="resnet50", gpus=0, waited=()):
    """Return a launch of three epochs of 64 images of 224 pixels on `ranks` ranks."""
    workload = resolve(dataset="imagenet", model=model, global_batch=16)
    layout = Layout(nodes=1, ranks_per_node=ranks, gpus_per_rank=gpus)
    point = Point(workload=workload, layout=layout, repeat=repeat)
    data = make_data(rows=64, name="imagenet", kind="synthetic", features=(224, 224, 3), classes=1000)
    run = make_run(point, seconds=[[seconds] * ranks] * 3, rows=64, data=data)
    if not waited:
        return run
    parts = tuple(
        dataclasses.replace(rank, step_without_input_s=seconds / 8) for rank in make_ranks(ranks, 64, 16 // ranks)
    )
    epochs = tuple(dataclasses.replace(epoch, input_seconds=waited) for epoch in run.epochs)
    return dataclasses.replace(run, ranks=parts, epochs=epochs)


def test_waiting_for_images_is_a_part_of_the_epoch_and_a_share_of_the_step():
    runs = [launch(1, 0, 8.0, waited=(3.0,)), launch(2, 0, 4.0, waited=(1.0, 2.0))]
    frame = launch_frame(runs)
    assert list(frame["input_seconds"]) == [3.0, 1.5]
    split = breakdown_frame(frame)
    whole = split[[*EPOCH_PARTS]].sum(axis=1)
    assert list(whole) == pytest.approx([8.0, 4.0])
    facts = {fact.name: fact.value for fact in data_facts(runs, frame)}
    says(facts["Input"], "of it is input", "files", "1 rank", "50 %")
    alone = launch(1, 0, 8.0)
    resident = {fact.name: fact.value for fact in data_facts([alone], launch_frame([alone]))}
    assert "memory" in resident["Input"] and "files" not in resident["Input"]


@pytest.mark.slow
def test_a_sweeps_report_of_images_is_written(tmp_path):
    folder = tmp_path / "results" / "imagenet-resnet50-a"
    folder.mkdir(parents=True)
    for run in (launch(1, 0, 8.0, waited=(3.0,)), launch(2, 0, 4.0, waited=(1.0, 2.0))):
        write_run(folder, run)
    page = write_report(folder, tmp_path / "reports").read_text()
    says(page, "files", "%")
    assert "smoothing" in page
