"""An error that a user can mend is one line, whatever the user gave."""

from harness.base.errors import unknown


def test_a_value_with_a_line_break_stays_in_the_sentence() -> None:
    assert str(unknown("DATASET", "mnist\nlong", ("mnist",))).startswith("unknown DATASET 'mnist\\nlong'")
