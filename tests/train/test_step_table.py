"""The table of steps: the clocks of all hosts on one, and parts that sum to the step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.comm.host_clock import HostClock, Offset
from harness.schema.record import EpochRecord
from harness.train.step_table import on_one_clock, step_columns, with_parts

SAME = HostClock(begin=Offset(at=0.0, offset_s=0.0, error_s=0.0), end=Offset(at=100.0, offset_s=0.0, error_s=0.0))


def shifted(offset: float, drift: float) -> HostClock:
    """Return a clock that shows t + offset + drift * t when rank 0's shows t, estimated at 0 and at 100 s."""
    ahead = {t: offset + drift * t for t in (0, 100)}
    ends = [Offset(at=t + ahead[t], offset_s=ahead[t], error_s=error) for t, error in ((0, 1e-6), (100, 2e-6))]
    return HostClock(begin=ends[0], end=ends[1])


def columns(rank: int, begin: float, calls: np.ndarray) -> dict:
    return step_columns(
        rank=rank, epoch=0, begin=begin, losses=np.zeros(len(calls), np.float32), calls=calls - begin, period=0
    )


@given(st.floats(-1e5, 1e5), st.floats(-1e-4, 1e-4))
def test_times_of_another_host_come_back_on_rank_0s_clock(offset: float, drift: float) -> None:
    clock = shifted(offset, drift)
    true = np.linspace(3.0, 90.0, 7)
    assert clock.common(true * (1 + drift) + offset) == pytest.approx(true, abs=1e-7)
    assert clock.drift == pytest.approx(drift / (1 + drift), abs=1e-8)  # per second of its own
    assert clock.error_s == 2e-6


@given(st.floats(-1e4, 1e4), st.integers(0, 2**31))
def test_skew_is_the_wait_for_the_last_rank_and_wire_the_rest(offset: float, seed: int) -> None:
    """Whatever the clocks show: rank 1 enters last, so rank 0 waits and rank 1 does not."""
    generator = np.random.default_rng(seed)
    entry = np.cumsum(generator.uniform(1e-3, 2e-3, 20)) + 5
    late = generator.uniform(1e-4, 9e-4, 20)
    left = entry + late + 5e-5
    clock = shifted(offset, 1e-6)
    steps = [
        [columns(0, 5.0, np.column_stack([entry, left]))],
        [columns(1, clock_of(offset, 5.0), clock_of(offset, np.column_stack([entry + late, left])))],
    ]
    (first,), (second,) = on_one_clock(steps, [SAME, clock])
    assert first["skew_s"] == pytest.approx(late, abs=1e-7)
    assert second["skew_s"] == pytest.approx(0, abs=1e-7)
    for part in (first, second):
        assert part["wire_s"] == pytest.approx(5e-5, abs=1e-7)
        assert part["skew_s"] + part["wire_s"] == pytest.approx(part["exit_s"] - part["entry_s"], abs=1e-12)
        assert part["begin_s"] == pytest.approx(0, abs=1e-7)


def clock_of(offset, times):
    return times * (1 + 1e-6) + offset


def test_steps_without_a_call_have_no_parts_and_cost_nothing() -> None:
    steps = [
        [
            step_columns(
                rank=rank,
                epoch=0,
                begin=1.0,
                losses=np.zeros(6, np.float32),
                calls=np.array([[0.2, 0.3], [0.5, 0.6]]) + rank / 100,
                period=3,
            )
        ]
        for rank in range(2)
    ]
    converted = on_one_clock(steps, [SAME, SAME])
    assert np.isnan(converted[0][0]["wire_s"]).sum() == 4
    record = EpochRecord(epoch=0, steps=6, seconds=(1.0, 1.0), sync_seconds=(0.2, 0.2), train_loss=None)
    (found,) = with_parts([record], converted)
    assert found.skew_seconds == pytest.approx((0.02, 0.0))
    assert np.add(found.skew_seconds, found.wire_seconds) == pytest.approx(found.sync_seconds)
