"""A real vLLM from start to ready, as a controller takes it: log, stages, warm-up, a token."""

import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from canaryctl.runtimes.engines.base import Stage
from canaryctl.runtimes.engines.registry import DISTRIBUTIONS, engine
from canaryctl.runtimes.httpclient import healthy
from canaryctl.runtimes.logtail import LogTail
from canaryctl.runtimes.machine import Machine, inspect_installation
from canaryctl.runtimes.placements.base import InstanceRequest, Liveness
from canaryctl.runtimes.placements.process import ProcessPlacement
from canaryctl.runtimes.preflight import preflight
from canaryctl.runtimes.progress import ProbeTarget, ProgressProbe
from canaryctl.runtimes.readiness import Readiness, assess
from canaryctl.runtimes.spec import WarmupPlan
from canaryctl.runtimes.warmup import WarmupRun, WarmupState, plan_requests
from tests.support.cpu_vllm import cpu_runtime

pytestmark = pytest.mark.vllm

DIGEST = "sha256:" + "9" * 64
PLAN = WarmupPlan(decode_buckets=(1, 4, 16), mixed_token_buckets=(64, 256), repeat_per_bucket=2)


def test_from_start_to_ready(cpu_vllm_python: Path, tiny_model: Path, tmp_path: Path) -> None:
    adapter = engine("vllm")
    spec = cpu_runtime(cpu_vllm_python, tiny_model).model_copy(update={"warmup_plan": PLAN})
    place = ProcessPlacement(tmp_path)
    port = place.free_port()
    launch = adapter.launch(spec, host="127.0.0.1", port=port)
    installed = inspect_installation(launch, DISTRIBUTIONS["vllm"])
    checked = preflight(spec, adapter, Machine(()), installed, distributions=DISTRIBUTIONS["vllm"])
    assert (checked.faults, checked.unknown) == ((), ())

    handle = place.ensure(InstanceRequest("one", DIGEST, launch, port))
    try:
        url = place.base_url(handle)
        tail = LogTail(place.log_path("one"))
        seen = Readiness({})
        run: WarmupRun | None = None
        deadline = time.monotonic() + 240
        while not seen.ready:
            assert time.monotonic() < deadline, (seen, tail.lines()[-20:])
            if run is None and Stage.CAPTURED in seen.stages and healthy(url, "/health", 1):
                model = adapter.model_name(spec)
                run = WarmupRun(url, model, plan_requests(PLAN, spec.limits))
            ended = run is not None and run.progress().state is not WarmupState.RUNNING
            if run is not None and ended:
                assert run.progress().state is WarmupState.DONE, run.progress()
            seen = assess(
                adapter.read_log(tail.lines(), spec.engine.version),
                alive=place.status("one", DIGEST, handle).liveness is Liveness.RUNNING,
                health_ok=healthy(url, adapter.health_path(), 1),
                spec=spec,
                warmed=ended,
                previous=seen.stages,
                now=datetime.now(UTC),
            )
            assert seen.fault is None, tail.lines()[-20:]
            time.sleep(0.25)
        assert list(seen.stages) == list(Stage)
        assert run is not None
        assert run.progress().done == 2 * (3 + 2)

        probe = ProgressProbe(interval_s=1.0, timeout_s=10.0)
        targets = {"one": ProbeTarget(url, adapter.model_name(spec))}
        while not (results := probe.poll(targets, datetime.now(UTC))):
            time.sleep(0.05)
        assert results[0].ok, results
        family = psutil.Process(handle.pid).children(recursive=True)
        assert family, "the engine core is a process of its own"
    finally:
        stopping = time.monotonic()
        while not place.stop("one", DIGEST, handle, grace_s=20):
            assert time.monotonic() - stopping < 40
            time.sleep(0.1)
    # An orphan that its new parent has not collected yet has ended all the same.
    assert all(
        not member.is_running() or member.status() == psutil.STATUS_ZOMBIE for member in family
    )
