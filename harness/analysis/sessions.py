"""Sessions: launches without an hour's pause between them, which share what the machine was like."""

from collections.abc import Sequence
from datetime import datetime, timedelta

SESSION_GAP = timedelta(hours=1)
SESSION_SPREAD = 0.02
"""The relative deviation between sessions that stands in where too few were measured."""


def sessions(times: Sequence[tuple[datetime, datetime]]) -> tuple[int, ...]:
    """Return the number of the session, from 0 in order of time, of launches that started and ended at `times`.

    A session ends where nothing runs for `SESSION_GAP`: what comes later may find the machine in another state
    (other neighbours on the host, another clock rate), which all its launches share. The levels are those of
    Kalibera & Jones, "Rigorous Benchmarking in Reasonable Time" (ISMM 2013): launches within sessions.
    """
    session_of_launch = [0] * len(times)
    session = -1
    session_end: datetime | None = None
    for place in sorted(range(len(times)), key=lambda place: times[place]):
        begin, end = times[place]
        if session_end is None or begin - session_end > SESSION_GAP:
            session += 1
            session_end = end
        session_end = max(session_end, end)
        session_of_launch[place] = session
    return tuple(session_of_launch)
