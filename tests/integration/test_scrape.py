"""Scraping real servers over real sockets, the bad ones too."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from canaryctl.common.metrics import MetricKind, MetricRef, Signal
from canaryctl.gates.deltas import Skipped, delta
from canaryctl.gates.samples import Delta, Missing, Scrape, Series
from canaryctl.gates.samples import Histogram as Buckets
from canaryctl.gates.sources import scrape
from canaryctl.gates.sources.base import Target
from canaryctl.gates.sources.scrape import ScrapeSource

REFS = {
    Signal.TTFT: MetricRef("engine:ttft_seconds", MetricKind.HISTOGRAM),
    Signal.REQUESTS: MetricRef(
        "engine:requests", MetricKind.COUNTER, sum_over=("finished_reason",)
    ),
    Signal.ERRORS: MetricRef(
        "engine:requests",
        MetricKind.COUNTER,
        match={"finished_reason": "error"},
        born_at_zero=False,
        exists_with="engine:requests",
    ),
    Signal.RUNNING: MetricRef("engine:running", MetricKind.GAUGE),
}
TEXT = "text/plain; version=0.0.4; charset=utf-8"
TIMEOUT_S = 0.5

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """Answers each GET with ``answer``; counts connections."""

    def __init__(self) -> None:
        self.answer: Answer = send(b"")
        self.connections: set[tuple[str, int]] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.connections.add(self.client_address)
                try:
                    outer.answer(self)
                except OSError:  # the reader left, as it should
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def send(body: bytes, kind: str = TEXT, status: int = 200) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def drip(chunk: bytes, times: int, pause_s: float) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", TEXT)
        handler.send_header("content-length", str(len(chunk) * times))
        handler.end_headers()
        for _ in range(times):
            handler.wfile.write(chunk)
            time.sleep(pause_s)

    return answer


def silent(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(3 * TIMEOUT_S)
    handler.close_connection = True


def cut(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-type", TEXT)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b"engine:running 1\n")
    handler.close_connection = True


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as found:
        yield found


@pytest.fixture
def source() -> Iterator[ScrapeSource]:
    with closing(ScrapeSource(TIMEOUT_S)) as found:
        yield found


def read(source: ScrapeSource, server: Server, at: float = 1.0) -> Scrape:
    return source.read(Target("c0", server.url, {}), REFS, at)


def test_a_real_client_library_is_read_and_differenced(
    source: ScrapeSource, server: Server
) -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    ttft = Histogram("engine:ttft_seconds", "x", ["m"], registry=registry, buckets=[0.1, 1.0])
    requests = Counter("engine:requests", "x", ["finished_reason"], registry=registry)
    Gauge("engine:running", "x", registry=registry).set(3)
    ttft.labels("m").observe(0.05)
    requests.labels("stop").inc(5)
    server.answer = send(generate_latest(registry))
    before = read(source, server, 1.0)
    assert before.born is not None
    assert before.born <= time.time()
    assert before.values[Signal.ERRORS] == Series({})

    ttft.labels("m").observe(0.5)
    ttft.labels("m").observe(5.0)
    requests.labels("stop").inc(2)
    requests.labels("error").inc()  # born at 1 between the two scrapes
    server.answer = send(generate_latest(registry))
    after = read(source, server, 3.0)
    assert len(server.connections) == 1  # one connection, used again

    found = delta(before, after)
    assert isinstance(found, Delta)
    histogram = found.values[Signal.TTFT]
    assert isinstance(histogram, Buckets)
    assert [count for _, count in histogram.buckets] == [0, 1, 2]
    errors, total = found.values[Signal.ERRORS], found.values[Signal.REQUESTS]
    assert isinstance(errors, Series)
    assert isinstance(total, Series)
    assert (errors.total, total.total) == (1.0, 3.0)
    assert found.values[Signal.RUNNING] == Series({(): 3.0})

    page = generate_latest(registry).decode()
    lines = [line for line in page.splitlines() if not line.startswith("process_start_time")]
    server.answer = send("\n".join([*lines, "process_start_time_seconds 5", ""]).encode())
    restarted = delta(after, read(source, server, 5.0))
    assert isinstance(restarted, Skipped)
    assert "restarted" in restarted.reason


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (send(b"down", status=503), "answered 503"),
        (send(b"moved", status=302), "answered 302"),
        (send(b"<html>", "text/html"), "text/html"),
        (send(b'{"a": 1}', "application/json"), "application/json"),
        (send(b"engine:running \xff\n"), "not UTF-8"),
        (send(b""), "absent"),
        (silent, "no answer within"),
        (drip(b"engine:running 1\n", 40, 0.05), "no complete answer within"),
        (cut, "cannot be read"),
    ],
)
def test_bad_answers_are_missing_with_the_reason_in_bounded_time(
    source: ScrapeSource, server: Server, answer: Answer, says: str
) -> None:
    server.answer = answer
    started = time.monotonic()
    found = read(source, server)
    assert time.monotonic() - started < 2 * TIMEOUT_S + 0.5
    for value in found.values.values():
        assert isinstance(value, Missing)
        assert says in value.reason, value.reason
    server.answer = send(b"engine:running 2\n")
    assert read(source, server).values[Signal.RUNNING] == Series({(): 2.0})


def test_a_huge_answer_is_not_read_to_its_end(
    source: ScrapeSource, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "MAX_BYTES", 100_000)
    server.answer = send(b"engine:running 1\n" * 1_000_000)
    value = read(source, server).values[Signal.RUNNING]
    assert isinstance(value, Missing)
    assert "larger than 100000 bytes" in value.reason


def test_a_large_page_costs_little(server: Server) -> None:
    registry = CollectorRegistry()
    edges = [0.02 * 1.1 ** (k / 2) for k in range(190)]
    wanted = Histogram("engine:ttft_seconds", "x", registry=registry, buckets=edges)
    wanted.observe(1.0)
    for k in range(20):
        Histogram(f"other_{k}_seconds", "x", ["a"], registry=registry, buckets=edges).labels("b")
    body = generate_latest(registry)
    assert len(body) > 200_000
    server.answer = send(body)
    with closing(ScrapeSource(5.0)) as source:
        read(source, server)
        spent = []
        for _ in range(20):
            started = time.thread_time()
            found = read(source, server)
            spent.append(time.thread_time() - started)
    assert isinstance(found.values[Signal.TTFT], Buckets)
    assert sorted(spent)[10] < 0.03  # about 0.003 where it was measured


def test_a_timeout_must_be_positive() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        ScrapeSource(0.0)
