"""Sync policies as they are written."""

import pytest

from harness.schema.own_code import find_policy
from harness.schema.sync_policies import POLICIES, Weights, is_own_policy
from tests.labs.sentences import refuses


@pytest.mark.parametrize(
    ("text", "period"),
    [
        ("gradients", 0),
        ("none", 0),
        ("weights:1", 1),
        ("weights:100", 100),
        ("weights:epoch", None),
        ("diloco:50", 50),
        ("diloco:epoch", None),
        ("powersgd:4", 0),
    ],
)
def test_sync_policies_are_read(text, period):
    policy = find_policy(text)
    assert policy.synchronises == (text != "none")
    assert policy.period == period
    assert isinstance(policy, Weights) == text.startswith("weights")
    assert policy.shares_gradients == (text in ("gradients", "powersgd:4"))


@pytest.mark.parametrize(
    "text",
    [
        "weights",
        "weights:0",
        "weights:-1",
        "gradient",
        "weights:²",
        "",
        "weights:state",
        "weights:3:4",
        "diloco",
        "diloco:0",
        "diloco:x",
        "powersgd:epoch",
        "powersgd:r",
        "post-local:3:8",
        "powersgd:1e3",
        "weights:9999999999",
        "weights:3:state",
    ],
)
def test_other_sync_policies_are_refused(text):
    with refuses("is not a sync"):
        find_policy(text)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_of_the_harness_is_taken_for_a_users_own(policy):
    assert not is_own_policy(f"{policy.name()}:name")
    assert is_own_policy(f"my_{policy.name()}:Name")
