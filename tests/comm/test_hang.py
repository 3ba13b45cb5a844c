"""A rank that waits is noticed whatever becomes of the files by which ranks tell each other so."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base import exit_codes
from harness.comm.hang import REQUEST, Call, HangWatch, RankState, describe_hang, remove_reports
from harness.comm.world import World

OWN = ("request", "report.txt", "long-0", "long-12", "rank-3.json")
OTHERS = ("notes.txt", "request.txt", "rank-1.json.bak", "long-", ".gitignore", "rank-x.json")


class Alone:
    """A communicator of one rank."""

    def allgather(self, value: object) -> list[object]:
        return [value]


def test_only_names_of_ours_are_removed(tmp_path: Path) -> None:
    for name in (*OWN, *OTHERS):
        (tmp_path / name).write_text(name)
    (tmp_path / "rank-7.json").mkdir()
    (tmp_path / "figures").mkdir()
    (tmp_path / "long-5").symlink_to(tmp_path / "notes.txt")
    HangWatch(World(comm=Alone(), rank=0, size=1), tmp_path, 0.0).start()  # type: ignore[arg-type]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*OTHERS, "rank-7.json", "figures", "long-5"}
    remove_reports(tmp_path / "nowhere")


# One rank that waits for ever while the file system answers with an error.
WAITS = """
import os, pathlib, sys, time
from pathlib import Path
from harness.comm import hang
from harness.comm.world import World
number, broken = int(sys.argv[1]), sys.argv[2].split()

def fail(*words, **named):
    raise OSError(number, os.strerror(number))

class Alone:
    def allgather(self, value):
        return [value]

hang.LONG_S, hang.ANSWER_S = 0.2, 0.5
watch = hang.HangWatch(World(comm=Alone(), rank=0, size=1), Path(sys.argv[3]), 1.0)
watch.start()
for name in broken:
    if name == "write_atomic":
        hang.write_atomic = fail
    else:
        setattr(pathlib.Path, name, fail)
with watch.inside("a sum that never ends", 8):
    time.sleep(60)
print("it was not noticed")
"""


ALL = "stat mkdir write_atomic touch"


@pytest.mark.parametrize(
    ("broken", "number"),
    [
        ("stat", errno.ESTALE),
        ("unlink", errno.ESTALE),
        ("read_bytes read_text", errno.ESTALE),
        ("mkdir", errno.ESTALE),
        ("touch", errno.ESTALE),
        ("write_atomic", errno.ESTALE),
        (ALL, errno.ESTALE),
        (ALL, errno.EIO),
        (ALL, errno.ENOENT),
    ],
)
def test_an_error_of_the_file_system_ends_no_watch(tmp_path: Path, number: int, broken: str) -> None:
    words = [sys.executable, "-c", WAITS, str(number), broken, str(tmp_path / "hang")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (exit_codes.HANG, ""), ended.stderr
    assert "no progress for 1 s" in ended.stderr


def test_a_folder_in_the_place_of_the_request_is_no_request(tmp_path: Path) -> None:
    (tmp_path / REQUEST).mkdir()
    words = [sys.executable, "-c", WAITS, str(os.EX_OK), "", str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == exit_codes.HANG
    assert "no progress for 1 s" in ended.stderr
    assert (tmp_path / REQUEST).is_dir()


# What the report of a hang says: who waits where, and which rank is missing.


def state(rank, *calls, stack=()):
    return RankState(rank=rank, host="here", pid=rank, now=100.0, calls=calls, stack=stack)


def call(number, entry, left, label="gradients", channel="graph 0"):
    return Call(channel=channel, number=number, label=label, bytes=1000, entry=entry, exit=left)


def test_the_report_names_the_rank_that_is_missing_and_where_it_is():
    stuck = 'File "/home/me/train.py", line 7, in load\n    time.sleep(9)'
    page = describe_hang(
        [
            state(0, call(4, 80, 81), call(5, 90, 0)),
            state(1, call(4, 80, 81), stack=(stuck,)),
            state(2, call(5, 91, 0)),
        ],
        "no progress",
    )
    assert "rank 0, 2 wait in gradients (call 5 of graph 0, 1,000 bytes)" in page
    assert 'rank 1 is missing: it never reached that call; it is in File "/home/me/train.py", line 7' in page


def test_a_rank_that_has_ended_its_script_is_the_missing_one_however_long_the_others_wait():
    ended = state(1, call(8, 89.9, 0, "end of the script", "Python"))
    page = describe_hang([state(0, call(41, 90, 0)), ended], "no progress")
    assert "rank 1 is missing: it never reached that call; it waits in end of the script" in page


def test_the_report_tells_a_silent_rank_and_a_network_that_hangs():
    assert "rank 1 is missing: it never reached that call; it does not answer" in describe_hang(
        [state(0, call(1, 1, 0)), None], ""
    )
    both = describe_hang([state(0, call(1, 1, 0)), state(1, call(1, 2, 0))], "")
    assert "the network or the MPI library hangs" in both
