"""What every room stands on: errors, files, processes, the cache, and facts about this machine.

In: paths, commands, what the kernel says of this machine.
Out: files written whole or not at all, child processes that end, facts about the machine.
Never: knows a word of training, or removes, renames or replaces a path but through `removal`.
"""

__version__ = "0.2.0"

AUTHORS = "The mpi-tf-harness maintainers"
"""Whom references name as author."""
ADDRESS = ""
"""Where the project is, https://...: its owner sets it. CITATION.cff and pyproject.toml repeat it; a test says so."""
