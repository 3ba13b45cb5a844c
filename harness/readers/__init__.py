"""Readers for users' scripts: each MPI rank gets its own rows of a data set, and reads no others.

In: a script's call for a data set.
Out: the rows of this rank, in batches.
Never: reads or keeps the rows of another rank.
"""
