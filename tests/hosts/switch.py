"""A network switch in software: ``python -m tests.hosts.switch CONTROL HOST=PID=ADDRESS ...``.

Plugs one TAP interface, ``eth0``, into the network namespace of each PID and passes frames between them, each held
back by the delay and at the rate of the sending host. CONTROL is a file of one line, ``DELAY_S BYTES_PER_S HOST ...``
(0: no limit; hosts whose line is cut: their frames are lost), which may be replaced while it runs. For kernels without
netem. Needs root. Prints ``ready``, then runs until it is killed.
"""

import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_INFORMATION, _OFFLOADED = 0x0002, 0x1000, 0x4000
_OFFLOADS = 1 | 2 | 4  # checksums and segmentation for IPv4 and IPv6: whole 64 KiB segments pass as one frame
_HEADER = 10  # bytes of `virtio_net_hdr` before each frame
_LOOK_S = 0.05
_FRAMES = 16  # read from one port before the others get their turn


def enter_network(namespace: str) -> None:
    """Move this process into a network namespace, given by its file."""
    handle = os.open(namespace, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(handle)


def open_port(pid: int, address: str) -> int:
    """Return the file of a new ``eth0`` with `address` in the network namespace of process `pid`."""
    enter_network(f"/proc/{pid}/ns/net")
    port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TAP | _NO_INFORMATION | _OFFLOADED))
    fcntl.ioctl(port, _TUNSETOFFLOAD, _OFFLOADS)
    subprocess.run(["ip", "addr", "add", address, "dev", "eth0"], check=True)
    subprocess.run(["ip", "link", "set", "eth0", "txqueuelen", "10000", "up"], check=True)
    return port


class Switch:
    """The hosts' ports, what is on its way, and since when each port's line is busy."""

    def __init__(self, hosts: dict[str, int], control: Path) -> None:
        self._hosts = hosts
        self._ports = list(hosts.values())
        self._control = control
        self._delay_s, self._rate = 0.0, 0.0
        self._learned: dict[bytes, int] = {}
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._busy = dict.fromkeys(self._ports, 0.0)
        self._cut: set[int] = set()
        self._count = 0

    def run(self) -> None:
        """Pass frames on for ever."""
        look = 0.0
        while True:
            now = time.monotonic()
            if now >= look:
                self._read_control()
                look = now + _LOOK_S
            due = min(self._waiting[0][0], look) if self._waiting else look
            for port in select.select(self._ports, [], [], max(0.0, due - now))[0]:
                self._receive(port)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, port, frame = heapq.heappop(self._waiting)
                self._send(port, frame)

    def _read_control(self) -> None:
        delay, rate, *cut = self._control.read_text().split()
        self._delay_s, self._rate = float(delay), float(rate)
        self._cut = {self._hosts[name] for name in cut}

    def _receive(self, port: int) -> None:
        for _ in range(_FRAMES):
            try:
                frame = os.read(port, 70_000)
            except BlockingIOError:
                return
            self._learned[frame[_HEADER + 6 : _HEADER + 12]] = port
            sending = (len(frame) - _HEADER) / self._rate if self._rate else 0.0
            self._busy[port] = max(self._busy[port], time.monotonic()) + sending
            self._count += 1
            heapq.heappush(self._waiting, (self._busy[port] + self._delay_s, self._count, port, frame))

    def _send(self, source: int, frame: bytes) -> None:
        known = self._learned.get(frame[_HEADER : _HEADER + 6])
        for port in [known] if known is not None else self._ports:
            if port == source or self._cut & {port, source}:
                continue
            try:
                os.write(port, frame)
            except OSError:  # the host is gone, or its queue is full: frames get lost on real networks too
                continue


def main() -> None:
    """Plug in the hosts and start."""
    home = f"/proc/{os.getpid()}/ns/net"
    saved = os.open(home, os.O_RDONLY)
    ports = {}
    for word in sys.argv[2:]:
        name, pid, address = word.split("=")
        ports[name] = open_port(int(pid), address)
    enter_network(f"/proc/self/fd/{saved}")
    os.setpriority(os.PRIO_PROCESS, 0, -20)  # a frame that is due goes before all ranks that poll
    print("ready", flush=True)
    Switch(ports, Path(sys.argv[1])).run()


if __name__ == "__main__":
    main()
