"""Who gets which share of the requests, while weights and pools change under load."""

import itertools
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

from canaryctl.runtimes.routers.base import RouteTable
from canaryctl.runtimes.routers.envoy import EnvoyRouter
from tests.support.envoy import (
    CANARY,
    STABLE,
    Stream,
    Upstream,
    Users,
    pool,
    request,
    table,
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
    canary.mode("gateway")
    answer = request(port, headers=headers)
    assert (answer.status, answer.artifact) == (502, CANARY)


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
