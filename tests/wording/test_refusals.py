"""What refusals and other sentences say: those of the functions that tests name stand in tables here."""

import re

import pytest

from harness.base.errors import unknown
from tests.labs.code_sentences import count_worded, sentences, worded
from tests.wording.refusals import REFUSALS, pages


def test_the_sentences_are_those_of_the_tables():
    for table, page in pages().items():
        assert page == table.read_text(), "look at the difference, then: python -m tests.wording"


def test_a_sentence_has_no_period_and_begins_no_new_line():
    texts = re.sub(r"^\[.*\]$", "", REFUSALS.read_text(), flags=re.M).splitlines()
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


TOO_LARGE = "needs 9 GPUs a node, partition\u00a0gpu has\n8"
EXCEEDS = "sweep.schedulers.exceeds"


def test_a_sentence_is_known_by_its_function_and_its_values_in_order():
    assert worded(f"not run: {TOO_LARGE}", EXCEEDS, 9, "gpu", 8).startswith("needs 9")
    assert count_worded(f"{TOO_LARGE}; {TOO_LARGE}", EXCEEDS) == 2
    for function, values in ((EXCEEDS, (8, 9)), (EXCEEDS, (7,)), ("base.files.read_bytes", (9,))):
        with pytest.raises(AssertionError):
            worded(TOO_LARGE, function, *values)
