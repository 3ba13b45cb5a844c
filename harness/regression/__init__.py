"""Guarding a result: baselines, comparisons, verdicts, histories.

In: launches of two states of code.
Out: a verdict: pass, small change, regression, improvement, or cannot tell.
Never: compares other machines or workloads without saying so, or looks again at a level that does not allow for it.
"""
