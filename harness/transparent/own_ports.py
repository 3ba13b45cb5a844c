"""Ports of ranks above 0, and of the witness: where a script asks for a certain port, they listen at a free one.

A script that serves its metrics at a fixed port works in one process. Whoever asks at that port is answered by rank 0;
what the rank itself asks there goes to the port that it has got.
"""

import socket
from collections.abc import Callable
from typing import Any

from harness.transparent.patch import HorovodScript, wrapped


class OwnPorts:
    """Replaces `bind` and `connect` of Python's sockets."""

    def __init__(self) -> None:
        self._ports: dict[int, int] = {}  # what this process has got for what it has asked

    def install(self) -> None:
        """Put the replacements in place, for child processes too."""
        members: Any = socket.socket
        for name, replacement in (("bind", self._bind), ("connect", self._connect), ("connect_ex", self._connect)):
            setattr(members, name, wrapped(getattr(socket.socket, name), replacement))

    def _bind(self, original: Callable[..., None], sock: socket.socket, address: Any) -> None:
        if HorovodScript.active or not _is_internet(sock, address) or not address[1]:
            original(sock, address)
            return
        original(sock, (address[0], 0, *address[2:]))
        self._ports[address[1]] = sock.getsockname()[1]

    def _connect(self, original: Callable[..., Any], sock: socket.socket, address: Any) -> Any:
        if _is_internet(sock, address) and address[1] in self._ports and _is_this_host(address[0]):
            address = (address[0], self._ports[address[1]], *address[2:])
        return original(sock, address)


def _is_internet(sock: socket.socket, address: Any) -> bool:
    return sock.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple) and len(address) > 1


def _is_this_host(host: str) -> bool:
    return host in ("", "localhost", "0.0.0.0", "::", "::1", socket.gethostname()) or host.startswith("127.")
