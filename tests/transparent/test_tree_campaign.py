"""Ranks that change all they find and are killed at random leave a user's files as they were: some draws of many.

All of them: ``python -m tests.transparent.tree_campaign``.
"""

import os

import pytest

from tests.transparent.tree_campaign import drawn, in_mounts_of_its_own

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="each draw has mounts of its own, and other users' ranks")


@pytest.mark.slow  # each draw starts three processes
@pytest.mark.parametrize("seed", range(1, 7))
def test_trees_of_ranks_keep_the_users_files(seed):
    is_well, line = in_mounts_of_its_own(drawn(seed, whole=False))
    assert is_well, line


@pytest.mark.mpi  # what is killed is a whole launch
@pytest.mark.parametrize("seed", [1, 3, pytest.param(4, marks=pytest.mark.campaign)])
def test_whole_launches_keep_the_users_files(seed):
    is_well, line = in_mounts_of_its_own(drawn(seed, whole=True))
    assert is_well, line


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_trees_of_ranks_keep_the_users_files(seed):
    is_well, line = in_mounts_of_its_own(drawn(seed, whole=False))
    assert is_well, line
