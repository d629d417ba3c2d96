"""The simulated engine as a real process: its API, its numbers, its cost, and every fault."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from canaryctl.common.metrics import MetricKind
from canaryctl.runtimes.engines.base import Stage
from tests.support.simulated import ENGINE, SimulatedServer, events, simulated_spec


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedServer]:
    """An engine without faults, shared by tests that leave it as it was."""
    log = tmp_path_factory.mktemp("plain") / "engine.log"
    with SimulatedServer(simulated_spec(), log) as server:
        yield server


# The API


def test_it_names_itself_simulated_wherever_it_shows(plain: SimulatedServer) -> None:
    [model] = plain.client.get("/v1/models").json()["data"]
    assert (model["id"], model["owned_by"]) == ("simulated/qwen", "simulated")
    answer = plain.complete().json()
    assert answer["model"] == "simulated/qwen"
    assert answer["system_fingerprint"].startswith("simulated-")
    assert plain.page().labels("vllm:kv_cache_usage_perc")["model_name"] == "simulated/qwen"
    lines = plain.log_text().splitlines()
    assert lines
    assert all(line.startswith("(simulated ") for line in lines)


def test_a_completion_is_whole_and_counted(plain: SimulatedServer) -> None:
    answer = plain.complete(5, [1, 2, 3]).json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["text"].split()) == 5
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


def test_a_stream_says_what_the_whole_answer_says(plain: SimulatedServer) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    response = plain.complete(6, "a story", **options)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, usage = events(response.text)
    assert len(chunks) == 6
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == plain.text("a story", 6)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * 5 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6


def test_chat_streams_deltas(plain: SimulatedServer) -> None:
    body: dict[str, Any] = {
        "model": "simulated/qwen",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
        "ignore_eos": True,
    }
    whole = plain.client.post("/v1/chat/completions", json=body).json()
    streamed = plain.client.post("/v1/chat/completions", json={**body, "stream": True}).text
    opening, *chunks = events(streamed)
    assert opening["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert whole["object"] == "chat.completion"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_an_answer_ends_by_itself_unless_told_not_to(plain: SimulatedServer) -> None:
    free = plain.complete(3000, "short", ignore_eos=False).json()
    assert free["choices"][0]["finish_reason"] == "stop"
    natural = free["usage"]["completion_tokens"]
    longer = plain.complete(3000, "short", ignore_eos=False, min_tokens=natural + 7).json()
    assert longer["usage"]["completion_tokens"] == natural + 7


def test_errors_look_as_openais_do(plain: SimulatedServer) -> None:
    refused = plain.complete(0)
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "BadRequestError"
    assert refused.json()["error"]["param"] == "max_tokens"
    assert plain.complete(model="other").status_code == 404
    assert plain.client.get("/v1/completions").status_code == 405
    assert plain.client.get("/v2").json()["error"]["code"] == 404
    assert plain.client.post("/v1/completions", content=b"{").status_code == 400


def test_a_client_that_goes_away_aborts_its_request(log: Path) -> None:
    with SimulatedServer(simulated_spec(), log) as server:
        with server.streaming(4000):
            pass
        server.until(lambda: server.page().value("vllm:num_requests_running") == 0)
        page = server.page()
        assert page.value("vllm:request_success_total", finished_reason="abort") == 1
        assert page.value("vllm:kv_cache_usage_perc") == 0
        assert page.value("vllm:generation_tokens_total") < 4000


# Start and end


def test_it_listens_after_its_stages_and_says_what_they_found(log: Path) -> None:
    spec = simulated_spec({"time_scale": 0.02})
    with SimulatedServer(spec, log) as server:
        facts, cache = server.facts(), server.page().labels("vllm:cache_config_info")
    assert facts.stages == (Stage.STARTED, Stage.LOADED, Stage.COMPILED, Stage.CAPTURED)
    assert facts.stage_seconds["compile"] == pytest.approx(0.52, abs=0.01)
    assert facts.stage_seconds["init"] >= 0.6
    assert facts.kv_cache_tokens == int(cache["kv_cache_size_tokens"])
    assert facts.kv_cache_tokens == int(cache["num_gpu_blocks"]) * int(cache["block_size"])
    assert facts.max_concurrency == pytest.approx(
        float(cache["kv_cache_max_concurrency"]), abs=0.01
    )
    assert facts.graph_bytes == pytest.approx(0.42 * 2**30, rel=0.05)
    assert (facts.out_of_memory, facts.fatal, facts.warnings) == ((), (), ())


def test_it_does_not_listen_before_its_stages_are_over(log: Path) -> None:
    spec = simulated_spec({"time_scale": 1})
    with SimulatedServer(spec, log, wait=False) as server:
        server.until(lambda: "Initializing" in server.log_text())
        assert server.health() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=3) == 0


def test_the_default_start_is_quick_and_light(log: Path) -> None:
    with SimulatedServer(simulated_spec({"time_scale": 0.04}), log) as server:
        process = psutil.Process(server.process.pid)
        assert server.facts().stage_seconds["init"] < 3
        assert sum(process.cpu_times()[:2]) < 1.5
        assert process.memory_info().rss < 80e6


def test_told_to_stop_it_aborts_and_exits_0(log: Path) -> None:
    with SimulatedServer(simulated_spec(), log) as server, server.streaming(4000) as response:
        server.process.send_signal(signal.SIGTERM)
        last = events(response.read().decode())[-1]
        assert last["choices"][0]["finish_reason"] == "abort"
        assert server.process.wait(timeout=3) == 0


def test_a_taken_port_and_wrong_arguments_end_it_at_once(plain: SimulatedServer) -> None:
    def run(*argv: str) -> tuple[int, str]:
        command = (sys.executable, "-m", "canaryctl.runtimes.simulator", *argv)
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return done.returncode, done.stdout + done.stderr

    config = json.dumps({"model": "m", "version": "1"})
    code, said = run("--port", str(plain.port), "--config", config)
    assert (code, "cannot listen" in said) == (1, True)
    unknown = json.dumps({"model": "m", "version": "1", "args": {"fault": "slwo"}})
    code, said = run("--port", "1", "--config", unknown)
    assert (code, "unknown fault 'slwo'" in said) == (2, True)


# Numbers


def test_the_numbers_of_a_run_add_up(log: Path) -> None:
    requests, tokens = 20, 10  # all prompts together fit the largest graph
    with SimulatedServer(simulated_spec(), log) as server:
        assert set(server.complete_many(requests, tokens=tokens)) == {200}
        page = server.page()
    value = page.value
    assert value("vllm:prompt_tokens_total") == 16 * requests
    assert value("vllm:generation_tokens_total") == tokens * requests
    assert value("vllm:iteration_tokens_total_sum") == (16 + tokens) * requests
    # The last token of each answer is not computed again.
    assert value("canaryctl_tokens_actual_total") == (16 + tokens - 1) * requests
    assert value("canaryctl_tokens_padded_total") >= value("canaryctl_tokens_actual_total")
    steps = value("canaryctl_engine_steps_total")
    assert steps == value("vllm:iteration_tokens_total_count")
    replayed = page.series("canaryctl_engine_steps_total")
    assert sum(int(labels["bucket"]) * count for labels, count in replayed) == value(
        "canaryctl_tokens_padded_total"
    )
    assert value("vllm:request_success_total", finished_reason="length") == requests
    assert value("http_requests_total", handler="/v1/completions", status="2xx") == requests
    counts = dict.fromkeys(("ttft", "prefill", "tpot", "e2e"), requests)
    counts["itl"] = requests * (tokens - 1)
    for name, count in counts.items():
        assert value(f"canaryctl_{name}_seconds_count") == count
    for fine, coarse in (
        ("canaryctl_ttft_seconds", "vllm:time_to_first_token_seconds"),
        ("canaryctl_prefill_seconds", "vllm:request_prefill_time_seconds"),
        ("canaryctl_tpot_seconds", "vllm:request_time_per_output_token_seconds"),
        ("canaryctl_itl_seconds", "vllm:inter_token_latency_seconds"),
        ("canaryctl_e2e_seconds", "vllm:e2e_request_latency_seconds"),
    ):
        assert value(f"{fine}_count") == value(f"{coarse}_count")
        assert value(f"{fine}_sum") == pytest.approx(value(f"{coarse}_sum"))
    per_request = value("canaryctl_e2e_seconds_sum") - value("canaryctl_ttft_seconds_sum")
    assert value("canaryctl_itl_seconds_sum") == pytest.approx(per_request)


def test_every_signal_of_the_adapter_is_on_the_page(plain: SimulatedServer) -> None:
    plain.complete()
    names = plain.page().names
    for signal_name, ref in ENGINE.metrics("0.25.1").items():
        histogram = ref.kind in (MetricKind.HISTOGRAM, MetricKind.HISTOGRAM_SET)
        sample = f"{ref.name}_bucket" if histogram else ref.name
        assert sample in names, signal_name
        assert ref.exists_with is None or ref.exists_with in names


def test_a_conversation_finds_its_past_in_the_prefix_cache(log: Path) -> None:
    with SimulatedServer(simulated_spec(), log) as server:
        past = list(range(64))
        server.complete(prompt=past)
        server.complete(prompt=[*past, *range(100, 120)])
        page = server.page()
        assert page.value("vllm:prefix_cache_queries_total") == 64 + 84
        assert page.value("vllm:prefix_cache_hits_total") == 64
        server.switch("counter_reset")
        assert server.page().value("vllm:prefix_cache_queries_total") == 0


def test_the_grid_is_attested(plain: SimulatedServer, log: Path) -> None:
    info = plain.page().labels("canaryctl_grid_info")
    resolved = ENGINE.resolved_grid(plain.spec)
    assert info["sizes"] == ",".join(map(str, resolved))
    assert (info["mode"], info["requested"]) == ("FULL_AND_PIECEWISE", "default")
    assert info["engine_version"] == "0.25.1"
    with SimulatedServer(ENGINE.eager(plain.spec), log) as eager:
        eager.complete()
        info = eager.page().labels("canaryctl_grid_info")
        assert (info["mode"], info["sizes"]) == ("NONE", "")
        modes = {
            labels["mode"] for labels, _ in eager.page().series("canaryctl_engine_steps_total")
        }
        assert modes == {"NONE"}
        assert Stage.CAPTURED in eager.facts().stages
        assert eager.text() == plain.text()


def test_without_room_in_the_kv_cache_requests_are_preempted_and_still_served(log: Path) -> None:
    spec = simulated_spec(
        {"gpu_memory_gib": 2.14},
        graph={"capture_sizes": [1, 2, 4, 8, 16]},
        limits={"max_num_seqs": 16, "max_num_batched_tokens": 256, "max_model_len": 256},
    )
    with SimulatedServer(spec, log) as server:
        tokens = int(server.page().labels("vllm:cache_config_info")["kv_cache_size_tokens"])
        assert 256 <= tokens < 16 * 116
        assert server.complete_many(24, tokens=100) == [200] * 24
        page = server.page()
        assert page.value("vllm:num_preemptions_total") > 0
        assert page.value("vllm:generation_tokens_total") == 24 * 100
        # What was preempted is computed again.
        assert page.value("canaryctl_tokens_actual_total") > 24 * (16 + 100 - 1)


def test_forty_streams_a_second_take_well_under_a_third_of_a_core(log: Path) -> None:
    with SimulatedServer(simulated_spec(), log) as server:
        process = psutil.Process(server.process.pid)
        server.complete_many(20, rate=40, tokens=24)
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        assert set(server.complete_many(160, rate=40, tokens=24)) == {200}
        share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
    assert share < 0.33


def test_what_is_counted_is_the_models_time(log: Path) -> None:
    with SimulatedServer(simulated_spec({"jitter": 0}), log) as server:
        for _ in range(5):
            server.complete(50)
        page = server.page()
    # A decode step of batch 1 with a full graph, to its calibrated value.
    assert page.value("canaryctl_tpot_seconds_sum") / 5 == pytest.approx(1.866e-3, rel=1e-3)


# Faults


def median_tpot(server: SimulatedServer) -> float:
    """Of some requests one after the other, from the engine's own numbers."""
    before = server.page()
    for _ in range(5):
        server.complete(12)
    after = server.page()
    return (
        after.value("canaryctl_tpot_seconds_sum") - before.value("canaryctl_tpot_seconds_sum")
    ) / 5


def test_faults_are_switched_on_and_off_while_it_runs(log: Path) -> None:
    with SimulatedServer(simulated_spec(), log) as server:
        usual = median_tpot(server)
        assert server.switch("slow", factor=4).json()["faults"] == ["slow"]
        assert median_tpot(server) == pytest.approx(4 * usual, rel=0.15)
        assert server.client.get("/simulator/faults").json()["factor"] == 4
        server.switch()
        assert median_tpot(server) == pytest.approx(usual, rel=0.15)
        for wrong in ({"faults": ["slwo"]}, {"faults": ["small_kv"]}, {"fault": "slow"}):
            assert server.client.post("/simulator/faults", json=wrong).status_code == 400


def test_slow_tail_slows_a_share_of_the_requests(log: Path) -> None:
    spec = simulated_spec({"fault": "slow_tail", "fault_share": 0.2, "fault_factor": 6})
    with SimulatedServer(spec, log) as server:
        server.complete_many(100, rate=50, tokens=8)
        page = server.page()
    # 20 of 100 with a standard deviation of 4; a usual token takes about 2 ms.
    assert 7 <= page.count_above("canaryctl_tpot_seconds", 0.007) <= 34


def test_oom_in_capture_ends_the_start(log: Path) -> None:
    with SimulatedServer(simulated_spec({"fault": "oom_capture"}), log, wait=False) as server:
        assert server.process.wait(timeout=10) == 1
        facts = server.facts()
    assert Stage.CAPTURED not in facts.stages
    assert "torch.OutOfMemoryError" in facts.out_of_memory[0]
    assert facts.fatal


def test_oom_under_load_fails_what_runs_then_exits(log: Path) -> None:
    with SimulatedServer(simulated_spec(), log) as server:
        with server.streaming(4000) as response:
            server.switch("oom_load")
            last = events(response.read().decode())[-1]
        assert last["error"]["code"] == 500
        assert server.health() == 503
        assert server.complete().status_code == 500
        page = server.page()
        assert page.value("canaryctl_oom_total") == 1
        assert page.value("vllm:request_success_total", finished_reason="error") == 1
        assert page.value("http_requests_total", status="5xx") == 1
        assert server.process.wait(timeout=5) == 0
        assert "torch.OutOfMemoryError" in server.facts().out_of_memory[0]


def test_exit_ends_the_process_with_code_0_and_breaks_what_runs(log: Path) -> None:
    with SimulatedServer(simulated_spec(), log) as server:

        def stream_until_it_breaks() -> None:
            with server.streaming(4000) as response:
                server.switch("exit")
                response.read()

        with pytest.raises(httpx.TransportError):
            stream_until_it_breaks()
        assert server.process.wait(timeout=3) == 0


def test_a_fault_comes_into_force_when_the_artifact_says(log: Path) -> None:
    spec = simulated_spec({"fault": "exit", "fault_at": "running", "fault_after_s": 0.5})
    with SimulatedServer(spec, log, wait=False) as server:
        server.until(lambda: "startup complete" in server.log_text())
        ready = time.monotonic()
        assert server.process.wait(timeout=5) == 0
        assert time.monotonic() - ready > 0.3


def test_hang_is_healthy_and_generates_nothing(log: Path) -> None:
    with SimulatedServer(simulated_spec(), log) as server:
        server.switch("hang")
        statuses: list[int] = []
        asking = threading.Thread(
            target=lambda: statuses.append(
                httpx.post(
                    f"{server.url}/v1/completions", json={"prompt": "hello", "max_tokens": 2}
                ).status_code
            )
        )
        asking.start()
        time.sleep(0.5)
        assert statuses == []
        assert server.health() == 200
        page = server.page()
        assert page.value("vllm:num_requests_waiting") == 1
        assert page.value("vllm:generation_tokens_total") == 0
        server.switch()
        asking.join(timeout=5)
        assert statuses == [200]
        # The time it hung is the request's time to first token.
        assert server.page().value("canaryctl_ttft_seconds_sum") > 0.3


def test_eager_fallback_leaves_the_graphs_unused(log: Path) -> None:
    with SimulatedServer(simulated_spec({"fault": "eager_fallback"}), log) as server:
        assert median_tpot(server) == pytest.approx(14.5e-3, rel=0.15)
        series = server.page().series("canaryctl_engine_steps_total")
        assert {(labels["mode"], labels["bucket"], labels["reason"]) for labels, _ in series} == {
            ("NONE", "0", "downgraded")
        }
        assert server.page().labels("canaryctl_grid_info")["sizes"]


def test_a_reduced_grid_shows_in_steps_and_attestation_alone(log: Path) -> None:
    spec = simulated_spec({"fault": "grid_reduced"}, graph={"capture_sizes": [1, 2, 32, 64]})
    with SimulatedServer(spec, log) as server:
        info = server.page().labels("canaryctl_grid_info")
        assert (info["sizes"], info["requested"]) == ("1,2", "1,2,32,64")
        server.complete_many(8)
        beyond = server.page().value("canaryctl_engine_steps_total", reason="beyond_grid")
        assert beyond > 0
        facts = server.facts()
        assert facts.warnings == ()
        assert facts.resolved == {"graph_mode": "FULL_AND_PIECEWISE", "graph_sizes": "1,2"}


def test_a_smaller_kv_cache_shows_in_the_log_and_on_the_page(
    log: Path, plain: SimulatedServer
) -> None:
    def tokens(server: SimulatedServer) -> int:
        return int(server.page().labels("vllm:cache_config_info")["kv_cache_size_tokens"])

    spec = simulated_spec({"fault": "small_kv", "fault_factor": 4})
    with SimulatedServer(spec, log) as server:
        assert tokens(server) == pytest.approx(tokens(plain) / 4, rel=0.001)
        assert server.facts().kv_cache_tokens == tokens(server)


def test_output_is_wrong_only_under_graphs(log: Path, plain: SimulatedServer) -> None:
    spec = simulated_spec({"fault": "wrong_output"})
    right = plain.text("question")
    with SimulatedServer(spec, log) as server:
        assert server.text("question") != right
    with SimulatedServer(ENGINE.eager(spec), log) as server:
        assert server.text("question") == right


def test_slow_capture_takes_a_multiple_of_the_time(log: Path) -> None:
    spec = simulated_spec(
        {"time_scale": 0.01, "fault": "slow_capture", "fault_factor": 30},
    )
    with SimulatedServer(spec, log) as server:
        # 51 piecewise and 35 full graphs in 4.5 s, of which 1 %, times 30.
        assert server.facts().stage_seconds["capture"] == pytest.approx(1.35, abs=0.1)


def test_the_first_request_is_slow(log: Path) -> None:
    with SimulatedServer(simulated_spec({"fault": "slow_first_request"}), log) as server:
        server.complete(1)
        assert server.page().value("canaryctl_ttft_seconds_sum") > 1.5
        server.complete(1)
        assert server.page().value("canaryctl_ttft_seconds_sum") < 1.6


def test_metrics_go_missing_or_are_renamed(log: Path) -> None:
    with SimulatedServer(simulated_spec(), log) as server:
        server.complete()
        before = server.page().names
        server.switch("missing_metrics")
        left = server.page().names
        assert {"vllm:num_requests_running", "http_requests_total"} <= left
        assert not [name for name in left if name.startswith("canaryctl_")]
        assert "vllm:time_to_first_token_seconds_count" not in left
        server.switch("metrics_renamed")
        renamed = server.page().names
        assert "canaryctl_tpot_seconds_count" in before - renamed
        assert "vllm:time_per_output_token_seconds_count" in renamed - before
        assert "canaryctl_ttft_seconds_count" in renamed
        server.switch()
        assert server.page().names == before


def test_counters_are_reset_while_the_process_lives_on(log: Path) -> None:
    with SimulatedServer(simulated_spec(), log) as server:
        server.complete()
        before = server.page()
        server.switch("counter_reset")
        after = server.page()
        assert before.value("vllm:generation_tokens_total") == 8
        assert after.value("vllm:generation_tokens_total") == 0
        assert after.value("canaryctl_tpot_seconds_count") == 0
        born = "process_start_time_seconds"
        assert after.value(born) == before.value(born)
        server.complete()
        assert server.page().value("vllm:generation_tokens_total") == 8


def test_a_gpu_that_is_too_small_is_found_at_start(log: Path) -> None:
    spec = simulated_spec({"gpu_memory_gib": 2.0})
    with SimulatedServer(spec, log, wait=False) as server:
        assert server.process.wait(timeout=10) == 1
        assert "max seq len" in server.log_text()
        assert server.facts().fatal
