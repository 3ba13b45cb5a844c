"""A study from the outside: plan, render, launch, status.

In: a `Sweep` and how it is submitted.
Out: a record or a failure for each of its points.
Never: trains, or submits a launch twice; what is about to happen is on disk before it does.
"""
