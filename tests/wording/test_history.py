"""What the history of a study says of its steps."""

from harness.regression.history import history_of
from harness.report.history_page import change_sentence
from tests.labs.histories import make_measurement, make_summary


def test_a_step_among_launches_of_a_commit_is_at_no_commit() -> None:
    seconds = [1.0, 1.01, 0.99, 1.005, 0.995, 1.0, 1.01, 0.99, 1.3, 1.31, 1.29, 1.3, 1.32, 1.28, 1.3, 1.31]
    launches = [make_summary(1, block, time, minutes=block) for block, time in enumerate(seconds)]
    other = make_measurement([make_summary(1, 0, 1.3, minutes=99)], commit="b" * 40)
    found = history_of([make_measurement(launches), other])
    assert [(change.index, change.state) for change in found.changes] == [(8, None)]
    assert "not the code, so look at the machine" in change_sentence(found, found.changes[0])
