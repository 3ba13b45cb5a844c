"""One page on a run that hangs: which rank is missing where, and every rank's last exchanges and stack."""

from collections.abc import Sequence
from dataclasses import dataclass

END = "end of the script"
"""What the last exchange of a run is called."""


_SHOWN = 6  # calls of a rank's ring on the page


_FRAMES = 4  # of its Python stack


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One exchange between ranks. `channel` and `number` tell which; times in seconds on the rank's own clock.

    `exit` is 0 while it goes on.
    """

    channel: str
    number: int
    label: str
    bytes: int
    entry: float
    exit: float

    @property
    def open(self) -> bool:
        """Whether the rank is still inside."""
        return self.exit == 0

    def __str__(self) -> str:
        size = f", {self.bytes:,} bytes" if self.bytes else ""
        return f"{self.label} (call {self.number} of {self.channel}{size})"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankState:
    """What one rank wrote down: its last exchanges, oldest first, and its Python stack, innermost last.

    `place`: where it is in the user's script, in words; empty where there is none.
    """

    rank: int
    host: str
    pid: int
    now: float
    calls: tuple[Call, ...]
    stack: tuple[str, ...]
    place: str = ""

    @property
    def waiting(self) -> Call | None:
        """The exchange that the rank is in."""
        return next((call for call in reversed(self.calls) if call.open), None)


def describe_hang(states: Sequence[RankState | None], reason: str) -> str:
    """Return one page: who is missing where, then every rank's last exchanges and stack; None for a silent rank."""
    lines = [reason, *_verdicts(states), ""]
    for rank, state in enumerate(states):
        if state is None:
            lines.append(f"rank {rank} wrote nothing: its process is gone, or blocked outside of Python")
            continue
        lines.append(f"rank {rank} on {state.host}, process {state.pid}:")
        for call in state.calls[-_SHOWN:]:
            ended = "waiting" if call.open else f"{(call.exit - call.entry) * 1e3:.3f} ms"
            lines.append(f"  {state.now - call.entry:9.3f} s ago  {ended:>12}  {call}")
        lines += [f"  {line}" for frame in state.stack[-_FRAMES:] for line in frame.splitlines()]
    return "\n".join(lines)


def describe_parting(states: Sequence[RankState | None]) -> str:
    """Return one sentence on ranks that wait for each other at different places of a user's script."""
    places = [f"rank {state.rank}: {state.place}" for state in states if state is not None and state.place]
    return (
        f"the ranks have gone different ways in the script ({'; '.join(places)}): what decides how long a loop goes "
        "on, or whether a step is made, must be the same on all ranks, as a thread, a timer or another process is not: "
        "have it follow from steps, losses or clocks, or run it with -n 1"
    )


def _verdicts(states: Sequence[RankState | None]) -> list[str]:
    """Return a sentence for every rank that is not where the longest waiting one waits."""
    waiting = [(state, state.waiting) for state in states if state is not None and state.waiting is not None]
    calls = [(state, call) for state, call in waiting if call is not None]
    if not calls:
        return ["no rank is waiting any more"]
    # A rank that waits at the end of its script has left out what the others still wait in, however long each does.
    first, awaited = max(calls, key=lambda pair: (pair[1].label != END, pair[0].now - pair[1].entry))
    which = (awaited.channel, awaited.number, awaited.label)
    present = [state.rank for state, call in calls if (call.channel, call.number, call.label) == which]
    verb = "waits" if len(present) == 1 else "wait"
    lines = [f"rank {', '.join(map(str, present))} {verb} in {awaited}"]
    for rank, state in enumerate(states):
        if rank in present:
            continue
        where = "it does not answer"
        if state is not None:
            where = f"it waits in {state.waiting}" if state.waiting else f"it is in {_script_line(state.stack)}"
        lines.append(f"rank {rank} is missing: it never reached that call; {where}")
    if len(lines) == 1:
        lines.append(f"all ranks are there: the network or the MPI library hangs, first seen by rank {first.rank}")
    return lines


def _script_line(stack: Sequence[str]) -> str:
    """Return the innermost line of a stack that is neither TensorFlow's, Keras's nor ours."""
    foreign = ("site-packages", "harness/transparent", "/lib/python", "<frozen")
    for frame in reversed(stack):
        if not any(part in frame for part in foreign):
            return " ".join(frame.split())
    return " ".join(stack[-1].split()) if stack else "no Python at all"
