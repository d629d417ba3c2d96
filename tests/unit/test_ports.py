"""Ports of an agreed range, and the setting that names it."""

import socket

import pytest

from canaryctl.common.errors import InputError, TemporaryError
from canaryctl.controller.settings import Settings
from canaryctl.runtimes.ports import free_ports

HOST = "127.0.0.1"


def test_the_next_free_port_of_the_range_one_after_the_other() -> None:
    with socket.socket() as taken, socket.socket() as first, socket.socket() as last:
        for each in (taken, first, last):
            each.bind((HOST, 0))
        taken.listen()
        ports = [each.getsockname()[1] for each in (first, taken, last)]
        first.close()
        last.close()
        free_port = free_ports(ports, HOST)
        assert [free_port() for _ in range(3)] == [ports[0], ports[2], ports[0]]
        with pytest.raises(TemporaryError, match="all ports"):
            free_ports([ports[1]], HOST)()


def test_the_setting() -> None:
    def ports(given: str) -> range | None:
        environ = {"HOME": "/home/ann", "CANARYCTL_ROUTER_PORTS": given}
        return Settings.from_environment(environ).router_ports

    assert ports("8100-8109") == range(8100, 8110)
    assert Settings.from_environment({"HOME": "/home/ann"}).router_ports is None
    for bad in ("8100", "8109-8100", "0-5", "1-70000", "a-b", "8100-8109 "):
        with pytest.raises(InputError, match="FIRST-LAST"):
            ports(bad)
