"""The controller's own requests at a step: the same on every engine, and new to all of them."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from canaryctl.controller.artifact.schema import Step
from canaryctl.controller.loads import StepLoads
from canaryctl.controller.view import LoadState
from tests.support.cli import eventually
from tests.support.releases import document, release

STEP = Step(weight=0, load="generated")
Asked = list[dict[str, Any]]


@pytest.fixture
def engine() -> Iterator[Callable[[], tuple[str, Asked]]]:
    """Servers that keep what they were asked, in order."""
    servers: list[ThreadingHTTPServer] = []

    def start() -> tuple[str, Asked]:
        asked: Asked = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                asked.append(body)
                data = b"data: [DONE]\n\n"
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}", asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def prompts(asked: Asked) -> list[tuple[int, ...]]:
    return [tuple(body["prompt"]) for body in asked]


def test_every_engine_is_asked_the_same_and_with_a_new_one_what_none_was_asked_before(
    tmp_path: Path, engine: Callable[[], tuple[str, Asked]]
) -> None:
    canary, baseline, restarted = engine(), engine(), engine()
    loaded = release(document=document(rollout={"steps": [{"weight": 0, "load": "generated"}]}))
    loads = StepLoads(tmp_path)
    try:
        first = (canary[0], baseline[0])
        assert loads.state(loaded, STEP, first) == LoadState()
        eventually("requests", lambda: min(len(canary[1]), len(baseline[1])) >= 10)
        assert loads.state(loaded, STEP, first) == LoadState()
        second = (canary[0], restarted[0])
        loads.state(loaded, STEP, second)  # what went on before has ended when this returns
        asked, same = prompts(canary[1]), prompts(baseline[1])
        # Only what was on its way when the load ended may have reached one of them alone.
        assert len(set(asked) ^ set(same)) <= 2
        eventually("requests", lambda: len(restarted[1]) >= 10)
        assert not set(prompts(restarted[1])) & set(same), "they are in the canary's prefix cache"
        assert set(prompts(restarted[1])[:5]) <= set(prompts(canary[1]))
    finally:
        loads.close()
    after = len(restarted[1])
    time.sleep(0.3)
    assert len(restarted[1]) == after
