"""The load generator against real servers, and as a real program."""

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from canaryctl.common.errors import InputError
from canaryctl.runtimes.load.command import main, main_load
from canaryctl.runtimes.load.generate import run_load
from canaryctl.runtimes.load.profile import Profile, parse_profile
from canaryctl.runtimes.load.report import LoadReport, Outcome

SERVER = Path(__file__).parents[1] / "support" / "upstream.py"
COMMAND = [sys.executable, "-m", "canaryctl.runtimes.load"]
QUICK = "rate: 100\nseed: 3\noutput_tokens: {min: 4, max: 8}\ntimeout: 5s\n"


@dataclass(frozen=True)
class Upstream:
    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def mode(self, mode: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.request("POST", "/_mode", mode)
        assert connection.getresponse().read()
        connection.close()


@pytest.fixture
def upstream() -> Iterator[Callable[[], Upstream]]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> Upstream:
        process = subprocess.Popen([sys.executable, SERVER, "u"], stdout=subprocess.PIPE)
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
def recorder() -> Iterator[Callable[[], tuple[str, list[dict[str, Any]]]]]:
    """Servers that keep what they were asked, with the session and the time of arrival."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start() -> tuple[str, list[dict[str, Any]]]:
        asked: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                at = time.monotonic()
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                session = self.headers.get("x-session-id")
                asked.append({"at": at, "session": session, "path": self.path, **body})
                data = json.dumps({"usage": {"completion_tokens": body["max_tokens"]}}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}", asked

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def load(targets: list[str], text: str = QUICK, **more: Any) -> LoadReport:
    return asyncio.run(run_load(targets, parse_profile(text), **more))


def test_streams_are_timed_and_counted(upstream: Callable[[], Upstream]) -> None:
    outcomes: list[Outcome] = []
    report = load([upstream().url], requests=50, on_outcome=outcomes.append)
    assert (report.sent, report.ok, report.failed, report.unfinished) == (50, 50, 0, 0)
    for one in outcomes:
        assert one.ttft_s is not None
        assert one.tpot_s is not None
        assert one.itl_max_s is not None
        assert one.e2e_s is not None
        assert one.tpot_s <= one.itl_max_s <= one.e2e_s - one.ttft_s
    sent = [one.sent_s for one in outcomes if one.sent_s is not None]
    assert len(set(sent)) == 50
    assert max(sent) - min(sent) <= report.elapsed_s
    [summary] = report.targets.values()
    assert summary.ttft is not None
    assert summary.tpot is not None
    assert summary.e2e is not None
    assert summary.tpot.count == 50
    assert 0.002 <= summary.tpot.p50 < 0.1
    assert summary.ttft.p50 < summary.e2e.p50
    assert 200 <= summary.output_tokens <= 400
    assert set(report.artifacts) == {"unknown"}


def test_every_target_gets_the_same_at_the_same_time(
    recorder: Callable[[], tuple[str, list[dict[str, Any]]]],
) -> None:
    (one, asked_one), (two, asked_two) = recorder(), recorder()
    text = QUICK + "stream: false\nsessions: 3\nprompt: text\n"
    report = load([one, two], text, requests=40, model="m")
    assert (report.sent, report.ok) == (80, 80)
    assert report.targets[one].ok == report.targets[two].ok == 40

    def essence(asked: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps({**each, "at": 0}) for each in asked)

    assert essence(asked_one) == essence(asked_two)
    assert {each["path"] for each in asked_one} == {"/v1/completions"}
    assert {each["model"] for each in asked_one} == {"m"}
    assert len({each["session"] for each in asked_one}) == 3
    at_one = {each["prompt"]: each["at"] for each in asked_one}
    apart = sorted(abs(at_one[each["prompt"]] - each["at"]) for each in asked_two)
    assert apart[len(apart) // 2] < 0.05


@pytest.mark.parametrize(
    ("mode", "when", "reason"),
    [
        ("unavailable", "before_response", "http_503"),
        ("error", "before_response", "http_500"),
        ("reset", "before_response", "reset"),
        ("close", "before_response", "closed"),
        ("hang", "before_response", "timeout"),
        ("cut", "cut_off", "closed"),
        ("short", "cut_off", "ended early"),
        ("error_event", "cut_off", "error event"),
    ],
)
def test_failures_are_told_by_when_and_why(
    mode: str, when: str, reason: str, upstream: Callable[[], Upstream]
) -> None:
    bad, good = upstream(), upstream()
    bad.mode(mode)
    report = load([bad.url, good.url], QUICK.replace("5s", "500ms"), requests=10)
    assert report.targets[good.url].ok == 10
    assert report.targets[bad.url].failures == {when: {reason: 10}}


def test_nobody_listening_is_a_refusal(upstream: Callable[[], Upstream]) -> None:
    gone = upstream()
    gone.process.kill()
    gone.process.wait()
    report = load([gone.url], requests=5)
    assert report.targets[gone.url].failures == {"before_response": {"refused": 5}}
    assert report.artifacts == {}


def test_the_loop_is_open_and_bounded(upstream: Callable[[], Upstream]) -> None:
    hung, good = upstream(), upstream()
    hung.mode("hang")
    text = "rate: 200\nmax_concurrency: 5\ntimeout: 1s\n"
    report = load([hung.url, good.url], text, requests=20)
    assert report.saturated
    assert report.not_sent == 2 * 15
    assert report.targets[good.url].ok == 5  # what one target cannot take, the other is not given


def test_it_lasts_as_long_as_asked(upstream: Callable[[], Upstream]) -> None:
    report = load([upstream().url], "rate: 50\nfor: 1s\noutput_tokens: {min: 2, max: 2}\n")
    assert 0.8 < report.elapsed_s < 3
    assert 20 < report.ok < 85


def test_stopping_ends_it_soon_with_a_report(upstream: Callable[[], Upstream]) -> None:
    async def stopped() -> LoadReport:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, stop.set)
        profile = Profile(rate=50.0)
        return await run_load([server.url], profile, duration_s=60, stop=stop)

    server = upstream()
    server.mode("hang")
    report = asyncio.run(stopped())
    assert report.elapsed_s < 5
    assert report.unfinished == report.sent > 0


def test_what_was_given_wrongly_is_refused() -> None:
    with pytest.raises(InputError, match="needs targets"):
        load([], requests=1)
    with pytest.raises(InputError, match="each named once"):
        load(["u", "u"], requests=1)
    with pytest.raises(InputError, match="needs an end"):
        load(["u"])
    with pytest.raises(InputError, match="exactly one of --rate and --profile"):
        main_load(["http://127.0.0.1:1"], duration="1s")
    with pytest.raises(InputError, match="such as 15s"):
        main_load(["http://127.0.0.1:1"], rate=1, duration="5")
    with pytest.raises(InputError, match="expected a URL"):
        main_load(["localhost:8000"], rate=1, duration="5s")


def test_the_command_refuses_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = ["--target", "http://127.0.0.1:1", "--requests", "1"]
    assert main([*target, "--rate", "-1"]) == 2
    assert main([*target, "--profile", str(tmp_path)]) == 2
    assert main(["--target", "http://127.0.0.1:1", "--rate", "1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "rate: Input should be greater than 0" in captured.err
    assert "needs an end" in captured.err


def test_the_command_prints_one_document(upstream: Callable[[], Upstream], tmp_path: Path) -> None:
    profile = tmp_path / "load.yaml"
    profile.write_text(QUICK)
    done = subprocess.run(
        [*COMMAND, "--target", upstream().url, "--profile", profile, "--requests", "5", "--json"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    document = json.loads(done.stdout)
    assert (document["sent"], document["ok"], document["failed"]) == (5, 5, 0)


def test_the_command_answers_sigterm_with_its_report(upstream: Callable[[], Upstream]) -> None:
    with subprocess.Popen(
        [*COMMAND, "--target", upstream().url, "--rate", "50", "--for", "1h"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        time.sleep(2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert b"requests sent in" in out
    assert err == b""
