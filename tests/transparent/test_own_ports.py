"""A port that rank 0 listens at is another one on other ranks of its host; they reach their own there."""

import errno
import socket

import pytest

from harness.transparent.own_ports import OwnPorts


def test_a_rank_listens_elsewhere_than_rank_0_and_reaches_itself():
    ports = OwnPorts()
    with socket.create_server(("127.0.0.1", 0)) as first, socket.socket() as second, socket.socket() as client:
        address = first.getsockname()
        ports._bind(socket.socket.bind, second, address)
        second.listen()
        assert second.getsockname() != address
        ports._connect(socket.socket.connect, client, address)
        assert client.getpeername() == second.getsockname()
        with socket.socket() as other:
            ports._bind(socket.socket.bind, other, ("127.0.0.1", 0))
            assert other.getsockname()[1] not in (0, address[1])


def test_a_path_that_is_taken_stays_so(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.bind(path)
        with pytest.raises(OSError, match="in use") as raised:
            OwnPorts()._bind(socket.socket.bind, second, path)
        assert raised.value.errno == errno.EADDRINUSE
