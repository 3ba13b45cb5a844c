"""Which MPI, TensorFlow, cores, compiler and GPUs are here, and what is wrong with them."""
