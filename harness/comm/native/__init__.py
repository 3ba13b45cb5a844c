"""The reduction as a TensorFlow operation in C++, built for the MPI library and TensorFlow in use."""
