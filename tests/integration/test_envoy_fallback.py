"""What users see of a pool that fails: its fallback's answers wherever that is possible."""

import asyncio
import http.client
import json
import time

import pytest

from canaryctl.runtimes.load.generate import run_load
from canaryctl.runtimes.load.profile import Profile
from canaryctl.runtimes.load.report import LoadReport
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


@pytest.mark.parametrize("mode", ["reset", "close", "unavailable", "error"])
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
