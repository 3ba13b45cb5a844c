"""Ranks in step: the MPI world, reductions, sync policies.

In: the ranks of an MPI world, with tensors to sum.
Out: sums that are equal bit for bit on all ranks, with their times; placement, energy, hangs.
Never: chooses another way to sum without a line in the record.
"""
