"""What every room stands on: errors, files, processes, the cache, and facts about this machine."""

__version__ = "0.1.0"
