"""Envoy's own life: started once, found again, restarted with its last table, removed."""

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from canaryctl.common.errors import InputError, PermanentError, TemporaryError
from canaryctl.runtimes.httpclient import client
from canaryctl.runtimes.processes import Processes
from canaryctl.runtimes.routers.base import Pool, RouterAddress, RouteTable
from canaryctl.runtimes.routers.envoy import EnvoyRouter
from tests.support.envoy import CANARY, Upstream, request, table


def markers(tmp_path: Path) -> dict[str, str]:
    return {"CANARYCTL_ROUTER": "chat", "CANARYCTL_ROUTER_DIR": str(tmp_path / "routers" / "chat")}


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
