"""Ranks that are threads: what they have in the place of MPI."""

import threading


class Gathering:
    """A gather of ranks that are threads."""

    def __init__(self, ranks):
        self.values = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=20)

    def at(self, rank):
        def gather(value, label):
            self.values[rank] = value
            self.barrier.wait()
            found = list(self.values)
            self.barrier.wait()
            return found

        return gather
