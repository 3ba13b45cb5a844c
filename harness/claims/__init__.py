"""Repeating what was published.

In: published claims, and the sweeps that are here.
Out: the sweeps that would judge a claim, and a judgement on each.
Never: changes a published number, or starts a launch itself.
"""
