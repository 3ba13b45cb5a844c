"""`make gpu-check` without a GPU: its table, its verdicts, and its rank program on processors."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from harness.schema.record import DeviceEnergy
from tests.gpu.check import CPU, ROOT, all_checks, check_sums, energy_words, images_per_second, same_losses
from tests.gpu.table import Check, Failed, Row, Skipped, Status, run_check, run_checks, table
from tests.labs.factories import make_point, make_run

ENERGY = DeviceEnergy(host="n", device="GPU-1", seconds=10.0, samples=11, counter_j=3000.0)


def raising(error: Exception) -> str:
    raise error


@pytest.mark.parametrize(
    ("run", "left", "status", "detail"),
    [
        (lambda left: f"{left:g} s", 50.0, Status.PASSED, "50 s"),
        (lambda left: raising(Failed("wrong sums")), 50.0, Status.FAILED, "wrong sums"),
        (lambda left: raising(KeyError("way")), 50.0, Status.FAILED, "KeyError: 'way'"),
        (lambda left: raising(Skipped("no counter")), 50.0, Status.SKIPPED, "no counter"),
        (lambda left: "never", 10.0, Status.SKIPPED, "10 s are left, it needs 20"),
    ],
)
def test_a_check_passes_fails_or_says_why_it_is_skipped(run, left, status, detail) -> None:
    row = run_check(Check(name="c", seconds=20.0, run=run), left)
    assert (row.status, row.detail) == (status, detail)


def test_the_table_counts_each_status() -> None:
    rows = [Row(name="a", status=status, seconds=1.0, detail="d") for status in (Status.PASSED, Status.SKIPPED)]
    assert table(rows).splitlines()[-1] == "1 pass, 0 fail, 1 skipped"


def test_losses_of_one_and_two_ranks_are_equal_and_summed_by_nccl() -> None:
    alone, two = make_run(make_point(1)), make_run(make_point(2))
    by_nccl = replace(two, provenance=replace(two.provenance, algorithm="nccl"))
    assert same_losses([alone, by_nccl]).startswith("losses ")
    epoch = replace(by_nccl.epochs[-1], train_loss=1.01 * alone.epochs[-1].train_loss)
    for runs in ([alone], [alone, two], [alone, replace(by_nccl, epochs=(*two.epochs[:-1], epoch))]):
        with pytest.raises(Failed):
            same_losses(runs)


def test_the_first_epoch_is_not_in_the_rate() -> None:
    run = make_run()
    first, *others = run.epochs
    strange = replace(run, epochs=(replace(first, seconds=(1e-9,)), *others))
    best = min(max(epoch.seconds) for epoch in others)
    assert images_per_second(strange) == pytest.approx(others[0].steps * run.global_batch / best)


def test_energy_is_counted_or_not() -> None:
    run = make_run()
    assert "300 W" in energy_words(replace(run, energy=(ENERGY,)))
    with pytest.raises(Failed, match="0 J"):
        energy_words(replace(run, energy=(replace(ENERGY, counter_j=0.0),)))
    with pytest.raises(Skipped, match="energy"):
        energy_words(replace(run, energy=(replace(ENERGY, counter_j=None, missing=("energy",)),)))
    with pytest.raises(Failed, match="no energy of a GPU"):
        energy_words(run)


def test_without_a_gpu_it_is_one_sentence_and_code_2(tmp_path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    words = [sys.executable, "-m", "tests.gpu.check"]
    reply = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert reply.returncode == 2
    assert reply.stdout == ""
    assert reply.stderr.startswith("there is no GPU to check here: ")
    assert reply.stderr.count("\n") == 1


@pytest.mark.mpi  # the rank program of the checks is run on processors
def test_two_ranks_sum_exactly_on_processors() -> None:
    assert "bit for bit" in check_sums(CPU, 2, 60.0)


@pytest.mark.campaign  # five minutes, more on a busy machine
@pytest.mark.mpi  # every command of the checks is run on processors: only the device is untested
def test_all_checks_run_on_processors(tmp_path) -> None:
    rows = {row.name: row for row in run_checks(all_checks(CPU, tmp_path), 1000.0)}
    ratios = [name for name in rows if name.startswith("ratio")]
    assert ratios
    for name in ratios:  # a busy machine makes the numbers anything
        assert "images/s, bare" in rows.pop(name).detail
    assert "the record has no energy of a GPU" in rows.pop("energy").detail
    assert {name: row for name, row in rows.items() if row.status is not Status.PASSED} == {}
