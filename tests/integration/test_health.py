"""The health page, as real sockets answer it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from canaryctl.runtimes.health import Health, read_health
from canaryctl.runtimes.httpclient import client


@contextmanager
def answering(status: int) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/health"
        thread.join()


@pytest.mark.parametrize(
    ("status", "health"), [(200, Health.GOOD), (503, Health.DEAD), (500, Health.SILENT)]
)
def test_statuses(status: int, health: Health) -> None:
    with answering(status) as url, client(2.0) as http:
        assert read_health(http, url) is health


def test_nobody_listening_is_told_apart_from_no_answer() -> None:
    with socket.socket() as silent, client(0.1) as http:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/health"
        assert read_health(http, url) is Health.REFUSED
        silent.listen()
        assert read_health(http, url) is Health.SILENT
