"""Switches of one run: what is out of range is refused."""

from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.transparent.run_settings import RunSettings, excluder_of_witness, mpi_enabled


@pytest.mark.parametrize(
    "words",
    [
        {"fuse": "sometimes"},
        {"batch": "globl"},
        {"sync": "none"},
        {"sync": "diloco:4"},
        {"verify": -1},
        {"hang_timeout": -1.0},
    ],
)
def test_a_switch_out_of_its_range_is_refused(words):
    with pytest.raises(UserError):
        RunSettings(**words)


@pytest.mark.parametrize("sync", ["gradients", "weights:3", "weights:epoch"])
def test_policies_that_keep_ranks_in_step_are_taken(sync):
    assert RunSettings(sync=sync).sync == sync


@pytest.mark.parametrize(
    ("settings", "gpus_per_rank", "excluder"),
    [
        ({}, 0, ""),
        ({}, 1, "--gpus-per-rank"),
        ({"record": Path("record")}, 0, "--record"),
        ({"shared_files": True}, 0, "--shared-files"),
        ({"sync": "weights:3"}, 0, "--sync weights:3"),
    ],
)
def test_the_switch_with_which_no_witness_runs_is_named(settings, gpus_per_rank, excluder):
    assert excluder_of_witness(RunSettings(**settings), gpus_per_rank) == excluder


@pytest.mark.parametrize(("text", "enabled"), [(None, True), ("", True), ("1", True), ("0", False)])
def test_a_variable_switches_the_ranks_off(text, enabled):
    environment = {} if text is None else {"TF_MPI_ENABLE": text}
    assert mpi_enabled(environment) == enabled


def test_another_value_is_no_switch():
    with pytest.raises(UserError):
        mpi_enabled({"TF_MPI_ENABLE": "yes"})
