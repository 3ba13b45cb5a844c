"""What a user waits for: starts in pairs, and the first interval of a sweep."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from harness.base.processes import Reply
from harness.bench import waiting
from harness.bench.bench_record import FirstInterval, StartUp, Waiting
from harness.bench.waiting import measure_waiting
from harness.report.answer import Items
from harness.report.bench_answer import bench_answer
from tests.labs.bench_records import bench_block, bench_record
from tests.labs.sentences import says


class Machine:
    """Commands that take a planned time by a planned clock; `fails` names one that ends with an error."""

    def __init__(self, fails: str = "") -> None:
        self.now = 0.0
        self.kinds: list[str] = []
        self._fails = fails

    def monotonic(self) -> float:
        return self.now

    def run_program(self, words: Sequence[str], *, limit_s: float, changes: Mapping[str, str], folder: Path) -> Reply:
        kind = next((word for word in words if word in ("run", "sweep")), "mpirun")
        assert Path(changes["HARNESS_LOCK_DIR"]) == folder  # the caller has the machine's
        self.kinds.append(kind)
        self.now += {"mpirun": 8.0, "run": 12.0, "sweep": 60.0}[kind]
        if kind == self._fails:
            return Reply(code=1, out="", err="ValueError: planted\n")
        interval = {"low": 1.5 * math.exp(-0.04), "high": 1.5 * math.exp(0.04)}
        points = [{"speedup_interval": None}, {"speedup_interval": interval}]
        return Reply(code=0, out=json.dumps({"scaling": {"points": points}}), err="")


def measured(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> Waiting:
    monkeypatch.setattr(waiting, "run_program", machine.run_program)
    monkeypatch.setattr(waiting.time, "monotonic", machine.monotonic)
    return measure_waiting(3, lambda text: None)


def test_starts_are_compared_in_pairs_whose_order_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    found = measured(monkeypatch, machine)
    assert machine.kinds[2:-1] == ["mpirun", "run", "run", "mpirun", "mpirun", "run"]  # the first two are not counted
    assert found.start_up == StartUp(plain_s=(8.0,) * 3, run_s=(12.0,) * 3)
    assert found.start_up.ratio is not None and found.start_up.ratio.ratio == pytest.approx(1.5)
    assert found.first_interval is not None and found.first_interval.seconds == 60
    assert found.first_interval.reach == pytest.approx(0.04)


@pytest.mark.parametrize("kind", ["mpirun", "run", "sweep"])
def test_a_command_that_fails_is_named_and_ends_no_bench(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, Machine(fails=kind))
    assert found.first_interval is None
    assert (found.start_up is None) == (kind != "sweep")
    says(found.failed, "ValueError: planted")


def test_a_width_is_that_of_one_minute_by_the_root_of_the_time() -> None:
    assert FirstInterval(seconds=240, reach=0.01).reach_after_a_minute == pytest.approx(0.02)


def section(found: Waiting) -> str:
    """Return what the page says of it."""
    answer = bench_answer(bench_record(bench_block(bare=(1.0, 1.1)), waiting=found))
    texts = [
        text
        for part in answer.sections
        if part.name == "waiting"
        for element in part.elements
        if isinstance(element, Items)
        for text in element.texts
    ]
    return " ".join(texts)


def test_the_page_has_the_ratio_and_the_seconds() -> None:
    start_up = StartUp(plain_s=(8.0, 9.0, 8.0), run_s=(12.0, 13.0, 13.0))
    text = section(Waiting(start_up=start_up, first_interval=FirstInterval(seconds=60, reach=0.04)))
    says(text, "1.52 times as long", "95 % CI", "1 min 00 s", "4.0 %")
    says(section(Waiting(start_up=StartUp(plain_s=(8.0,), run_s=(12.0,)))), "1.50 times as long")


def test_a_page_says_why_it_has_none_and_nothing_where_it_was_not_asked_for() -> None:
    says(section(Waiting(failed="planted")), "not measured", "planted")
    assert section(Waiting()) == ""
