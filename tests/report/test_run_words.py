"""What is said of machines."""

from dataclasses import replace
from pathlib import Path

from harness.analysis.read_results import load_sweep
from harness.analysis.units import significant
from harness.report.answer import plain
from harness.report.run_words import batch_words, cost, gpu_kinds, layout_words, machine_words, machines_words
from harness.report.sweep_facts import run_facts
from harness.schema.layout import Layout
from harness.schema.record import Failure
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.finished_launches import set_aside
from tests.labs.factories import (
    make_point,
    make_run,
    write_run,
    write_study,
)
from tests.labs.sentences import says

BUSY = "other processes kept 1.2 cores of node1 busy"


def test_a_machine_stands_once_whatever_number_of_gpus_a_launch_had() -> None:
    machine = make_run().provenance.machine
    h100 = "NVIDIA H100 80GB HBM3, 81559 MiB"
    with_gpus = [replace(machine, gpus=(h100,) * count) for count in (1, 2, 4)]
    words = machines_words(with_gpus)
    assert words.startswith(machine_words(machine))
    assert words.endswith(", 1 to 4 GPUs")
    assert gpu_kinds(with_gpus) == f"1 to 4 x {h100}"
    assert gpu_kinds([machine]) == ""
    assert machines_words([machine, machine]) == machine_words(machine)
    assert machines_words(with_gpus[:1]).endswith(", 1 GPU")


def test_the_cost_of_a_sweep_has_what_was_replaced(tmp_path: Path) -> None:
    write_study(tmp_path)
    point = make_point(1)
    write_run(tmp_path, make_run(point, invalid=(BUSY,)))
    set_aside(SweepFolder(tmp_path), point.folder)
    write_run(tmp_path, make_run(point))
    loaded = load_sweep(tmp_path)
    assert len(loaded.runs) == 1
    (value,) = (fact.value for fact in run_facts(loaded.valid, loaded.launched) if fact.name == "Cost")
    assert "in 2 launches, 1 of them replaced, " in plain(value)


def test_the_cost_of_launches_has_their_imports_and_a_block_once() -> None:
    one, two = make_run(make_point(1)), make_run(make_point(2), invalid=(BUSY,))
    each = [30 + run.ranks[0].import_s for run in (one, two)]
    core_hours = significant((each[0] + 2 * each[1]) / 3600, 2)
    says(plain(cost([one, two])), f"{core_hours} core-hours in 2 launches", "32.1 s")  # two's import takes 2.1 s
    again = replace(two, started=two.ended, ended=two.ended + (two.ended - two.started))
    assert "in 3 launches, 1 of them replaced, " in plain(cost([one, two, again]))
    block = [replace(run, block="block-1") for run in (one, two)]
    assert plain(cost(block)).startswith(f"{significant(2 * max(each) / 3600, 2)} core-hours in 2 launches, ")
    failed = Failure(point=two.point, ended=two.ended, exit_code=137, reason="killed", tail="", seconds=3600)
    assert " core-hours in 2 launches, and 1 cut short, " in plain(cost(block, [failed]))
    assert float(plain(cost(block, [failed])).split()[0]) == float(significant(2 + 2 * max(each) / 3600, 2))


def test_a_batch_is_said_at_both_ends_where_it_differs() -> None:
    assert plain(batch_words([make_run(make_point(n)) for n in (1, 2)])) == (
        "per rank 64, global 64 on 1 rank and 128 on 2 ranks"
    )
    fixed = [make_run(make_point(n, global_batch=64)) for n in (4, 2, 1)]
    assert plain(batch_words(fixed)) == "per rank 64 on 1 rank to 16 on 4 ranks, global 64"
    assert plain(batch_words(fixed[:1])) == "per rank 16, global 64"


def test_a_layout_on_one_machine_has_no_nodes() -> None:
    assert layout_words(Layout(nodes=2), True).replace("\u00a0", " ") == "2 ranks, 1 thread each"
    assert layout_words(Layout(nodes=2, ranks_per_node=4), False).replace("\u00a0", " ") == (
        "2 nodes × 4 ranks, 1 thread each"
    )
