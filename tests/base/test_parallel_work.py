"""Work that several processes share."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import psutil
import pytest

from harness.base.errors import RunError, UserError
from harness.base.parallel_work import MANY, done_to_each, is_worth_sharing
from tests.labs.sentences import refuses
from tests.labs.sweep_lab import wait_for


@pytest.mark.parametrize("shared", [False, True])
def test_results_come_in_the_order_of_the_items(shared: bool) -> None:
    items = list(range(100))
    offset = 7

    def worked_out(item: int) -> tuple[int, int]:
        return item + offset, os.getpid()

    with done_to_each(worked_out, items, shared=shared, doing="adding", chunk=3) as results:
        values, processes = zip(*results, strict=True)
    assert list(values) == [item + offset for item in items]
    assert (os.getpid() in processes) is not shared


@pytest.mark.parametrize("shared", [False, True])
def test_an_error_is_the_one_that_was_raised(shared: bool) -> None:
    def refuse(item: int) -> int:
        if item == 3:
            raise UserError("item 3 is damaged: leave it out")
        return item

    def values() -> Iterator[int]:
        with done_to_each(refuse, range(5), shared=shared, doing="reading") as results:
            yield from results

    taken = []
    with refuses("item 3", "damaged"):
        for value in values():
            taken.append(value)
    assert taken == [0, 1, 2]


def test_a_killed_process_is_named_in_one_sentence() -> None:
    def die(item: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with refuses("drawing", "killed", error=RunError), done_to_each(die, [1], shared=True, doing="drawing") as results:
        list(results)


def test_the_processes_end_with_a_parent_that_is_killed() -> None:
    program = """
        import os, time
        from harness.base.parallel_work import MANY, done_to_each, is_worth_sharing

        def wait(item):
            print(os.getpid(), flush=True)
            time.sleep(600)

        with done_to_each(wait, [1], shared=True, doing="waiting") as results:
            list(results)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_for(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, "the end of its process")


def test_only_a_process_with_one_thread_shares_the_work_on_many_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    worth = {}
    for threads in (1, 2):
        monkeypatch.setattr("threading.active_count", lambda threads=threads: threads)
        worth[threads] = [is_worth_sharing(launches) for launches in (MANY - 1, MANY)]
    assert worth == {1: [False, True], 2: [False, False]}
