"""Is what a step makes of a batch a mean or a sum over independent rows? Found by steps made for observation only."""

from harness.transparent.probe.batch_coupling import MIXED, CouplingTrial, first_part, is_sum
from harness.transparent.probe.gradient_probe import DoubledBatch, GradientProbe, Trial
from harness.transparent.probe.step_probe import CheckTimes, handle_of, probe_function, probe_trainer, undrawn

__all__ = [
    "MIXED",
    "CheckTimes",
    "CouplingTrial",
    "DoubledBatch",
    "GradientProbe",
    "Trial",
    "first_part",
    "handle_of",
    "is_sum",
    "probe_function",
    "probe_trainer",
    "undrawn",
]
