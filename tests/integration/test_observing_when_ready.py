"""What is observed of a ready engine: that its server has closed, and what its log says."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from canaryctl.controller.catalog import Artifacts, Catalog
from canaryctl.controller.declared import start_facts
from canaryctl.controller.model import Instance
from canaryctl.controller.observe import Observer, Seen
from canaryctl.gates.late_work import late_work
from canaryctl.gates.sources.scrape import ScrapeSource
from canaryctl.runtimes.engines.base import EngineFault, Launch
from canaryctl.runtimes.placements.base import InstanceRequest, Liveness
from canaryctl.runtimes.placements.process import ProcessPlacement
from tests.support.cli import eventually
from tests.support.releases import CANARY, T0, instance
from tests.support.simulated import ENGINE, simulated_spec

# Healthy until it is asked to close; then it lingers, as vLLM does while its threads end.
SERVER = """
import socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    path = b""
    while b"/close" not in path:
        connection, _ = server.accept()
        with connection:
            path = connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
time.sleep(60)
"""


STARTED = "INFO 11-29 16:12:24 [core.py:337] init engine (profile) took 3 s"


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[tuple[Observer, ProcessPlacement, Instance]]:
    placement = ProcessPlacement(tmp_path)
    port = placement.free_port()
    known = instance(CANARY, port=port)
    launch = Launch(("python3", "-c", SERVER, str(port)))
    handle = placement.ensure(InstanceRequest(known.id, known.digest, launch, port))
    runtime = simulated_spec()
    artifacts = cast(
        "Artifacts", SimpleNamespace(artifact=lambda _: SimpleNamespace(runtime=runtime))
    )
    catalog = Catalog(artifacts, lambda _: ENGINE)
    source = ScrapeSource(1.0)
    with ThreadPoolExecutor(1) as executor:
        observer = Observer(catalog, placement, source, executor, lambda _: {})
        yield observer, placement, instance(CANARY, port=port, handle=handle)
        observer.close()
    source.close()
    while not placement.stop(known.id, known.digest, handle, grace_s=0):
        pass


def _capture(bucket: int) -> str:
    what = f"(FULL,BatchDescriptor(num_tokens={bucket}, uniform=True))"
    return f"DEBUG 11-29 16:12:24 [cuda_graph.py:251] Capturing a cudagraph on {what}"


def look(observer: Observer, at: Instance) -> Seen:
    (seen,) = observer.observe((at,), T0)
    return seen


def test_a_ready_engine_that_refuses_connections_is_dead_at_the_next_look(ready: Any) -> None:
    observer, placement, engine = ready
    close = f"{placement.base_url(engine.handle)}/close"
    eventually("a server", lambda: look(observer, engine).faults == (), timeout_s=10)
    assert look(observer, engine).view.alive
    httpx.get(close, timeout=2)
    seen = look(observer, engine)
    assert placement.status(engine.id, engine.digest, engine.handle).liveness is Liveness.RUNNING
    assert not seen.view.alive
    ((kind, detail),) = seen.faults
    assert kind is EngineFault.EXIT
    assert "refuses connections" in detail


def test_what_is_captured_after_ready_is_kept_with_the_instance(ready: Any) -> None:
    observer, placement, engine = ready
    # The first line was there when it became ready: its warm-up had it captured.
    before = replace(engine, facts={"work_before_ready": 1})
    with placement.log_path(engine.id).open("a") as log:
        print(STARTED, file=log)
        print(_capture(8), file=log)
    assert look(observer, before).view.instance == before
    with placement.log_path(engine.id).open("a") as log:
        print(_capture(24), file=log)
    after = look(observer, before).view.instance
    assert after.facts["late_work"] == ["capture of the FULL graph of bucket 24"]
    assert look(observer, after).view.instance == after, "nothing new"
    assert look(observer, engine).view.instance == engine, "of when it was ready nothing is known"


def test_all_that_is_captured_after_ready_counts_and_the_latest_are_named(ready: Any) -> None:
    observer, placement, engine = ready
    before = replace(engine, facts={"work_before_ready": 0})
    with placement.log_path(engine.id).open("a") as log:
        print(STARTED, file=log)
    known: dict[str, int] = {}
    # Parity had five and twenty captured before the first look; a user waited for the last.
    for buckets in (range(8, 208, 8), (208,)):
        with placement.log_path(engine.id).open("a") as log:
            for bucket in buckets:
                print(_capture(bucket), file=log)
        before = look(observer, before).view.instance
        known, said = late_work(known, {before.id: start_facts(before)})
        assert said is None or buckets == (208,)
    assert known == {before.id: 25}
    assert len(before.facts["late_work"]) == 20
    assert said == (
        f"after it was ready, with requests waiting: {before.id}: "
        "capture of the FULL graph of bucket 208"
    )
