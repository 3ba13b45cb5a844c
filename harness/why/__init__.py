"""Why a sweep does not scale: efficiencies, overheads by cause, and known causes.

In: a sweep's tables and its probe.
Out: efficiencies, the time beyond the ideal by cause, known causes with evidence.
Never: names a cause that no measured number shows.
"""
