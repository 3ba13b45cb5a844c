"""Unmodified TensorFlow scripts on many ranks: Keras 3, hand-written loops, TensorFlow-1 graphs."""
