"""The least change of interest (``--threshold``): commands take it in per cent, verdicts have it as a fraction."""

DEFAULT_THRESHOLD = 0.03
"""Part of the speed or efficiency: the least change that makes a difference to anyone."""
LARGEST_THRESHOLD = 0.5
"""The largest that a command takes."""
