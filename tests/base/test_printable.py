"""Text of strangers has nothing in it that steers a terminal, and says the same in JSON."""

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from harness.base.printable import printable, printable_line

BAD = "node\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\r\x7f\u202egnp.exe\ud800"


def is_steering(sign: str) -> bool:
    direction = unicodedata.bidirectional(sign)
    is_turned = direction in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return sign not in "\t\n" and (unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") or is_turned)


@given(st.text(st.characters()))
def test_no_sign_that_steers_is_left(text: str) -> None:
    assert not any(map(is_steering, printable(text)))
    assert printable(printable(text)) == printable(text)


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"))))
def test_other_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_tabs_and_lines_stay_and_what_steers_is_shown() -> None:
    assert printable("a\tb\nc\r\nd") == "a\tb\nc\nd"
    assert printable(BAD).startswith("node\\u001b]52;c;ZXZpbA==\\u0007") and "\\u202e" in printable(BAD)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_json_means_the_same_afterwards(text: str) -> None:
    assert json.loads(printable(json.dumps({"a": text}, ensure_ascii=False))) == {"a": text}


@given(st.text(), st.integers(1, 20))
def test_a_line_is_one_and_no_longer(text: str, longest: int) -> None:
    line = printable_line(text, longest)
    assert len(line) <= longest and "\n" not in line and "\t" not in line
