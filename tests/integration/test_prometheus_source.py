"""What a real Prometheus does to samples, and what is made of it."""

import base64
import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import MetricKind, MetricRef, Signal
from canaryctl.gates.deltas import NO_NEW_SAMPLE, Skipped, delta
from canaryctl.gates.samples import AMBIGUOUS, Delta, Missing, Scrape, Series
from canaryctl.gates.sources import prometheus as module
from canaryctl.gates.sources.base import Target
from canaryctl.gates.sources.prometheus import PrometheusSource
from tests.support.prometheus import Pages, Prometheus, free_port, labels, pages, write_targets

__all__ = ["pages"]

REFS = {
    Signal.REQUESTS: MetricRef("requests_total", MetricKind.COUNTER),
    Signal.ERRORS: MetricRef(
        "errors_total", MetricKind.COUNTER, born_at_zero=False, exists_with="requests_total"
    ),
}
BCRYPT = "$2b$04$abcdefghijklmnopqrstuu/LVz6MZlItEy42I2juLihZ66HnQx/cy"  # of "open sesame"
TLS = Path(__file__).parents[1] / "data" / "tls"


def page(requests: float, errors: float | None = None, born: float = 1.0) -> str:
    lines = [f"requests_total {requests}", f"process_start_time_seconds {born}"]
    if errors is not None:
        lines.append(f"errors_total {errors}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def server(pages: Pages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    found = Prometheus(folder, folder / "targets.json")
    names = ("steady", "vanishing", "restarting", "gap", "exact")
    pages.content |= {name: page(1) for name in names} | {"port": page(70, born=1.0)}
    write_targets(
        found.targets,
        [
            *((pages.address, name, labels(name)) for name in names),
            (pages.address, "steady", labels("twice", zone="a")),
            (pages.address, "steady", labels("twice", zone="b")),
            (pages.address, "steady", labels("moved")),
            (pages.address, "port", labels("old")),
            (pages.address, "steady", labels("other-role", role="stable")),
        ],
    )
    found.start()
    found.until_scraped([*names, "twice", "moved", "old", "other-role"], up=1)
    yield found
    found.stop()


@pytest.fixture
def source(server: Prometheus) -> Iterator[PrometheusSource]:
    with closing(PrometheusSource(2.0, url=server.url + "/")) as found:
        yield found


def read(source: PrometheusSource, instance: str) -> Scrape:
    return source.read(Target(instance, "", labels(instance)), REFS, time.time())


def read_new(source: PrometheusSource, instance: str, scrapes: int = 2) -> Scrape:
    """A readable scrape that began after now: the one under way may have an older page."""
    last = time.time()
    until = last + 20
    for _ in range(scrapes):
        while True:
            found = read(source, instance)
            if found.at > last and readable(found):
                break
            assert time.time() < until, found
            time.sleep(0.02)
        last = found.at
    return found


def readable(scrape: Scrape) -> bool:
    return not all(isinstance(value, Missing) for value in scrape.values.values())


def why(scrape: Scrape) -> str:
    assert not readable(scrape)
    (reason,) = {v.reason for v in scrape.values.values() if isinstance(v, Missing)}
    return reason


def total(found: Delta | Skipped, signal: Signal = Signal.REQUESTS) -> float:
    assert isinstance(found, Delta), found
    value = found.values[signal]
    assert isinstance(value, Series), value
    return value.total


def test_two_looks_at_one_sample_are_one(source: PrometheusSource) -> None:
    asked = time.time()
    first = source.read(Target("exact", "", labels("exact")), REFS, asked)
    again = source.read(Target("exact", "", labels("exact")), REFS, asked)
    assert (again.at, again.raw) == (first.at, first.raw)
    assert delta(first, again) == Skipped(NO_NEW_SAMPLE)


def test_differences_are_exact_whatever_lies_between(
    source: PrometheusSource, pages: Pages
) -> None:
    before = read_new(source, "exact")
    for requests in range(2, 103):
        pages.content["exact"] = page(requests, errors=1)
        time.sleep(0.01)
    after = read_new(source, "exact")
    found = delta(before, after)
    assert total(found) == 101
    # A counter born at 1 is one event; increase() would have said none.
    assert total(found, Signal.ERRORS) == 1
    assert isinstance(found, Delta)
    assert found.span_s == after.at - before.at


def test_a_series_that_left_the_page_is_not_read_from_the_past(
    source: PrometheusSource, pages: Pages, server: Prometheus
) -> None:
    pages.content["vanishing"] = page(5, errors=3)
    before = read_new(source, "vanishing")
    assert before.values[Signal.ERRORS] == Series({(): 3.0})
    pages.content["vanishing"] = page(6)
    after = read_new(source, "vanishing")
    assert server.query('errors_total{instance="vanishing"}[5m]') != []
    assert after.values[Signal.ERRORS] == Series({})
    found = delta(before, after)
    assert isinstance(found, Skipped)
    assert "vanished" in found.reason


def test_a_restarted_process_is_told_by_its_start(source: PrometheusSource, pages: Pages) -> None:
    before = read_new(source, "restarting")
    pages.content["restarting"] = page(1000, born=2.0)  # no counter fell
    after = read_new(source, "restarting")
    assert (before.born, after.born) == (1.0, 2.0)
    found = delta(before, after)
    assert isinstance(found, Skipped)
    assert "another" in found.reason


@pytest.mark.parametrize("fault", [500, None, "requests_total many\n"])
def test_a_failed_scrape_is_missing_and_the_next_good_one_lost_nothing(
    source: PrometheusSource, pages: Pages, server: Prometheus, fault: str | int | None
) -> None:
    pages.content["gap"] = page(10)
    before = read_new(source, "gap")
    pages.content["gap"] = fault
    server.until("a failed scrape", lambda: server.query('up{instance="gap"} == 0'))
    assert "failed (up is 0)" in why(read(source, "gap"))
    pages.content["gap"] = page(25)
    assert total(delta(before, read_new(source, "gap", scrapes=1))) == 15


def test_duplicates_are_an_error_that_names_them(source: PrometheusSource) -> None:
    reason = why(read(source, "twice"))
    assert reason.startswith(AMBIGUOUS)
    assert '{zone="a"}, {zone="b"}' in reason


def test_another_role_is_another_target(source: PrometheusSource, server: Prometheus) -> None:
    assert 'role="canary"' in why(read(source, "other-role"))
    other = Target("other-role", "", labels("other-role", role="stable"))
    server.until("it is read", lambda: readable(source.read(other, REFS, time.time())))


def test_an_old_sample_is_stale_with_its_age(source: PrometheusSource, server: Prometheus) -> None:
    target = Target("steady", "", labels("steady"))
    server.until("100 s are no age", lambda: readable(source.read(target, REFS, time.time() + 100)))
    reason = why(source.read(target, REFS, time.time() + 200))
    assert reason.startswith("stale: ")
    age_s = re.search(r"is (\d+) s old", reason)
    assert age_s is not None
    assert 190 <= int(age_s[1]) <= 200
    with closing(PrometheusSource(2.0, url=server.url, stale_after_s=30)) as strict:
        assert why(strict.read(target, REFS, time.time() + 100)).startswith("stale: ")


def test_the_same_port_and_other_labels_are_another_instance(
    source: PrometheusSource, pages: Pages, server: Prometheus
) -> None:
    """An engine that took over a port, and a target that was given one more label."""
    old, moved = read_new(source, "old"), read_new(source, "moved")
    pages.content["port"] = page(3, born=9.0)
    write_targets(
        server.targets,
        [
            (pages.address, "port", labels("new")),
            (pages.address, "steady", labels("moved", zone="b")),
            *((pages.address, n, labels(n)) for n in ("steady", "gap", "exact")),
        ],
    )
    server.until_scraped(["new"])
    server.until("relabelled", lambda: server.query('up{instance="moved",zone="b"}'))
    assert server.query('requests_total{instance="old"}[5m]') != []

    def is_gone() -> bool:
        """Scraping under the old name ends within a few intervals; until then its start tells."""
        late = read(source, "old")
        if not readable(late):
            return True
        is_old = late.values[Signal.REQUESTS] == old.values[Signal.REQUESTS]
        assert (late.born == old.born) is is_old
        return False

    server.until("the old name is gone", is_gone)
    assert "has no target with" in why(read(source, "old"))
    new = read_new(source, "new")
    assert (new.values[Signal.REQUESTS], new.born) == (Series({(): 3.0}), 9.0)
    # For those intervals there are two, which is said; then there is one, and it goes on.
    assert total(delta(moved, read_new(source, "moved"))) == 0


def test_while_it_is_down_nothing_is_known_and_afterwards_nothing_is_lost(
    source: PrometheusSource, pages: Pages, server: Prometheus
) -> None:
    pages.content["exact"] = page(500)
    before = read_new(source, "exact")
    server.freeze()
    began = time.monotonic()
    assert "no answer within 2 s" in why(read(source, "exact"))
    assert time.monotonic() - began < 6
    server.thaw()
    pages.content["exact"] = page(501)
    server.kill()
    reason = why(read(source, "exact"))
    assert "cannot be reached" in reason
    assert "Connection refused" in reason
    assert "query" not in reason
    server.start()
    assert total(delta(before, read_new(source, "exact"))) == 1


# --- who asks, and of whom ---------------------------------------------------------------------


class Asked:
    """A server that answers every query with ``body`` and keeps the headers it was sent."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.body = json.dumps({"status": "success", "data": {"result": []}}).encode()
        self.more: dict[str, str] = {}
        self.status, self.drip_s = 200, 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                self.send_response(outer.status)
                for name, value in outer.more.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(outer.body)))
                self.end_headers()
                try:
                    if outer.drip_s:
                        for byte in outer.body:
                            self.wfile.write(bytes([byte]))
                            time.sleep(outer.drip_s)
                    else:
                        self.wfile.write(outer.body)
                except OSError:  # the reader left, as it should
                    self.close_connection = True

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
def asked() -> Iterator[Asked]:
    with closing(Asked()) as found:
        yield found


def test_headers_are_asked_for_at_every_query(asked: Asked) -> None:
    tokens = iter(["one", "two"])
    with closing(
        PrometheusSource(
            1.0,
            url=asked.url,
            headers=lambda: {"Authorization": f"Bearer {next(tokens)}", "X-Scope-OrgID": "team"},
        )
    ) as source:
        read(source, "c0")
        read(source, "c0")
    assert [h["authorization"] for h in asked.headers] == ["Bearer one", "Bearer two"]
    assert {h["x-scope-orgid"] for h in asked.headers} == {"team"}


def test_a_credential_that_cannot_be_read_is_missing_data(asked: Asked) -> None:
    def unreadable() -> dict[str, str]:
        raise InputError("secret TOKEN: file /run/token: there is none")

    with closing(PrometheusSource(1.0, url=asked.url, headers=unreadable)) as source:
        assert "/run/token" in why(read(source, "c0"))
    assert asked.headers == []


def test_a_header_that_cannot_be_sent_is_not_shown(asked: Asked) -> None:
    headers = {"Authorization": "Bearer hush\nhush"}
    with closing(PrometheusSource(1.0, url=asked.url, headers=lambda: headers)) as source:
        assert "hush" not in why(read(source, "c0"))


@pytest.mark.parametrize(
    ("status", "body", "more", "expected"),
    [
        (200, b"<html>", {}, "is it Prometheus"),
        (200, b"[]", {}, "is it Prometheus"),
        (200, b'{"data": {"result": [1]}}', {}, "is it Prometheus"),
        (200, b'{"data": {"result": [{"metric": {}}]}}', {}, "is it Prometheus"),
        (200, b'{"data": {"result": null}}', {}, "is it Prometheus"),
        (200, b'{"data": {"result": [{"metric": {}, "value": [1, "x"]}]}}', {}, "no number"),
        (401, b"who are you", {}, "401"),
        (503, b"later", {}, "503"),
        (302, b"", {"location": "http://127.0.0.1:9/"}, "redirects"),
    ],
)
def test_an_answer_that_is_none_is_missing_data(
    asked: Asked, status: int, body: bytes, more: dict[str, str], expected: str
) -> None:
    asked.status, asked.body, asked.more = status, body, more
    with closing(PrometheusSource(1.0, url=asked.url)) as source:
        assert expected in why(read(source, "c0"))
    assert len(asked.headers) == (1 + module.RETRIES if status == 503 else 1)


def test_a_slow_and_a_huge_answer_are_cut_off(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.drip_s = 0.2
    with closing(PrometheusSource(0.4, url=asked.url)) as source:
        began = time.monotonic()
        assert "no answer within 0.4 s" in why(read(source, "c0"))
        assert time.monotonic() - began < 4
    asked.drip_s = 0.0
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    with closing(PrometheusSource(0.4, url=asked.url)) as source:
        assert "larger than 10 bytes" in why(read(source, "c0"))


def test_tls_and_basic_auth_by_a_real_server(tmp_path: Path) -> None:
    targets = tmp_path / "targets.json"
    write_targets(targets, [])
    server = Prometheus(tmp_path / "data", targets)
    web = tmp_path / "web.yml"
    web.write_text(
        f"tls_server_config: {{cert_file: {TLS / 'loopback.pem'}, "
        f"key_file: {TLS / 'loopback.key'}}}\n"
        f"basic_auth_users: {{canaryctl: {BCRYPT}}}\n"
    )
    server.url = f"https://127.0.0.1:{server.port}"
    credentials = base64.b64encode(b"canaryctl:open sesame").decode()
    server.start(
        f"--web.config.file={web}",
        verify=TLS / "loopback.pem",
        headers={"Authorization": f"Basic {credentials}"},
    )
    try:
        for sent, ca_file, expected in (
            (credentials, TLS / "loopback.pem", "has no target with"),
            ("d3Jvbmc6d3Jvbmc=", TLS / "loopback.pem", "401"),
            (credentials, None, "cannot be reached"),
        ):
            headers = {"Authorization": f"Basic {sent}"}
            with closing(
                PrometheusSource(2.0, url=server.url, headers=headers.copy, ca_file=ca_file)
            ) as source:
                reason = why(read(source, "c0"))
                assert expected in reason
                assert sent not in reason
                assert ca_file is not None or "certificate" in reason
    finally:
        server.stop()


def test_nobody_listens() -> None:
    with closing(PrometheusSource(1.0, url=f"http://127.0.0.1:{free_port()}")) as source:
        assert "Connection refused" in why(read(source, "c0"))
