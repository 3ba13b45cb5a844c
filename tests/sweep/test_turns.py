"""Turns: sets of ranks resident on the same cores, one of which trains while the others wait without using a core."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import psutil
import pytest

from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.base.turns import Turns, turn_of_round
from harness.schema.record import encode
from harness.sweep import block_program
from harness.sweep.referee import MemoryUse, holds, parse_memory, run_block
from harness.sweep.turn_block import BlockSeries, LaunchSpec, TurnBlock

# One rank of a program that is not ours: it makes STEPS steps of a millisecond and writes down when, and its marks.
_RANK = """
import json, os, sys, time
from harness.base.turns import clock, join_turns
rank, ranks, steps, out = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
turns = join_turns(rank, ranks)
times, began = [], time.perf_counter()
for step in range(steps):
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.001:
        pass
    turns.step()
    times.append(clock())
    if step % 70 == 19:
        since = clock()
        time.sleep(0.3)  # a pause between two steps of a turn
        turns.resume(since)
    if step == steps // 2:
        turns.leave()  # an epoch has ended: what follows is no step
        time.sleep(0.02)
cpu = time.process_time()
turns.finish()
marks = turns.take_marks(steps)
json.dump({"times": times, "marks": marks, "paused": turns.state.paused, "cpu": cpu,
           "wall": time.perf_counter() - began}, open(f"{out}.{rank}", "w"))
if len(sys.argv) > 5 and rank == 0:
    sys.exit(int(sys.argv[5]))
"""


def rank_set(
    name: str, folder: Path, *, ranks: int = 1, steps: int = 300, code: int = 0, program: str = _RANK
) -> LaunchSpec:
    """Return a set of `ranks` processes that do not know each other, started by a shell."""
    (folder / "rank.py").write_text(program)
    start = f'"{sys.executable}" "{folder}/rank.py"'
    lines = [f'{start} {rank} {ranks} {steps} "{folder}/{name}" {code} &' for rank in range(ranks)]
    waits = "code=0; for job in $(jobs -p); do wait $job || code=$?; done; exit $code"
    return LaunchSpec(name=name, words=("bash", "-c", "\n".join([*lines, waits])), log=str(folder / f"{name}.log"))


def said(folder: Path, name: str, rank: int = 0) -> dict[str, list[float]]:
    """Return what a rank wrote down."""
    found: dict[str, list[float]] = json.loads((folder / f"{name}.{rank}").read_text())
    return found


@pytest.mark.parametrize("device_s", [None, 0.5])
def test_a_pause_takes_nothing_of_the_step_that_ended_before_it(
    device_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step passes where its first gradient is known: most of it comes after that.

    A device that works on while the host goes on is waited for before a turn's time ends.
    """
    now = [100.0]

    def let_pass(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("harness.base.turns.clock", lambda: now[0])
    synchronise = None if device_s is None else partial(let_pass, device_s)
    cores, told = ",".join(map(str, sorted(os.sched_getaffinity(0)))), []

    def referee() -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rwb", buffering=0) as file:
            for answer in ("", f"turn 1 4 0.0 {cores}", f"turn 2 0 0.0 {cores}"):
                told.append(file.readline().decode().split())
                file.write(f"{answer}\n".encode() if answer else b"")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=referee)
        thread.start()
        turns = Turns(f"127.0.0.1:{server.getsockname()[1]}:word", 0, 1)
        turns.synchronise = synchronise
        for step in range(7):  # one waits for the turn, two are its first steps, four are timed
            turns.step()
            let_pass(0.01)
            if step == 4:
                since = now[0]
                let_pass(0.5)
                turns.resume(since)
        thread.join()
    word, steps, seconds, *_ = told[-1]
    assert (word, steps) == ("done", "4")
    assert float(seconds) == pytest.approx(0.04 + (device_s or 0.0))


def test_sets_take_turns_and_what_is_between_is_in_no_time(tmp_path: Path) -> None:
    sets = (rank_set("one", tmp_path), rank_set("two", tmp_path, ranks=2))
    end = run_block(TurnBlock(name="b", launches=sets))
    assert end.codes == {"one": 0, "two": 0}, (tmp_path / "one.log").read_text()
    steps = end.turns["seconds"] / end.turns["steps"]
    assert steps.median() > 0.0009  # a millisecond at least, more where others use the machine
    assert {"one", "two"} == set(end.turns["launch"])
    both = end.turns.groupby("round")["launch"].nunique()
    lacking = (both[both.index < both.index.max()] < 2).sum()
    assert lacking <= 2  # half of a set's steps may be over in the first ones of a turn, which has no time then
    for name, rank in (("one", 0), ("two", 0), ("two", 1)):
        found = said(tmp_path, name, rank)
        assert found["times"] == sorted(found["times"])
        assert found["paused"] > 0.2
        own = found["times"][-1] - found["times"][0]
        assert own < found["wall"] - 0.9 * found["paused"], "the turns of others are in its time"
        assert len(found["marks"]) == 300
        assert found["cpu"] < 1.2, "waiting took processor time"


def test_marks_name_the_turn_of_every_timed_step(tmp_path: Path) -> None:
    end = run_block(TurnBlock(name="b", launches=(rank_set("one", tmp_path), rank_set("two", tmp_path))))
    assert end.turns["seconds"].between(0, 0.25).all()  # the pauses do not count
    for name in ("one", "two"):
        marks = pd.Series(said(tmp_path, name)["marks"])
        timed = end.turns[end.turns["launch"] == name]
        counted = marks[marks >= turn_of_round(0)].value_counts()
        assert counted.to_dict() == {
            turn_of_round(number): steps for number, steps in zip(timed["round"], timed["steps"], strict=True)
        }
        assert (marks == 0).sum() >= 3 * marks.nunique() - 6


@pytest.mark.slow  # turns of 50 ms, many rounds of them
def test_chance_decides_the_order_of_a_round(tmp_path: Path) -> None:
    end = run_block(
        TurnBlock(name="b", launches=(rank_set("one", tmp_path, steps=900), rank_set("two", tmp_path, steps=900)))
    )
    first = end.turns[end.turns["place"] == 0]["launch"].value_counts()
    assert first.min() >= 2


@pytest.mark.slow  # the same, of four rank sets
def test_what_is_compared_has_neighbouring_turns(tmp_path: Path) -> None:
    sets = tuple(
        rank_set(f"{side}-{ranks}", tmp_path, ranks=ranks, steps=400) for side in ("old", "new") for ranks in (1, 2)
    )
    turns = run_block(TurnBlock(name="pairs", launches=sets)).turns
    whole = [one for _, one in turns.groupby("round") if len(one) == 4]
    assert len(whole) > 3
    for one in whole:
        place = one.set_index("launch")["place"]
        assert {abs(place[f"old-{ranks}"] - place[f"new-{ranks}"]) for ranks in (1, 2)} == {1}


@pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")
def test_a_single_rank_has_its_turns_on_the_cores_of_each_and_is_home_at_the_end(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    home = f"os.sched_setaffinity(0, {{{cores}[rank]}})\ntime.sleep(0.5 * (rank < ranks - 1))  # the last is first\n"
    # No epoch ends: where one does before a step of a turn was timed, that round has no turn of the launch.
    program = _RANK.replace("turns = join", f"{home}turns = join").replace("step == steps // 2", "False")
    program += "assert os.sched_getaffinity(0) == {" + f"{cores}[rank]" + "}\n"
    sets = (rank_set("one", tmp_path, program=program), rank_set("two", tmp_path, ranks=2, program=program))
    end = run_block(TurnBlock(name="b", launches=sets))
    assert end.codes == {"one": 0, "two": 0}, (tmp_path / "one.log").read_text()
    bound = end.turns[end.turns["steps"] > 0].groupby("launch")["bound"]
    first, second = map(str, cores)
    assert set(bound.get_group("one")) == {first, second} and set(bound.get_group("two")) == {f"{first};{second}"}
    of_one = end.turns[end.turns["launch"] == "one"]
    assert [(number, bound) for number, bound in zip(of_one["round"], of_one["bound"], strict=True)] == [
        (number, (first, second)[number % 2]) for number in range(len(of_one))
    ]


def test_a_job_writes_down_the_commands_of_its_launches_when_it_has_its_nodes(tmp_path: Path) -> None:
    sets = [rank_set(name, tmp_path, steps=200) for name in "ab"]
    for one in sets:
        (tmp_path / one.name).write_text("".join(f"{word}\0" for word in one.words))
    later = tuple(
        replace(one, words=(), words_file=str(tmp_path / one.name), exit_file=str(tmp_path / f"{one.name}.exit"))
        for one in sets
    )
    file = tmp_path / "block.json"
    block = TurnBlock(name="job", launches=later, rounds=str(tmp_path / "rounds.parquet"))
    file.write_bytes(encode(BlockSeries(blocks=(block,))))
    words = [sys.executable, "-m", "harness.cli.job_blocks", file, "a-node-without-an-address", "0"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "a-node-without-an-address" in ended.stdout
    assert {(tmp_path / f"{name}.exit").read_text() for name in "ab"} == {"0\n"}
    assert set(pd.read_parquet(tmp_path / "rounds.parquet")["launch"]) == {"a", "b"}


class PlannedDevice:
    """A device whose memory in use is what is planned: before the first set, and with it."""

    def __init__(self, before: int, with_one: int) -> None:
        self._uses = [before, with_one]

    def memory(self) -> list[MemoryUse]:
        return [MemoryUse(used=self._uses.pop(0), total=100)]


# A launch that says whether it takes turns, and how many launches train apart in their stead.
_PLAIN = """
import json, os, sys
from harness.base.turns import APART, BLOCK, TURNS
words = {name: os.environ.get(name) for name in (APART, BLOCK, TURNS)}
with open(sys.argv[4] + ".words", "w") as file:
    json.dump([words[APART], words[BLOCK]], file)
if words[TURNS]:
    exec(open(sys.argv[4] + ".turns.py").read())
"""


@pytest.mark.parametrize(("with_one", "apart"), [(55, False), (56, True)])
def test_a_device_that_does_not_hold_all_sets_has_them_train_one_after_the_other(
    with_one: int, apart: bool, tmp_path: Path
) -> None:
    sets = [rank_set(name, tmp_path, program=_PLAIN) for name in ("one", "two")]
    for name in ("one", "two"):
        (tmp_path / f"{name}.turns.py").write_text(_RANK)
    block = TurnBlock(name="b", launches=tuple(sets))
    end = run_block(block, device=PlannedDevice(before=10, with_one=with_one))
    assert end.codes == {"one": 0, "two": 0}
    assert end.turns.empty == apart
    for name in ("one", "two"):
        assert json.loads((tmp_path / f"{name}.words").read_text()) == (["2", None] if apart else [None, "b"])


def test_a_set_that_finds_no_memory_trains_alone_afterwards(tmp_path: Path) -> None:
    fails_in_turns = "import os, sys\nsys.exit(1 if os.environ.get('HARNESS_TURNS') else 0)\n"
    (tmp_path / "two").mkdir()
    (tmp_path / "one.turns.py").write_text(_RANK)
    waits = rank_set("one", tmp_path, steps=50, program=_PLAIN)
    sets = (waits, rank_set("two", tmp_path / "two", program=fails_in_turns))
    end = run_block(TurnBlock(name="b", launches=sets), device=PlannedDevice(before=0, with_one=0))
    assert end.codes == {"one": 0, "two": 0}
    assert end.turns.empty


def test_launches_without_an_end_of_their_own_are_refused_where_a_device_does_not_hold_them(tmp_path: Path) -> None:
    sets = (rank_set("one", tmp_path), rank_set("two", tmp_path))
    with pytest.raises(UserError, match="BATCH_PER_RANK"):
        run_block(TurnBlock(name="b", launches=sets, seconds=5.0), device=PlannedDevice(before=10, with_one=90))


def test_memory_in_use_is_that_of_the_gpus_that_may_be_used() -> None:
    answer = "GPU-a, 1000, 80000\nGPU-b, 500, 80000\n"
    assert parse_memory(answer, {"GPU-b"}) == (MemoryUse(used=500 * 2**20, total=80000 * 2**20),)
    before = [MemoryUse(used=0, total=100), MemoryUse(used=60, total=100)]
    with_one = [MemoryUse(used=30, total=100), MemoryUse(used=60, total=100)]
    assert not holds(before, with_one, 2)  # the second set is on the other device too


def test_a_set_that_fails_leaves_the_others_to_go_on(tmp_path: Path) -> None:
    broken = _RANK.replace("    turns.step()", "    turns.step()\n    if step == 60 and rank == 1: os._exit(7)")
    (tmp_path / "b").mkdir()
    # As mpirun does, the shell would wait for rank 0: it ends with the first that fails.
    failing = rank_set("bad", tmp_path / "b", ranks=2, program=broken)
    script = failing.words[2].replace(
        "code=0; for job in $(jobs -p); do wait $job || code=$?; done; exit $code",
        "wait -n || { code=$?; kill $(jobs -p); exit $code; }; wait",
    )
    failing = LaunchSpec(name="bad", words=("bash", "-c", script), log=failing.log)
    end = run_block(TurnBlock(name="b", launches=(rank_set("good", tmp_path), failing)))
    assert end.codes == {"good": 0, "bad": 7}
    assert len(said(tmp_path, "good")["times"]) == 300


def test_a_set_that_never_starts_is_no_hang(tmp_path: Path) -> None:
    missing = LaunchSpec(name="bad", words=("bash", "-c", "exit 3"), log=str(tmp_path / "bad.log"))
    end = run_block(TurnBlock(name="b", launches=(rank_set("good", tmp_path, steps=50), missing)))
    assert end.codes == {"good": 0, "bad": 3}
    assert end.turns.empty  # nothing to compare with


def left(mark: str) -> list[int]:
    """Return the processes that were started with `mark` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TURNS_TEST") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_whatever_ends_the_block_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    sets = (rank_set("one", tmp_path, steps=100_000), rank_set("two", tmp_path, ranks=2, steps=100_000))
    import msgspec

    file = tmp_path / "block.json"
    block = TurnBlock(name="b", launches=sets, rounds=str(tmp_path / "rounds.parquet"))
    file.write_bytes(msgspec.json.encode(BlockSeries(blocks=(block,))))
    mark = f"{os.getpid()}-{number}"
    referee = subprocess.Popen(
        [sys.executable, "-m", "harness.sweep.block_program", str(file)],
        env=os.environ | {"TURNS_TEST": mark},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while len(left(mark)) < 6 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    referee.send_signal(number)
    referee.wait(timeout=120)
    deadline = time.monotonic() + 120
    while left(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left(mark)


def test_a_host_whose_names_have_no_address_is_reached_from_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "nowhere.invalid")
    assert block_program.reachable_address("nowhere.invalid") == "127.0.0.1"
    with pytest.raises(UserError, match="nowhere"):
        block_program.reachable_address("elsewhere.invalid")
