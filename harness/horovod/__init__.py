"""Horovod's interface for TensorFlow on the reductions of `harness.comm`: ``import harness.horovod`` offers it.

Under `harness run` that has happened already. With any other launcher, ``mpirun python script.py`` say, this import in
the script's first line has ``import horovod.tensorflow`` find ours. It is not an installed package of Horovod's name,
which would come in the way of the real one.

In: calls that a script makes by Horovod's names.
Out: sums, averages and broadcasts of `harness.comm`, or one sentence that says what is not offered.
Never: answers a call with another meaning than Horovod's.
"""

from harness.horovod.aliases import offer

offer()
