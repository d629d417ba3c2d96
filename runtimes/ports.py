"""Ports of a range that was agreed upon, so that it can be opened or published beforehand."""

import socket
from collections.abc import Callable, Sequence
from itertools import cycle

from canaryctl.common.errors import TemporaryError


def free_ports(ports: Sequence[int], host: str) -> Callable[[], int]:
    """Gives the next of ``ports`` that nothing listens on at ``host``, one after the other and
    then from the start; TemporaryError when all are taken."""
    following = cycle(ports)

    def free_port() -> int:
        for port, _ in zip(following, ports, strict=False):
            if is_free(host, port):
                return port
        raise TemporaryError(
            f"all ports from {ports[0]} to {ports[-1]} are taken at {host}; end what listens "
            "there, or give more of them"
        )

    return free_port


def is_free(host: str, port: int) -> bool:
    """Whether one could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
