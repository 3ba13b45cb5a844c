"""What a referee and the ranks of a turn block tell each other."""

from harness.base.turns import Greeting, TimedSteps, TurnOrder, TurnReport


def test_messages_come_back_as_they_were() -> None:
    greeting = Greeting(password="word", rank=1, ranks=2, cores="0,1")
    order = TurnOrder(turn=3, steps=20, paused_s=1.5, cores="1")
    report = TurnReport(last=True, timed=TimedSteps(steps=20, seconds=0.05, cores_had=0.99), core_ns=80.0, cores="1")
    assert Greeting.parse(greeting.line()) == greeting
    assert TurnOrder.parse(order.line()) == order
    assert TurnReport.parse(report.line()) == report


def test_a_stranger_on_the_network_is_no_rank() -> None:
    assert [Greeting.parse(line) for line in ("", "GET / HTTP/1.1", "rank word first of all")] == [None] * 3


def test_a_referee_that_has_gone_gives_no_order() -> None:
    assert TurnOrder.parse("") is None
