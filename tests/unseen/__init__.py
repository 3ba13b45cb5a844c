"""Random things that nobody has named: each must be right or refused."""
