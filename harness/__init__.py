"""Measure how well synchronous TensorFlow training scales over MPI."""

from harness.base import __version__

__all__ = ["DataSet", "__version__"]


def __getattr__(name: str) -> object:
    """Return `DataSet`, the readers for users' scripts, which nothing else pays for."""
    if name == "DataSet":
        from harness.readers.script_data import DataSet

        return DataSet
    raise AttributeError(f"module 'harness' has no attribute '{name}'")
