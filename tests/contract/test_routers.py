"""What every router must keep to, run over each that is registered."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from canaryctl.runtimes.httpclient import client
from canaryctl.runtimes.routers.base import Pool, PoolMember, Router, RouteTable
from canaryctl.runtimes.routers.registry import ROUTERS, router

SERVICE = "contract"


class _Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[PoolMember]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Engine)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield PoolMember("engine-0", "127.0.0.1", server.server_address[1])
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(params=sorted(ROUTERS))
def any_router(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Router]:
    made = router(request.param, tmp_path)
    yield made
    made.remove(SERVICE)


def get(url: str) -> httpx.Response:
    with client(5) as http:
        return http.get(url)


def one_pool(name: str, engine: PoolMember, weight: int = 100) -> RouteTable:
    return RouteTable(SERVICE, (Pool(name, f"{name}@1", "sha256:1", (engine,), weight),))


def test_registered_under_its_own_name(any_router: Router) -> None:
    assert any_router.name in ROUTERS


def test_nothing_is_known_of_a_service_never_ensured(any_router: Router) -> None:
    assert any_router.effective_weights(SERVICE) is None
    any_router.remove(SERVICE)


def test_ensure_is_idempotent_and_serves_503_before_the_first_table(
    any_router: Router, port: int
) -> None:
    address = any_router.ensure(SERVICE, port)
    assert any_router.ensure(SERVICE, port) == address
    assert get(address.url).status_code == 503


def test_a_table_comes_into_force_and_is_read_back(
    any_router: Router, port: int, engine: PoolMember
) -> None:
    address = any_router.ensure(SERVICE, port)
    for name in ("one", "two"):
        any_router.apply(one_pool(name, engine))
        any_router.apply(one_pool(name, engine))
        assert any_router.effective_weights(SERVICE) == {name: 100}
        answer = get(address.url)
        assert answer.status_code == 200
        assert answer.headers["x-canaryctl-artifact"] == f"{name}@1"
        assert answer.headers["x-canaryctl-instance"] == "engine-0"
    any_router.apply(one_pool("two", engine, weight=0))
    assert any_router.effective_weights(SERVICE) == {"two": 0}
    assert get(address.url).status_code == 503


def test_another_object_takes_the_same_router_over(
    any_router: Router, port: int, engine: PoolMember, tmp_path: Path
) -> None:
    address = any_router.ensure(SERVICE, port)
    any_router.apply(one_pool("one", engine))
    successor = router(any_router.name, tmp_path)
    assert successor.effective_weights(SERVICE) == {"one": 100}
    assert successor.ensure(SERVICE, port) == address
    successor.remove(SERVICE)
    assert any_router.effective_weights(SERVICE) is None
    with pytest.raises(httpx.ConnectError):
        get(address.url)
