"""The TensorRT-LLM adapter against a stand-in for trtllm-serve, over real processes and sockets.

The stand-in answers as TensorRT-LLM's sources say. It is not TensorRT-LLM.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from canaryctl.common.metrics import Signal, references
from canaryctl.common.parity import Agreement, Parity
from canaryctl.gates.samples import Histogram, Missing, Series
from canaryctl.gates.sources.base import Target
from canaryctl.gates.sources.scrape import ScrapeSource
from canaryctl.runtimes.engines.base import FILES, Launch, Stage
from canaryctl.runtimes.engines.trtllm import CONFIG, TrtllmEngine
from canaryctl.runtimes.generation import PATH, completion_body
from canaryctl.runtimes.health import Health, read_health
from canaryctl.runtimes.parity import ParityRun, Reference, Side
from canaryctl.runtimes.placements.base import Handle, InstanceRequest, Liveness
from canaryctl.runtimes.placements.process import ProcessPlacement
from canaryctl.runtimes.progress import ProbeTarget, ProgressProbe
from canaryctl.runtimes.readiness import assess
from canaryctl.runtimes.spec import RuntimeSpec

STAND_IN = Path(__file__).parents[1] / "support" / "trtllm_serve.py"
ENGINE = TrtllmEngine()
DIGEST = "sha256:" + "d" * 64
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = RuntimeSpec.model_validate(
    {
        "engine": {
            "name": "trtllm",
            "version": "1.2.0",
            "command": [sys.executable, str(STAND_IN)],
        },
        "model": {"id": "Qwen/Qwen3-0.6B"},
        "graph": {"capture_sizes": [1, 2, 4, 8, 512]},
        "limits": {"max_num_seqs": 8, "max_num_batched_tokens": 2048},
    }
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ProcessPlacement]:
    made = ProcessPlacement(tmp_path)
    yield made
    wait_for(lambda: made.stop("one", DIGEST, None, grace_s=0))


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def start(place: ProcessPlacement, spec: RuntimeSpec, launch: Launch | None = None) -> Handle:
    assert ENGINE.check(spec) == ()
    port = place.free_port()
    launch = launch or ENGINE.launch(spec, host="127.0.0.1", port=port)
    return place.ensure(InstanceRequest("one", DIGEST, launch, port))


@pytest.mark.parametrize(
    ("spec", "last"), [(SPEC, Stage.CAPTURED), (ENGINE.eager(SPEC), Stage.COMPILED)]
)
def test_from_start_to_ready(place: ProcessPlacement, spec: RuntimeSpec, last: Stage) -> None:
    handle = start(place, spec)
    url = place.base_url(handle)
    with httpx.Client(trust_env=False, timeout=5) as http:
        wait_for(lambda: read_health(http, url + ENGINE.health_path()) is Health.GOOD)
    lines = place.log_path("one").read_text().splitlines()
    facts = ENGINE.read_log(lines, spec.engine.version)
    assert facts.stages[-1] is last
    assert facts.kv_cache_tokens == 86720
    assert facts.fatal == facts.out_of_memory == facts.warnings == ()
    ready = assess(facts, alive=True, health_ok=True, spec=spec, warmed=True, previous={}, now=NOW)
    assert ready.ready, ready.missing


@pytest.mark.parametrize(
    "graph",
    [
        {"capture_sizes": [1, 2, 4, 8, 512]},
        {"mode": "PIECEWISE", "capture_sizes": [64, 512]},
        {"mode": "FULL_DECODE_ONLY"},
        {"mode": "NONE"},
    ],
)
def test_it_captures_the_sizes_that_the_adapter_expects(
    place: ProcessPlacement, graph: dict[str, object]
) -> None:
    spec = RuntimeSpec.model_validate({**SPEC.model_dump(), "graph": graph})
    start(place, spec)
    wait_for(lambda: "Uvicorn running" in place.log_path("one").read_text())
    found = re.findall(
        r"CUDA graph warmup for (?:batch size|num tokens)=(\d+)", place.log_path("one").read_text()
    )
    assert tuple(sorted({int(size) for size in found})) == ENGINE.resolved_grid(spec)


def test_its_metrics_are_read_where_the_adapter_says(place: ProcessPlacement) -> None:
    handle = start(place, SPEC)
    url = place.base_url(handle)
    source = ScrapeSource(timeout_s=5)
    known = ENGINE.metrics(SPEC.engine.version)
    refs = references((*known, Signal.STEPS, Signal.ERRORS), known)
    assert set(refs) == set(known), "what it cannot tell is not asked for"
    target = Target("one", url + ENGINE.metrics_path(), {})
    with httpx.Client(trust_env=False, timeout=5) as http:
        wait_for(lambda: read_health(http, url + ENGINE.health_path()) is Health.GOOD)
        before = source.read(target, refs, 0.0).values
        assert all(isinstance(value, Missing) for value in before.values()), before
        model = ENGINE.model_name(SPEC)
        for _ in range(3):
            body = completion_body(model, prompt_tokens=4, output_tokens=5)
            http.post(url + PATH, json=body).raise_for_status()
        after = source.read(target, refs, 1.0).values
        for signal in (Signal.TTFT, Signal.TPOT, Signal.E2E):
            value = after[signal]
            assert isinstance(value, Histogram)
            assert value.count == 3
        requests = after[Signal.REQUESTS]
        assert isinstance(requests, Series)
        assert requests.total == 3
        # Nothing of this took the iterations away from whoever reads them, and one reader does.
        assert len(http.get(url + "/metrics").json()) == 15
        assert http.get(url + "/metrics").json() == []
    source.close()


def test_answers_are_compared_by_their_texts(place: ProcessPlacement) -> None:
    """Also beside one that would tell ids: it takes no field that asks for them."""
    url = place.base_url(start(place, SPEC))
    with httpx.Client(trust_env=False, timeout=5) as http:
        wait_for(lambda: read_health(http, url + ENGINE.health_path()) is Health.GOOD)
        asked = {"model": ENGINE.model_name(SPEC), "prompt": "x", "max_tokens": 1}
        refused = http.post(url + PATH, json={**asked, "return_tokens_as_token_ids": True})
        assert refused.status_code == httpx.codes.BAD_REQUEST
    side = Side(url, ENGINE.model_name(SPEC), most=1, longest=4, token_ids=ENGINE.tells_token_ids)
    found = ParityRun(side, Reference(side, "itself")).wait(30)
    assert found == Parity(
        "itself", Agreement({"1": 24}, {}, 0.0), Agreement({"1": 24}, {}, 0.0), token_ids=False
    )


def test_a_token_proves_progress(place: ProcessPlacement) -> None:
    url = place.base_url(start(place, SPEC))
    with httpx.Client(trust_env=False, timeout=5) as http:
        wait_for(lambda: read_health(http, url + ENGINE.health_path()) is Health.GOOD)
    probe = ProgressProbe(interval_s=0.1, timeout_s=10)
    targets = {"one": ProbeTarget(url, ENGINE.model_name(SPEC))}
    results: list[bool] = []

    def told() -> bool:
        results.extend(result.ok for result in probe.poll(targets, datetime.now(UTC)))
        return bool(results)

    wait_for(told)
    assert results[0]


def test_a_file_that_the_engine_refuses_ends_it_and_the_log_says_why(
    place: ProcessPlacement,
) -> None:
    launch = ENGINE.launch(SPEC, host="127.0.0.1", port=1)
    wrong = launch.files[CONFIG].replace("max_batch_size: 8", "max_batch_size: 16")
    assert wrong != launch.files[CONFIG]
    argv = (*launch.argv[:3], "--host=127.0.0.1", "--port=1", f"--config={FILES}/{CONFIG}")
    limits = ("--max_batch_size=8", "--max_num_tokens=64")
    handle = start(place, SPEC, Launch((*argv, *limits), files={CONFIG: wrong}))
    wait_for(lambda: place.status("one", DIGEST, handle).liveness is Liveness.EXITED)
    lines = place.log_path("one").read_text().splitlines()
    assert ENGINE.read_log(lines, "1.2.0").fatal == (
        "ValueError: max_batch_size must equal max(batch_sizes)",
    )
