"""Many steps of Keras's `fit` in one execution of a compiled loop."""

from harness.transparent.fused.fused_fit import Ended, FusingRanks, Fusion, Made

__all__ = ["Ended", "Fusion", "FusingRanks", "Made"]
