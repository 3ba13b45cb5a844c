"""The harness beside its alternatives on the same network, data and cores.

In: the networks and contenders that are asked for, and Pythons of other libraries.
Out: a bench's record: every contender's steps in turns, and their ratios.
Never: times contenders one after the other, or trains them on other rows than the harness.
"""
