"""Which source a release's gates read, and who is told the controller's credentials."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from canaryctl.common.metrics import MetricKind, MetricRef, Signal
from canaryctl.controller.artifact.schema import SecretRef
from canaryctl.controller.model import Release
from canaryctl.controller.prometheus import PrometheusSettings
from canaryctl.controller.sources import NO_SERVER, Sources
from canaryctl.gates.samples import Missing
from canaryctl.gates.sources.base import Target
from tests.support.releases import document, release

REFS = {Signal.REQUESTS: MetricRef("requests_total", MetricKind.COUNTER)}
TARGET = Target("r1-0", "http://127.0.0.1:9/metrics", {"instance": "r1-0"})


class Server:
    """Answers every query with nothing; keeps the headers that it was sent."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append({k.lower(): v for k, v in self.headers.items()})
                body = b'{"status": "success", "data": {"result": []}}'
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def own() -> Iterator[Server]:
    with closing(Server()) as found:
        yield found


@pytest.fixture
def foreign() -> Iterator[Server]:
    with closing(Server()) as found:
        yield found


def chosen(metrics: dict[str, Any] | None) -> Release:
    return release(document=document(rollout={"metrics": metrics}))


def test_without_prometheus_engines_are_scraped() -> None:
    sources = Sources(None)
    assert sources.of(chosen(None)) is sources.scrape
    assert sources.of(chosen({"source": "scrape"})) is sources.scrape
    assert sources.fault(chosen(None)) is None


def test_the_settings_choose_where_the_artifact_does_not(own: Server) -> None:
    sources = Sources(PrometheusSettings(own.url))
    assert sources.of(chosen(None)).name == "prometheus"
    assert sources.of(chosen(None)) is sources.of(chosen({"source": "prometheus"}))
    assert sources.of(chosen({"source": "scrape"})) is sources.scrape
    # Readiness and draining are asked of the engine itself, always.
    assert sources.scrape.name == "scrape"


def test_a_prometheus_that_nobody_named_refuses_the_release_and_passes_nothing() -> None:
    sources = Sources(None)
    lost = chosen({"source": "prometheus"})
    assert sources.fault(lost) == NO_SERVER
    found = sources.of(lost).read(TARGET, REFS, 1.0)
    assert found.values == {Signal.REQUESTS: Missing(NO_SERVER)}


def test_credentials_go_to_the_own_server_alone(
    own: Server, foreign: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hush")
    settings = PrometheusSettings(
        own.url,
        headers={"X-Scope-OrgID": SecretRef(from_env="TOKEN")},
        bearer_token=SecretRef(from_env="TOKEN"),
    )
    sources = Sources(settings)
    for url in (own.url, own.url + "/", foreign.url):
        metrics = {"source": "prometheus", "url": url}
        assert sources.fault(chosen(metrics)) is None
        sources.of(chosen(metrics)).read(TARGET, REFS, time.time())
    assert [headers["authorization"] for headers in own.asked] == ["Bearer hush"] * 2
    assert len(foreign.asked) == 1
    assert "hush" not in str(foreign.asked)
