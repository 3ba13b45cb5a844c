"""Sessions: launches without an hour's pause between them share what the machine was like; how far sessions differ."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from harness.analysis.useful_time import COMPUTATION, LOAD_BALANCE, PARALLEL, SERIALISATION, TRANSFER

SESSION_GAP = timedelta(hours=1)

STEP = "step time"
EFFICIENCY = "efficiency"

# The standard deviations between sessions, of the logarithm, that stand in where too few sessions were measured: for
# sessions of different days, and for those of one day.
#
# Different days: measured by four sessions of MNIST-DNN on 1 and 2 ranks on one shared virtual machine with 2 cores
# (November 2026): efficiency 80.8, 80.9, 73.4 and 75.1 %, computation scaling 98, 102, 90 and 96 %, parallel efficiency
# 86.1, 84.5, 83.0 and 84.7 %. The factors of the parallel efficiency were not measured singly and are taken to differ
# as it does. That of a step's time was not measured: 15 % is assumed.
DEFAULT_DEVIATION: Mapping[str, float] = {
    STEP: 0.15,
    EFFICIENCY: 0.050,
    PARALLEL: 0.015,
    LOAD_BALANCE: 0.015,
    SERIALISATION: 0.015,
    TRANSFER: 0.015,
    COMPUTATION: 0.052,
}
DEFAULT_SESSIONS = 4
DEFAULT_FREEDOM = 3

# One day: measured on the same kind of machine by 25 sessions of MNIST-DNN and Adult-DNN in five series of one to six
# hours (docs/regression.md). Pooled over the series and rounded up; load balance and serialisation, which hardly
# differed, are at least 0.5 %.
SAME_DAY_DEVIATION: Mapping[str, float] = {
    STEP: 0.035,
    EFFICIENCY: 0.015,
    PARALLEL: 0.020,
    LOAD_BALANCE: 0.005,
    SERIALISATION: 0.005,
    TRANSFER: 0.013,
    COMPUTATION: 0.013,
}
SAME_DAY_SESSIONS = 25
SAME_DAY_FREEDOM = 20


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
