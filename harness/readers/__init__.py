"""Readers for users' scripts: each MPI rank gets its own rows of a data set, and reads no others."""
