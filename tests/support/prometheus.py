"""A real Prometheus on loopback, with a data directory of its own, and pages for it to scrape."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

INSTALL = (
    "the prometheus binary is not there; install it with "
    "`apt-get install -y --no-install-recommends prometheus` (Debian, Ubuntu)"
)
SCRAPE_S = 0.5
TEXT = "text/plain; version=0.0.4"


def prometheus_binary() -> str:
    """Its path; without one the test is skipped, or fails where CI=true."""
    found = shutil.which("prometheus")
    if found is not None:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(INSTALL)
    pytest.skip(INSTALL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Prometheus:
    """A server that scrapes what ``targets`` (a file of file discovery) lists.

    Prometheus takes over a change of that file within ten seconds, not sooner: two of its loops
    have five seconds each.
    """

    def __init__(self, folder: Path, targets: Path, *, scrape_s: float = SCRAPE_S) -> None:
        self._binary = prometheus_binary()
        self._folder, self.targets = folder, targets
        self._scrape_ms = round(scrape_s * 1000)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        *options: str,
        verify: Path | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Start, or start again, and wait until it answers."""
        context = ssl.create_default_context(cafile=verify) if verify is not None else True
        self._http = httpx.Client(verify=context, headers=headers, timeout=5, trust_env=False)
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: {self._scrape_ms}ms, scrape_timeout: "
            f"{self._scrape_ms}ms}}\n"
            "scrape_configs:\n"
            "  - job_name: engines\n"
            "    honor_timestamps: false\n"
            f"    file_sd_configs: [{{files: [{json.dumps(str(self.targets))}], "
            "refresh_interval: 1s}]\n"
        )
        with (self._folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binary,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                    "--log.level=warn",
                    *options,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )
        self.until("it is ready", lambda: self._get("/-/ready").status_code == httpx.codes.OK)

    def freeze(self) -> None:
        """Returns once all its threads stand still: a signal only asks for it."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        tasks = Path(f"/proc/{self._process.pid}/task")
        # Behind the name, which is in parentheses and may hold anything.
        self.until(
            "it stands still",
            lambda: all(
                (task / "stat").read_text().rpartition(")")[2].split()[0] in "Tt"
                for task in tasks.iterdir()
            ),
        )

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """As a crash: at once."""
        self._signal(signal.SIGKILL)
        self._ended()

    def stop(self) -> None:
        if self._process is not None:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)
            self._ended()

    def query(self, query: str) -> list[dict[str, object]]:
        answer = self._get("/api/v1/query", query=query)
        assert answer.status_code == httpx.codes.OK, answer.text
        found: list[dict[str, object]] = answer.json()["data"]["result"]
        return found

    def until(self, what: str, check: Callable[[], object], timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if check():
                    return
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                log = (self._folder / "prometheus.log").read_text()[-2000:]
                raise AssertionError(f"not in {timeout_s:g} s: {what}\n{log}")
            time.sleep(0.05)

    def until_scraped(self, instances: Sequence[str], *, up: int | None = None) -> None:
        """Every one of ``instances`` was scraped at least once, with that result."""

        def scraped() -> bool:
            wanted = "|".join(instances)
            found = self.query(f'up{{instance=~"{wanted}"}}' + ("" if up is None else f" == {up}"))
            return len(found) >= len(instances)

        self.until(f"{', '.join(instances)} scraped", scraped)

    def _get(self, path: str, **params: str) -> httpx.Response:
        return self._http.get(self.url + path, params=params)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _ended(self) -> None:
        assert self._process is not None
        self._process.wait(timeout=20)
        self._process = None
        self._http.close()


@dataclass
class Pages:
    """Metrics pages by path. A text is served as it is, a number is a status, None never comes."""

    url: str = ""
    content: dict[str, str | int | None] = field(default_factory=dict)
    closing: bool = False

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    """A server of pages that tests fill."""
    found = Pages()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = found.content.get(self.path.removeprefix("/"), 404)
            while content is None and not found.closing:
                time.sleep(0.02)
                content = found.content.get(self.path.removeprefix("/"), 404)
            body = content.encode() if isinstance(content, str) else b""
            try:
                self.send_response(content if isinstance(content, int) else 200)
                self.send_header("content-type", TEXT)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # the reader has left
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.closing = True
    server.shutdown()
    thread.join()
    server.server_close()


def labels(instance: str, **changes: str) -> dict[str, str]:
    """The labels by which a sample is found."""
    return {
        "service": "chat",
        "artifact": "sha256:" + "c" * 64,
        "release": "r1",
        "role": "canary",
        "instance": instance,
        **changes,
    }


def write_targets(path: Path, targets: Sequence[tuple[str, str, Mapping[str, str]]]) -> None:
    """``targets``: (address, page, labels) of each; replaced as a whole."""
    groups = [
        {"targets": [address], "labels": {**labelled, "__metrics_path__": f"/{page}"}}
        for address, page, labelled in targets
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(groups))
    new.replace(path)
