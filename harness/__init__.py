"""Measure how well synchronous TensorFlow training scales over MPI."""

__version__ = "0.1.0"
