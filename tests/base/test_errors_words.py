"""What is unknown is told with the nearest choice."""

import pytest

from harness.base.errors import unknown


@pytest.mark.parametrize(
    ("value", "choices", "sentence"),
    [
        ("globl", ("global", "per-rank"), "unknown batch 'globl': did you mean 'global'? known are global, per-rank"),
        ("zzz", ("a", "b"), "unknown batch 'zzz': known are a, b"),
    ],
)
def test_what_is_unknown_is_told_with_the_nearest_choice(value, choices, sentence):
    assert str(unknown("batch", value, choices)) == sentence


def test_of_many_choices_the_nearest_are_told():
    sentence = str(unknown("MODEL", "net7", [f"net{number}" for number in range(10, 40)]))
    assert "30 are known, such as net" in sentence
