"""Who has which rank after some are lost."""

from hypothesis import given
from hypothesis import strategies as st

from harness.comm.elastic_world import Member, assign_slots


def member(slot, pid):
    return Member(slot=slot, host="here", pid=pid, began=0.0)


def test_those_that_are_left_move_up():
    before = [member(0, 10), member(1, 11), member(2, 12), member(3, 13)]
    now, change = assign_slots(before, [before[0], before[3]])
    assert [(left.pid, left.slot) for left in now] == [(10, 0), (13, 1)]
    assert [gone.pid for gone in change.failed] == [11, 12]
    assert change.old_slots == (0, 3)


@given(st.integers(1, 6), st.data())
def test_slots_never_have_a_gap_and_no_one_who_stays_changes_order(ranks, data):
    before = [member(slot, slot) for slot in range(ranks)]
    alive = data.draw(st.lists(st.sampled_from(before), min_size=1, unique=True).map(lambda left: sorted(left, key=id)))
    now, change = assign_slots(before, alive)
    assert sorted(member.slot for member in now) == list(range(len(alive)))
    stayed = [(old.slot, new.slot) for old, new in zip(alive, now, strict=True)]
    assert sorted(stayed) == sorted(stayed, key=lambda pair: pair[1])
    assert len(change.failed) == len(before) - len(alive)
