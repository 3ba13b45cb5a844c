"""An error that a user can mend is one line, whatever the user gave."""

import pytest

from harness.base.errors import unknown


def test_a_value_with_a_line_break_stays_in_the_sentence() -> None:
    assert str(unknown("DATASET", "mnist\nlong", ("mnist",))).startswith("unknown DATASET 'mnist\\nlong'")


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
