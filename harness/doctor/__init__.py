"""Which MPI, TensorFlow, cores, compiler and GPUs are here, and what is wrong with them.

In: this machine.
Out: a finding and a fix for each thing that runs need.
Never: changes the machine; what may crash is tried in a process of its own.
"""
