"""What communication costs on this machine: measured, fitted, compared, written down.

In: a launcher, message sizes and settings to compare.
Out: fitted message costs with their samples, in results/probes.
Never: measures beside a sweep on the same cores.
"""
