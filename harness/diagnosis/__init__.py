"""Known causes of lost time: evidence from records, cost and fix."""
