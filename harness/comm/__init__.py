"""Ranks in step: the MPI world, reductions, sync policies."""
