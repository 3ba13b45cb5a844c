"""What the report of a hang says: who waits where, and which rank is missing."""

from harness.comm.hang_page import Call, RankState, describe_hang


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
