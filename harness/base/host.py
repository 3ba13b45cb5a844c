"""Which computer this is, and since which start of it: process numbers mean something within one start only."""

import functools
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def host_name() -> str:
    """Return the name of this host."""
    return socket.gethostname()


@functools.cache
def boot_id() -> str:
    """Return what the kernel calls this start of the host, empty where it does not say."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessPlace:
    """A process: its number on a host, since a start of that host."""

    host: str
    boot: str
    process: int

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended; of another host's process nothing is known."""
        if self.host != host_name():
            return False
        return self.boot != boot_id() or not psutil.pid_exists(self.process)
