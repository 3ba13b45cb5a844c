"""Unmodified TensorFlow scripts on many ranks: Keras 3, hand-written loops, TensorFlow-1 graphs.

In: a script that is not edited, and the ranks of an MPI world.
Out: the script's training divided over the ranks, and a record of it.
Never: averages gradients of rows that it has not seen to be independent: it trains whole, or refuses.
"""
