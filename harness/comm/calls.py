"""When each synchronisation call of an epoch was entered and left."""

import numpy as np
import numpy.typing as npt

_FIRST = 1024


class CallLog:
    """Entry and exit of synchronisation calls, in seconds on this rank's clock, for one epoch at a time."""

    def __init__(self) -> None:
        self._times = np.empty((_FIRST, 2))
        self._count = 0

    def add(self, entry: float, left: float) -> None:
        """Append one call."""
        if self._count == len(self._times):
            self._times = np.concatenate([self._times, np.empty_like(self._times)])
        self._times[self._count] = entry, left
        self._count += 1

    def take(self) -> npt.NDArray[np.float64]:
        """Return float64 [calls, 2] (entry, exit) since the last take, and start anew."""
        times = self._times[: self._count].copy()
        self._count = 0
        return times
