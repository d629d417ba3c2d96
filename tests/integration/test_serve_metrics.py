"""``canaryctl serve`` telling of itself: a running daemon, asked over HTTP."""

import re
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from canaryctl.controller.settings import Settings
from canaryctl.controller.store import open_store
from tests.support.artifacts import artifact, first, write
from tests.support.cli import Cli, Running, eventually
from tests.support.prometheus import free_port

pytestmark = pytest.mark.timeout(120)

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


class Daemon:
    def __init__(self, cli: Cli, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.running: Running = cli.start("serve")

    def get(self, path: str) -> httpx.Response | None:
        try:
            return httpx.get(self.url + path, timeout=5, trust_env=False)
        except httpx.TransportError:
            return None

    def healthy(self) -> bool:
        answer = self.get("/healthz")
        return answer is not None and answer.status_code == httpx.codes.OK

    def families(self) -> dict[str, Metric]:
        answer = self.get("/metrics")
        assert answer is not None
        assert answer.headers["content-type"].startswith("text/plain")
        return {family.name: family for family in text_string_to_metric_families(answer.text)}

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """Series of that name by the values of their labels, in the order of the labels."""
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for family in self.families().values()
            for sample in family.samples
            if sample.name == name
        }


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("state"), CANARYCTL_SERVE_PORT=str(free_port()))


@pytest.fixture(scope="module")
def daemon(cli: Cli) -> Iterator[Daemon]:
    found = Daemon(cli, int(cli.env["CANARYCTL_SERVE_PORT"]))
    eventually("it answers", found.healthy)
    yield found
    done = found.running.end()
    assert done.code == 0, done.err
    removed = cli.run("remove", "chat")
    assert removed.code == 0, removed.err


@pytest.fixture(scope="module")
def stable(cli: Cli, daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> None:
    done = cli.release(write(tmp_path_factory.mktemp("first"), first(1)))
    assert done.code == 0, done.err


def test_before_there_is_a_service(daemon: Daemon) -> None:
    assert daemon.values("canaryctl_store_up") == {(): 1}
    (labels,) = daemon.values("canaryctl_build_info")
    assert all(re.match(r"\d+\.\d+", value) for value in labels)
    assert daemon.values("canaryctl_releases") == {}


def test_it_says_what_became_of_releases(daemon: Daemon, stable: None) -> None:
    assert daemon.values("canaryctl_releases") == {("promoted", "succeeded", "chat"): 1}
    eventually("it acts", lambda: daemon.values("canaryctl_lease_held") == {("chat",): 1})
    wanted = daemon.values("canaryctl_weight_wanted_percent")
    assert list(wanted.values()) == [100]
    assert daemon.values("canaryctl_weight_effective_percent") == wanted
    assert daemon.values("canaryctl_tick_failures_total") == {("chat",): 0}
    assert daemon.values("canaryctl_tick_duration_seconds_count")[("chat",)] > 3
    assert daemon.values("canaryctl_tick_lateness_seconds_count")[("chat",)] > 3
    assert daemon.values("canaryctl_effects_retried_total")[("chat",)] >= 0


def test_it_shows_the_gates_of_an_active_release(
    cli: Cli, daemon: Daemon, stable: None, tmp_path: Path
) -> None:
    still = {"steps": [{"weight": 25, "bake": "1m"}]}
    begun = cli.run(
        "release", write(tmp_path, artifact("good", 2, rollout=still)), "--detach", "--json"
    )
    assert begun.code == 0, begun.err
    release = begun.document["release"]
    try:
        key = ("max_concurrency", release, "chat")
        eventually(
            "the gate has looked", lambda: daemon.values("canaryctl_gate_value").get(key, 0) > 0
        )
        assert key in daemon.values("canaryctl_gate_limit")
        assert key in daemon.values("canaryctl_gate_baseline")
        outcomes = {
            labels[1]: value
            for labels, value in daemon.values("canaryctl_gate_outcome").items()
            if labels[0] == "max_concurrency"
        }
        assert set(outcomes) == {"passed", "failed", "inconclusive", "error"}
        assert sum(outcomes.values()) == 1
        eventually(
            "a step is in force",
            lambda: 25 in daemon.values("canaryctl_weight_effective_percent").values(),
        )
        assert ("held", "progressing", "chat") in daemon.values("canaryctl_releases")
        documented = set(re.findall(r"^\| `(canaryctl_[a-z_]+)`", PAGE, re.MULTILINE))
        shown = {
            family.name + ("_total" if family.type == "counter" else "")
            for family in daemon.families().values()
        }
        assert shown == documented
    finally:
        assert cli.run("abort", release, "--reason", "seen").code == 0

    def over() -> bool:
        return ("rolled_back", "rolled_back", "chat") in daemon.values("canaryctl_releases")

    eventually("it is rolled back", over)
    eventually("no gate is left", lambda: daemon.values("canaryctl_gate_outcome") == {})
    with open_store(Settings.from_environment(cli.env)) as store:
        assert {(s, p.value): n for (s, p), n in store.count_releases().items()} == {
            ("chat", "succeeded"): 1,
            ("chat", "rolled_back"): 1,
        }


def test_a_second_daemon_takes_the_port_over(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cli = Cli(tmp_path, CANARYCTL_SERVE_PORT=str(port))
        second = cli.start("serve")
        stderr = second.process.stderr
        assert stderr is not None
        said = ""
        while "canaryctl serves" not in said:
            said += stderr.readline()
    found = Daemon.__new__(Daemon)
    found.url, found.running = f"http://127.0.0.1:{port}", second
    eventually("it has the port", found.healthy)
    done = second.end()
    assert done.code == 0
    assert "CANARYCTL_SERVE_PORT" in said + done.err


def test_a_database_that_is_gone_is_told(tmp_path: Path) -> None:
    port = free_port()
    own = Cli(tmp_path / "state", CANARYCTL_SERVE_PORT=str(port))
    daemon = Daemon(own, port)
    eventually("it answers", daemon.healthy)
    with closing(sqlite3.connect(tmp_path / "state" / "canaryctl.db")) as database:
        database.execute("DROP TABLE releases")
    try:
        eventually("the store is down", lambda: daemon.values("canaryctl_store_up") == {(): 0})
        assert daemon.values("canaryctl_build_info")
        eventually("it is unwell", lambda: not daemon.healthy())
        answer = daemon.get("/healthz")
        assert answer is not None
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert "database" in answer.json()["reason"]
    finally:
        daemon.running.end()
