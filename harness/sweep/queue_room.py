"""Whether a queue that was full takes another job."""

import math
import time

_FULL_S = 60.0  # how long a full queue is left alone, unless a job of this sweep ends


class QueueRoom:
    """How many jobs of this sweep a queue takes: any number, until it has said that it is full."""

    def __init__(self) -> None:
        self._jobs = math.inf  # below so many jobs in the queue, or from `_retry_at` on, another one is tried
        self._retry_at = 0.0

    def takes_more(self, jobs: int) -> bool:
        """Return whether another job should be tried, with `jobs` jobs of this sweep in the queue."""
        if jobs >= self._jobs and time.monotonic() < self._retry_at:
            return False
        self._jobs = math.inf
        return True

    def is_full(self, jobs: int, *, certain: bool) -> None:
        """Submit nothing more with `jobs` jobs in the queue: until one ends, or for a while where that is `certain`."""
        self._jobs = jobs
        self._retry_at = time.monotonic() + _FULL_S if certain else math.inf
