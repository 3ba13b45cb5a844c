"""Many steps of Keras's `fit` in one execution of a compiled loop."""

from harness.transparent.fused.fused_fit import FusingRanks, Fusion

__all__ = ["Fusion", "FusingRanks"]
