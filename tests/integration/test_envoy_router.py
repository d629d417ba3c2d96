"""The router with the real Envoy, real servers behind it and real clients before it."""

import asyncio
import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from canaryctl.common.errors import InputError, PermanentError, TemporaryError
from canaryctl.runtimes.httpclient import client
from canaryctl.runtimes.load.generate import run_load
from canaryctl.runtimes.load.profile import Profile
from canaryctl.runtimes.load.report import LoadReport
from canaryctl.runtimes.processes import Processes
from canaryctl.runtimes.routers.base import Pool, PoolMember, RouterAddress, RouteTable
from canaryctl.runtimes.routers.envoy import EnvoyRouter

SERVER = Path(__file__).parents[1] / "support" / "upstream.py"
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


def markers(tmp_path: Path) -> dict[str, str]:
    return {"CANARYCTL_ROUTER": "chat", "CANARYCTL_ROUTER_DIR": str(tmp_path / "routers" / "chat")}


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


def artifacts_of(port: int, count: int) -> Iterator[str]:
    """Who served each of ``count`` requests: as cheap as a client can be."""
    asked = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    shape = re.compile(rb"content-length: (\d+)\r\n.*artifact: (\S+)\r\n.*\r\n\r\n", re.DOTALL)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for _ in range(count):
            connection.sendall(asked)
            seen = b""
            while (head := shape.search(seen)) is None or len(seen) < head.end() + int(head[1]):
                received = connection.recv(65536)
                assert received, f"closed after {seen!r}"
                seen += received
            assert seen.startswith(b"HTTP/1.1 200")
            yield head[2].decode()


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


def test_before_any_table_it_explains_itself(router: EnvoyRouter, port: int) -> None:
    answer = request(port)
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    error = json.loads(answer.body)["error"]
    assert "nothing serves chat" in error["message"]
    assert answer.artifact is None
    assert router.effective_weights("chat") == {}


def test_shares_follow_the_weights(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    router.apply(table(stable, canary, 5))
    assert router.effective_weights("chat") == {"stable": 95, "canary": 5}
    served = Counter(artifacts_of(port, 10_000))
    assert set(served) == {STABLE, CANARY}
    assert abs(served[CANARY] / 10_000 - 0.05) <= 0.01
    assert canary.served == served[CANARY]


def test_the_response_names_who_served_it_and_nobody_else_can(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    router.apply(table(stable, canary, 100))
    answer = request(port, headers={"x-canaryctl-artifact": "forged", "X-Canaryctl-Digest": "f"})
    assert answer.artifact == CANARY
    assert answer.headers["x-canaryctl-digest"] == f"sha256:{CANARY}"
    assert answer.headers["x-canaryctl-instance"] == "canary-0"
    assert b"forged" not in json.dumps(answer.headers).encode()
    assert b"x-canaryctl" not in answer.body


def test_clients_cannot_change_timeouts_and_retries(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    router.apply(table(stable, canary, 100))
    headers = {"x-envoy-upstream-rq-timeout-ms": "10", "x-envoy-retry-on": "5xx"}
    assert request(port, b'{"wait_s": 0.2}', headers).status == 200
    canary.mode("error")
    answer = request(port, headers=headers)
    assert (answer.status, answer.artifact) == (500, CANARY)


def test_thirty_weight_changes_lose_no_request_and_are_final(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    router.apply(table(stable, canary, 50))
    with Users(port) as users:
        for weight in itertools.islice(itertools.cycle((0, 30, 100)), 30):
            router.apply(table(stable, canary, weight))
            time.sleep(0.02)  # what was on its way when the read-back came has arrived
            begun = stable.served, canary.served
            time.sleep(0.04)
            if weight == 0:
                assert canary.served == begun[1]
            if weight == 100:
                assert stable.served == begun[0]
    assert users.failures == []
    assert {answer.artifact for answer in users.answers} == {STABLE, CANARY}
    assert len(users.answers) > 300


@pytest.mark.parametrize("mode", ["reset", "close", "unavailable"])
def test_what_the_canary_does_not_answer_is_answered_by_its_fallback(
    mode: str, router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    router.apply(table(stable, canary, 100))
    canary.mode(mode)
    answer = request(port, b"x" * 3_000_000)
    assert (answer.status, answer.artifact) == (200, STABLE)
    assert answer.headers["x-canaryctl-instance"] == "stable-0"
    assert json.loads(answer.body)["bytes"] == 3_000_000
    assert canary.served == 1


def test_a_body_beyond_the_limit_is_passed_on_but_not_sent_twice(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    router.apply(table(stable, canary, 100))
    assert json.loads(request(port, b"x" * 9_000_000).body)["bytes"] == 9_000_000
    canary.mode("unavailable")
    assert request(port, b"x" * 9_000_000).status == 503
    assert stable.served == 0


def test_a_canary_killed_under_load_costs_no_unanswered_request(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    router.apply(table(stable, canary, 50))
    with Users(port, body=b'{"wait_s": 0.005}') as users:
        time.sleep(0.3)
        canary.kill()
        time.sleep(0.3)
        router.apply(table(stable, canary, 0))
        time.sleep(0.1)
    assert users.failures == []
    assert {answer.artifact for answer in users.answers} == {STABLE, CANARY}


def test_streams_through_a_killed_canary_fail_only_where_they_were_being_answered(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    async def kill_under_load() -> LoadReport:
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, canary.process.kill)
        loop.call_later(1.5, router.apply, table(stable, canary, 0))
        return await run_load([f"http://127.0.0.1:{port}"], Profile(rate=80.0), duration_s=2.0)

    router.apply(table(stable, canary, 50))
    report = asyncio.run(kill_under_load())
    [summary] = report.targets.values()
    assert set(summary.failures) <= {"cut_off"}
    assert report.ok > 100
    assert report.artifacts[STABLE].failed == 0
    assert report.artifacts[CANARY].ok > 0


def test_a_response_begun_is_never_begun_again(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    router.apply(table(stable, canary, 100))
    canary.mode("cut")
    stream = Stream(port, tokens=6, gap_s=0.002)
    with pytest.raises(http.client.IncompleteRead):
        stream.rest()
    assert stable.served == 0


def test_a_hung_canary_is_left_to_the_progress_gate(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    router.apply(table(stable, canary, 100))
    canary.mode("hang")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    with pytest.raises(TimeoutError):
        request(port, connection=connection)
    connection.close()
    assert stable.served == 0


def test_a_stream_survives_weight_zero_and_the_end_of_its_pool(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    router.apply(table(stable, canary, 100))
    stream = Stream(port, tokens=20, gap_s=0.03)
    assert stream.response.getheader("x-canaryctl-artifact") == CANARY
    router.apply(table(stable, canary, 50))
    router.apply(table(stable, canary, 0))
    router.apply(RouteTable("chat", (pool("stable", STABLE, stable, weight=100),)))
    assert router.effective_weights("chat") == {"stable": 100}
    text = stream.rest().decode()
    assert text.count("canary-") == 20
    assert text.rstrip().endswith("[DONE]")


def test_pools_come_and_go_and_members_change_without_loss(
    router: EnvoyRouter, port: int, upstream: Callable[[str], Upstream], stable: Upstream
) -> None:
    alone = RouteTable("chat", (pool("stable", STABLE, stable, weight=100),))
    first, second = upstream("first"), upstream("second")
    router.apply(alone)
    with Users(port) as users:
        for members in ((first,), (first, second), (second,)) * 3:
            shared = (
                pool("stable", STABLE, stable, weight=50),
                pool("canary", CANARY, *members, weight=50),
            )
            router.apply(RouteTable("chat", shared))
            time.sleep(0.05)
            router.apply(alone)
    assert users.failures == []
    assert first.served > 0
    assert second.served > 0


def test_a_pool_without_members_hands_over_to_its_fallback(
    router: EnvoyRouter, port: int, stable: Upstream
) -> None:
    empty = (
        pool("stable", STABLE, stable, weight=50),
        pool("canary", CANARY, weight=50),
    )
    router.apply(RouteTable("chat", empty))
    assert {request(port).artifact for _ in range(20)} == {STABLE}


def test_one_dead_member_of_a_pool_costs_no_request(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    router.apply(RouteTable("chat", (pool("stable", STABLE, stable, canary, weight=100),)))
    canary.kill()
    assert {request(port).status for _ in range(40)} == {200}


def test_sessions_stick_and_move_only_to_the_pool_that_grows(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    def arms() -> dict[str, str | None]:
        sessions = [f"session-{index}" for index in range(200)]
        return {name: request(port, headers={"x-session-id": name}).artifact for name in sessions}

    before: dict[str, str | None] = {}
    for weight in (10, 40, 80):
        router.apply(table(stable, canary, weight))
        after = arms()
        assert after == arms()
        moves = {(before[name], after[name]) for name in before if before[name] != after[name]}
        assert moves <= {(STABLE, CANARY)}
        assert abs(Counter(after.values())[CANARY] / 200 - weight / 100) < 0.12
        before = after


def test_envoy_killed_comes_back_with_its_last_table(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream, tmp_path: Path
) -> None:
    address = router.ensure("chat", port)
    router.apply(table(stable, canary, 100))
    process = Processes().find(markers(tmp_path))
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(process.pid)], timeout=5)
    assert router.effective_weights("chat") is None
    with pytest.raises(TemporaryError, match="does not answer"):
        router.apply(table(stable, canary, 0))
    assert router.ensure("chat", port) == address
    assert router.effective_weights("chat") == {"stable": 0, "canary": 100}
    assert request(port).artifact == CANARY


def test_a_new_controller_finds_the_router_and_starts_no_other(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream, tmp_path: Path
) -> None:
    router.apply(table(stable, canary, 30))
    found = Processes().find(markers(tmp_path))
    others = [EnvoyRouter(tmp_path) for _ in range(4)]
    threads = [threading.Thread(target=other.ensure, args=("chat", port)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Processes().find(markers(tmp_path)) == found
    assert len(Processes().members(markers(tmp_path))) == 1
    assert others[0].effective_weights("chat") == {"stable": 70, "canary": 30}
    others[0].apply(table(stable, canary, 0))
    assert router.effective_weights("chat") == {"stable": 100, "canary": 0}


def test_controllers_that_start_together_start_one_envoy(tmp_path: Path, port: int) -> None:
    routers = [EnvoyRouter(tmp_path) for _ in range(4)]
    addresses: list[RouterAddress] = []
    threads = [
        threading.Thread(target=lambda each=each: addresses.append(each.ensure("chat", port)))
        for each in routers
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(addresses) == 4
        assert len(set(addresses)) == 1
        assert len(Processes().members(markers(tmp_path))) == 1
    finally:
        routers[0].remove("chat")


def test_apply_is_idempotent_and_rewrites_what_was_lost(
    router: EnvoyRouter, stable: Upstream, canary: Upstream, tmp_path: Path
) -> None:
    files = tmp_path / "routers" / "chat"
    router.apply(table(stable, canary, 30))
    written = {path: path.stat().st_mtime_ns for path in files.rglob("*.json")}
    router.apply(table(stable, canary, 30))
    assert {path: path.stat().st_mtime_ns for path in files.rglob("*.json")} == written
    (files / "rds" / "routes.json").write_text("{}")  # not moved into place: Envoy has not read it
    router.apply(table(stable, canary, 30))
    assert "weighted_clusters" in (files / "rds" / "routes.json").read_text()


def test_effective_weights_are_envoys_word_not_the_files(
    router: EnvoyRouter, stable: Upstream, canary: Upstream, tmp_path: Path
) -> None:
    router.apply(table(stable, canary, 30))
    routes = tmp_path / "routers" / "chat" / "rds" / "routes.json"
    routes.write_text(routes.read_text().replace('"weight": 30', '"weight": 99'))
    assert router.effective_weights("chat") == {"stable": 70, "canary": 30}


def test_the_admin_interface_tells_prometheus_and_cannot_end_envoy(
    router: EnvoyRouter, port: int, stable: Upstream, canary: Upstream
) -> None:
    address = router.ensure("chat", port)
    router.apply(table(stable, canary, 100))
    request(port)
    with client(5) as http:
        metrics = http.get(f"{address.admin_url}/stats/prometheus")
        ended = http.post(f"{address.admin_url}/quitquitquit")
    assert 'envoy_cluster_upstream_rq_total{envoy_cluster_name="canary"}' in metrics.text
    assert ended.status_code == 403
    assert request(port).status == 200


def test_a_taken_port_and_another_port_are_refused(
    router: EnvoyRouter, port: int, tmp_path: Path
) -> None:
    with pytest.raises(PermanentError, match=f"listens on port {port}"):
        router.ensure("chat", port + 1)
    with pytest.raises(TemporaryError, match="is taken by another"):
        router.ensure("other", port)
    assert not Processes().members({"CANARYCTL_ROUTER_DIR": str(tmp_path / "routers" / "other")})


def test_an_unknown_fallback_is_refused(router: EnvoyRouter, stable: Upstream) -> None:
    lone = Pool("canary", CANARY, "sha256:2", (), 100, fallback="nobody")
    with pytest.raises(InputError, match="nobody"):
        router.apply(RouteTable("chat", (lone,)))


def test_removed_is_gone_and_removing_again_does_nothing(
    router: EnvoyRouter, port: int, tmp_path: Path
) -> None:
    router.remove("chat")
    assert Processes().members(markers(tmp_path)) == ()
    assert router.effective_weights("chat") is None
    assert not (tmp_path / "routers" / "chat").exists()
    router.remove("chat")
    assert router.ensure("chat", port).url == f"http://127.0.0.1:{port}"
    assert router.effective_weights("chat") == {}


def test_an_envoy_that_cannot_start_says_why(tmp_path: Path, port: int) -> None:
    router = EnvoyRouter(tmp_path, envoy=Path("/bin/false"))
    with pytest.raises(TemporaryError, match="exit code 1"):
        router.ensure("chat", port)
