"""The connections of a block's ranks to its referee. Anyone on the network may connect: nobody else is listened to."""

import contextlib
import hmac
import secrets
import selectors
import socket
import time
from dataclasses import dataclass, field

from harness.base.turns import LONGEST_LINE, READY, Greeting, TurnReport, keep_alive

_STRANGERS = 256  # that have not greeted; the oldest goes when one more comes
_PAUSE_S = 0.05  # without a descriptor for one more connection


@dataclass(kw_only=True, eq=False)
class RankConnection:
    """A connection from `host`, and that of a rank when it has sent its `greeting`.

    `lines` are what it has said since it was last told something, `rest` is the beginning of a line. `set_number` is
    the set whose rank it is, -1 before.
    """

    socket: socket.socket
    host: str
    greeting: Greeting | None = None
    set_number: int = -1
    rest: bytes = b""
    lines: list[str] = field(default_factory=list)

    @property
    def cores(self) -> str:
        """The cores that the rank may use."""
        return self.greeting.cores if self.greeting else ""

    @property
    def is_open(self) -> bool:
        """Whether it has been closed on neither side."""
        return self.socket.fileno() >= 0

    def tell(self, line: str) -> None:
        """Send a line; a rank that has died is not told: its launcher ends the set."""
        with contextlib.suppress(OSError):
            self.socket.sendall(f"{line}\n".encode())


class RankConnections:
    """The server at `host` for the ranks of `sets` sets, each of which has a password of its own.

    What a connection does ends that connection at worst: one that sends no greeting with a password, a line that is
    too long or not understood, or that breaks off, is closed.
    """

    def __init__(self, host: str, sets: int) -> None:
        self._host = host
        self._passwords = [secrets.token_hex(16) for _ in range(sets)]
        self._server = socket.create_server((host, 0), backlog=4096)
        self._server.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._strangers: dict[RankConnection, None] = {}  # the oldest first

    def address(self, set_number: int) -> str:
        """Return the address, port and password of the ranks of a set."""
        return f"{self._host}:{self._server.getsockname()[1]}:{self._passwords[set_number]}"

    def listen(self, patience_s: float) -> list[RankConnection]:
        """Wait for what ranks say, and return those that have said something."""
        speakers = []
        for key, _ in self._selector.select(timeout=patience_s):
            if key.fileobj is self._server:
                self._accept()
            elif key.data.is_open and self._take_in(key.data):
                speakers.append(key.data)
        return speakers

    def close(self, rank: RankConnection) -> None:
        """Close a connection; a rank that waits ends with it."""
        self._strangers.pop(rank, None)
        if rank.is_open:
            self._selector.unregister(rank.socket)
            rank.socket.close()

    def close_all(self) -> None:
        """Close the server and what is left."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self.close(key.data)
        self._server.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, address = self._server.accept()
        except (BlockingIOError, ConnectionError):  # it has gone already
            return
        except OSError:  # there is no descriptor left, or no memory
            if self._strangers:
                self.close(next(iter(self._strangers)))
            time.sleep(_PAUSE_S)
            return
        with contextlib.suppress(OSError):  # it has been reset: the first read tells
            keep_alive(connection)
        rank = RankConnection(socket=connection, host=address[0])
        self._selector.register(connection, selectors.EVENT_READ, rank)
        self._strangers[rank] = None
        if len(self._strangers) > _STRANGERS:
            self.close(next(iter(self._strangers)))

    def _take_in(self, rank: RankConnection) -> bool:
        """Read what was sent; return whether a rank has said something."""
        content = b""
        with contextlib.suppress(OSError):
            content = rank.socket.recv(LONGEST_LINE)
        *lines, rank.rest = (rank.rest + content).split(b"\n")
        too_long = max(map(len, (*lines, rank.rest))) > LONGEST_LINE
        if not content or too_long or not all(self._understands(rank, line) for line in lines):
            self.close(rank)
            return False
        return bool(lines)

    def _understands(self, rank: RankConnection, sent: bytes) -> bool:
        """Take a line, the first as a greeting; return False where it is none of a rank's."""
        if rank.greeting is None:
            return self._admit(rank, sent)
        line = sent.decode(errors="replace")
        if line != READY and TurnReport.parse(line) is None:
            return False
        rank.lines.append(line)
        return True

    def _admit(self, rank: RankConnection, sent: bytes) -> bool:
        """Take the first line of a connection; nothing of it is read before its password is known."""
        word = sent.split(b" ", 2)[1:2]
        matches = [hmac.compare_digest(word[0], known.encode()) for known in self._passwords] if word else []
        greeting = Greeting.parse(sent.decode(errors="replace")) if any(matches) else None
        if greeting is None:
            return False
        rank.greeting = greeting
        rank.set_number = matches.index(True)
        del self._strangers[rank]
        return True
