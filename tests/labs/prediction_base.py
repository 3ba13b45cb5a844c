"""Measured parts that predictions start from."""

from dataclasses import replace

from harness.prediction.extrapolation import MeasuredBase
from tests.labs.factories import make_workload


def base(**changes: object) -> MeasuredBase:
    plain = MeasuredBase(workload=make_workload(), bytes=712_440)
    return replace(plain, **changes)  # type: ignore[arg-type]
