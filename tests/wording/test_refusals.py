"""What refusals say: each sentence of a function that tests see refuse stands in ``refusals.txt``."""

import re

import pytest

from harness.base.errors import unknown
from tests.labs.code_sentences import sentences
from tests.wording.refusals import TABLE, page


def test_the_sentences_are_those_of_the_table():
    assert page() == TABLE.read_text(), "look at the difference, then: python -m tests.wording"


def test_a_sentence_has_no_period_and_begins_no_new_line():
    texts = re.sub(r"^\[.*\]$", "", TABLE.read_text(), flags=re.M).splitlines()
    assert [text for text in texts if text.endswith(".") and not text.endswith("...")] == []
    assert [text for text in texts if "\\n" in text] == []


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


def test_a_function_that_is_not_there_is_no_entry():
    with pytest.raises(LookupError):
        sentences("base.errors.absent")
