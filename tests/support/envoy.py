"""The real Envoy, real servers behind it and real clients before it."""

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from canaryctl.runtimes.routers.base import Pool, PoolMember, RouteTable
from canaryctl.runtimes.routers.envoy import EnvoyRouter

SERVER = Path(__file__).parent / "upstream.py"
STABLE, CANARY = "chat@1", "chat@2"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def artifact(self) -> str | None:
        return self.headers.get("x-canaryctl-artifact")


def request(
    port: int,
    body: bytes = b"{}",
    headers: dict[str, str] | None = None,
    *,
    path: str = "/v1/completions",
    connection: http.client.HTTPConnection | None = None,
) -> Answer:
    to = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    to.request("POST", path, body, headers or {})
    response = to.getresponse()
    data = response.read()
    if connection is None:
        to.close()
    names = {name.lower() for name in response.headers}
    merged = {name: ", ".join(response.headers.get_all(name, [])) for name in names}
    return Answer(response.status, merged, data)


@dataclass(frozen=True)
class Upstream:
    process: subprocess.Popen[bytes]
    port: int

    def mode(self, mode: str) -> None:
        assert request(self.port, mode.encode(), path="/_mode").status == 200

    @property
    def served(self) -> int:
        return int(json.loads(request(self.port, path="/_served").body)["served"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def upstream() -> Iterator[Callable[[str], Upstream]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> Upstream:
        process = subprocess.Popen([sys.executable, SERVER, name], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        return Upstream(process, int(process.stdout.readline()))

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def stable(upstream: Callable[[str], Upstream]) -> Upstream:
    return upstream("stable")


@pytest.fixture
def canary(upstream: Callable[[str], Upstream]) -> Upstream:
    return upstream("canary")


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def router(tmp_path: Path, port: int) -> Iterator[EnvoyRouter]:
    router = EnvoyRouter(tmp_path)
    router.ensure("chat", port)
    yield router
    router.remove("chat")


def pool(name: str, artifact: str, *upstreams: Upstream, weight: int) -> Pool:
    members = tuple(
        PoolMember(f"{name}-{index}", "127.0.0.1", upstream.port)
        for index, upstream in enumerate(upstreams)
    )
    fallback = "stable" if name == "canary" else None
    return Pool(name, artifact, f"sha256:{artifact}", members, weight, fallback)


def table(stable: Upstream, canary: Upstream, weight: int) -> RouteTable:
    return RouteTable(
        "chat",
        (
            pool("stable", STABLE, stable, weight=100 - weight),
            pool("canary", CANARY, canary, weight=weight),
        ),
    )


class Users:
    """Clients that ask without a pause, and keep every answer."""

    def __init__(self, port: int, count: int = 3, body: bytes = b"{}") -> None:
        self.answers: list[Answer] = []
        self.failures: list[str] = []
        self._port, self._body = port, body
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def __enter__(self) -> "Users":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        while not self._done.is_set():
            try:
                answer = request(self._port, self._body, connection=connection)
                self.answers.append(answer)
                if answer.status != 200:
                    self.failures.append(f"{answer.status} {answer.body[:100]!r}")
            except (http.client.HTTPException, OSError) as error:
                self.failures.append(repr(error))
                connection.close()
        connection.close()


class Stream:
    """A streaming response, begun and read on demand."""

    def __init__(self, port: int, *, tokens: int, gap_s: float) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        body = json.dumps({"stream": True, "max_tokens": tokens, "gap_s": gap_s})
        self._connection.request("POST", "/v1/completions", body)
        self.response = self._connection.getresponse()
        self.first = self.response.readline()

    def rest(self) -> bytes:
        try:
            return self.first + self.response.read()
        finally:
            self._connection.close()
