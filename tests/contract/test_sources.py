"""What every sample source promises: it never raises for what the far side does."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from canaryctl.common.errors import UnknownNameError
from canaryctl.common.metrics import MetricKind, MetricRef, Signal
from canaryctl.gates.samples import Missing, Series
from canaryctl.gates.sources import registry
from canaryctl.gates.sources.base import SampleSource, Target

REFS = {
    Signal.REQUESTS: MetricRef("requests", MetricKind.COUNTER),
    Signal.TTFT: MetricRef("ttft", MetricKind.HISTOGRAM),
}


@pytest.fixture
def page() -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"requests_total 7.0\n"
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=sorted(registry.SOURCES))
def source(request: pytest.FixtureRequest) -> Iterator[SampleSource]:
    with closing(registry.build(request.param, timeout_s=5.0)) as found:  # type: ignore[type-var]
        yield found


def target(url: str) -> Target:
    return Target("c0", url, {"service": "chat", "role": "canary"})


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_it_reads_what_is_there_and_names_what_is_not(source: SampleSource, page: str) -> None:
    scrape = source.read(target(page), REFS, 12.5)
    assert (scrape.instance, scrape.at, scrape.source) == ("c0", 12.5, source.name)
    assert scrape.values[Signal.REQUESTS] == Series({(): 7.0})
    ttft = scrape.values[Signal.TTFT]
    assert isinstance(ttft, Missing)
    assert "ttft" in ttft.reason
    assert "requests_total 7.0" in scrape.raw


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}/metrics", "http://[::/metrics", "nonsense", "http://", ""]
)
def test_nobody_there_is_missing_with_the_reason(source: SampleSource, url: str) -> None:
    scrape = source.read(target(url.format(port=unused_port())), REFS, 1.0)
    assert set(scrape.values) == set(REFS)
    for value in scrape.values.values():
        assert isinstance(value, Missing)
        assert value.reason
    assert scrape.raw == ""


def test_it_may_be_used_by_several_threads(source: SampleSource, page: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        scrapes = list(pool.map(lambda k: source.read(target(page), REFS, float(k)), range(64)))
    assert [scrape.at for scrape in scrapes] == [float(k) for k in range(64)]
    assert all(scrape.values[Signal.REQUESTS] == Series({(): 7.0}) for scrape in scrapes)


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="scrape"):
        registry.build("telepathy", timeout_s=1.0)
