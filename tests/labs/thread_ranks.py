"""Ranks that are threads: what they have in the place of MPI."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np


class Gathering:
    """A gather of ranks that are threads."""

    def __init__(self, ranks):
        self.values = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=120)

    def at(self, rank):
        def gather(value, label):
            self.values[rank] = value
            self.barrier.wait()
            found = list(self.values)
            self.barrier.wait()
            return found

        return gather


class ThreadComm:
    """The communicator of one of several ranks that are threads."""

    def __init__(self, gathering, rank):
        self._gather = gathering.at(rank)
        self._rank = rank
        self._size = len(gathering.values)

    def Get_rank(self):
        return self._rank

    def Get_size(self):
        return self._size

    def Barrier(self):
        self.allgather(None)

    def allgather(self, value):
        return self._gather(value, "")

    def bcast(self, value, root=0):
        return self.allgather(value)[root]

    def Bcast(self, array, root=0):
        array[...] = self.allgather(array.copy())[root]

    def Allreduce(self, values, total, op):
        """Combine the ranks' values by the ufunc `op`."""
        total[...] = op.reduce(self.allgather(values))

    def Allgather(self, values, result):
        result[...] = np.stack(self.allgather(values))

    def Allgatherv(self, values, result):
        result[0][...] = np.concatenate(self.allgather(values))


def on_threads(size, work):
    """Return what `work` returns for the communicator of each of `size` ranks, which run at the same time."""
    gathering = Gathering(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(ThreadComm(gathering, rank)), range(size)))
