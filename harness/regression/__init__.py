"""Guarding a result: baselines, comparisons, verdicts, histories."""
