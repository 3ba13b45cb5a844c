"""Measured parts that predictions start from."""

from dataclasses import replace

from harness.prediction.measured_base import MeasuredBase
from tests.labs.factories import make_workload


def base(**changes: object) -> MeasuredBase:
    plain = MeasuredBase(
        workload=make_workload(),
        scaling="strong",
        ranks=1,
        rows=64_000,
        bytes=712_440,
        compute_s=300e-6,
        low_s=290e-6,
        high_s=310e-6,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]
