"""Warm-up and the progress probe against simulated engines, each a real server process."""

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import httpx
import pytest

from canaryctl.runtimes.engines.registry import engine
from canaryctl.runtimes.httpclient import healthy
from canaryctl.runtimes.placements.base import Handle, InstanceRequest
from canaryctl.runtimes.placements.process import ProcessPlacement
from canaryctl.runtimes.progress import ProbeTarget, ProgressProbe, ProgressResult
from canaryctl.runtimes.replays import BucketKind, Replays, StepCounts
from canaryctl.runtimes.spec import (
    EngineSpec,
    GraphMode,
    GraphSpec,
    LimitsSpec,
    ModelSpec,
    RuntimeSpec,
    WarmupPlan,
)
from canaryctl.runtimes.warmup import WarmupRun, WarmupState, plan_requests

DIGEST = "sha256:" + "e" * 64
LIMITS = LimitsSpec(max_num_seqs=16, max_num_batched_tokens=512, max_model_len=512)


class Engines:
    """Simulated engines of one test, in a placement of its own."""

    def __init__(self, state_dir: Path) -> None:
        self.adapter = engine("simulated")
        self.place = ProcessPlacement(state_dir)
        self.started: list[Handle] = []

    def start(self, plan: WarmupPlan | None = None, **args: object) -> tuple[RuntimeSpec, str]:
        """The spec and the URL of a new engine that answers its health check."""
        spec = RuntimeSpec(
            engine=EngineSpec.model_validate(
                {
                    "name": "simulated",
                    "version": "0.25.1",
                    "args": {"time_scale": 0, **args},
                }
            ),
            model=ModelSpec(id="m"),
            graph=GraphSpec(capture_sizes=(1, 2, 4, 8, 16)),
            limits=LIMITS,
            warmup_plan=plan or WarmupPlan(),
        )
        port = self.place.free_port()
        handle = self.place.ensure(
            InstanceRequest(
                instance=f"engine-{len(self.started)}",
                digest=DIGEST,
                launch=self.adapter.launch(spec, host="127.0.0.1", port=port),
                port=port,
            )
        )
        self.started.append(handle)
        url = self.place.base_url(handle)
        wait_for(lambda: healthy(url, self.adapter.health_path(), 1))
        return spec, url

    def model(self, spec: RuntimeSpec) -> str:
        return self.adapter.model_name(spec)

    def stop(self) -> None:
        for handle in self.started:
            wait_for(
                lambda h=handle: self.place.stop(h.instance, h.digest, h, grace_s=2)  # type: ignore[misc]
            )


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    made = Engines(tmp_path)
    yield made
    made.stop()


def wait_for(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def switch(url: str, *faults: str) -> None:
    httpx.post(
        f"{url}/simulator/faults", json={"faults": faults}, trust_env=False
    ).raise_for_status()


HELD = {"true": BucketKind.DECODE, "false": BucketKind.MIXED}


def step_counts(url: str) -> dict[tuple[BucketKind | None, int], float]:
    """Steps that the engine counted, by what they held and the graph replayed (0: none)."""
    with urlopen(f"{url}/metrics") as answer:  # noqa: S310  an engine of this test
        page = answer.read().decode()
    found: dict[tuple[BucketKind | None, int], float] = {}
    for labels, value in re.findall(
        r"^canaryctl_engine_steps_total\{(.*)\} (\S+)$", page, re.MULTILINE
    ):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        key = (HELD[label["pure_decode"]], int(label["bucket"]))
        found[key] = found.get(key, 0.0) + float(value)
    return found


def test_every_bucket_is_run_the_asked_number_of_times(engines: Engines) -> None:
    plan = WarmupPlan(
        decode_buckets=(1, 4, 8, 16), mixed_token_buckets=(64, 256), repeat_per_bucket=3
    )
    spec, url = engines.start(plan)
    batches = plan_requests(plan, spec.limits)
    run = WarmupRun(url, engines.model(spec), batches)
    end = run.wait(60)
    assert (end.state, end.reason) == (WarmupState.DONE, None)
    assert end.done == end.total == 18
    assert end.current is None
    assert [(t.kind, t.bucket, t.repeat) for t in end.times] == [
        (b.kind, b.bucket, b.repeat) for b in batches
    ]
    assert all(t.seconds > 0 for t in end.times)
    assert {t.kind for t in end.times} == {BucketKind.DECODE, BucketKind.MIXED}
    # The engine's own account: graphs of every decode bucket were replayed, in pure decode.
    replayed = step_counts(url)
    for bucket in (1, 4, 8, 16):
        assert replayed.get((BucketKind.DECODE, bucket), 0) >= 3 * 4, (bucket, replayed)


def replays(url: str, mode: GraphMode = GraphMode.FULL_AND_PIECEWISE) -> Replays:
    """As an engine tells them that counts nothing before its first step."""

    def read() -> StepCounts | None:
        found = step_counts(url)
        return {key: count for key, count in found.items() if key[1]} if found else None

    return Replays.of(mode, (1, 2, 4, 8, 16), read)


@pytest.mark.parametrize(("fault", "least"), [("", 1), ("eager_fallback", 0)])
def test_replays_are_counted_by_the_engine_and_not_by_requests(
    engines: Engines, fault: str, least: int
) -> None:
    plan = WarmupPlan(decode_buckets=(1, 3), mixed_token_buckets=(12, 64), repeat_per_bucket=1)
    spec, url = engines.start(plan, **({"fault": fault} if fault else {}))
    batches = plan_requests(plan, LIMITS)
    counted_s = 0.3 if fault else 2.0  # that none is counted takes as long as it is waited for
    proof = replays(url)
    end = WarmupRun(url, engines.model(spec), batches, replays=proof, counted_s=counted_s).wait(60)
    assert (end.state, end.reason) == (WarmupState.DONE, None)
    found = {f"{t.kind} {t.bucket}": t for t in end.times}
    # Three sequences are padded to the graph of four; 64 tokens are beyond the grid.
    graphs = {"decode 1": 1, "decode 3": 4, "mixed 12": 16, "mixed 64": 0}
    assert {name: t.graph for name, t in found.items()} == graphs
    assert found.pop("mixed 64").replayed is None
    for name, time_taken in found.items():
        assert time_taken.replayed is not None, name
        assert time_taken.replayed >= least, name
        assert fault == "" or time_taken.replayed == 0
        assert time_taken.seconds > 0


def test_a_busy_engine_that_does_not_answer_at_once_is_asked_again(engines: Engines) -> None:
    plan = WarmupPlan(decode_buckets=(2,), repeat_per_bucket=2)
    spec, url = engines.start(plan)
    proof, asked = replays(url), itertools.count()

    def now_and_then() -> StepCounts | None:
        return proof.read() if next(asked) % 3 == 2 else None

    batches, busy = plan_requests(plan, LIMITS), replace(proof, read=now_and_then)
    end = WarmupRun(url, engines.model(spec), batches, replays=busy).wait(60)
    assert end.state is WarmupState.DONE
    assert all(t.replayed for t in end.times)
    silent = replace(proof, read=lambda: None)
    end = WarmupRun(url, engines.model(spec), batches, replays=silent, counted_s=0.3).wait(60)
    assert [t.replayed for t in end.times] == [None, None]


def test_steps_with_prompts_have_no_graph_where_decodes_alone_are_captured() -> None:
    sizes = (1, 2, 4)
    for mode in GraphMode:
        made = Replays.of(mode, sizes, lambda: None)
        mixed = 0 if mode in (GraphMode.NONE, GraphMode.FULL_DECODE_ONLY) else 4
        assert made.graph(BucketKind.MIXED, 3) == mixed
        assert made.graph(BucketKind.DECODE, 3) == 4
        assert made.graph(BucketKind.DECODE, 5) == 0


def test_steps_of_which_it_is_unknown_what_they_held_prove_nothing(engines: Engines) -> None:
    plan = WarmupPlan(decode_buckets=(2,), repeat_per_bucket=1)
    spec, url = engines.start(plan)

    def unclear() -> StepCounts:
        return {(None, graph): count for (_, graph), count in step_counts(url).items()}

    proof = Replays((1, 2, 4), (), unclear)
    batches = plan_requests(plan, LIMITS)
    end = WarmupRun(url, engines.model(spec), batches, replays=proof, counted_s=0.3).wait(60)
    assert end.state is WarmupState.DONE
    assert [(t.graph, t.replayed) for t in end.times] == [(2, None)]


def test_a_plan_without_buckets_is_done_at_once() -> None:
    run = WarmupRun("http://127.0.0.1:9", "m", ())
    assert run.wait(5).state is WarmupState.DONE


def test_an_engine_that_is_not_there_fails_it_with_a_reason() -> None:
    batches = plan_requests(WarmupPlan(decode_buckets=(2,)), LIMITS)
    end = WarmupRun("http://127.0.0.1:9", "m", batches).wait(20)
    assert end.state is WarmupState.FAILED
    assert end.reason is not None
    assert end.reason.startswith("decode bucket 2 (sequences), run 1: ConnectError")


def test_a_model_that_is_not_served_fails_it_in_the_engines_words(engines: Engines) -> None:
    plan = WarmupPlan(decode_buckets=(1,))
    spec, url = engines.start(plan)
    end = WarmupRun(url, "no-such-model", plan_requests(plan, spec.limits)).wait(20)
    assert end.state is WarmupState.FAILED
    assert end.reason is not None
    assert "HTTP 404" in end.reason


def test_a_hung_engine_runs_into_the_time_limit_of_a_batch(engines: Engines) -> None:
    plan = WarmupPlan(decode_buckets=(2,))
    spec, url = engines.start(plan)
    switch(url, "hang")
    run = WarmupRun(url, engines.model(spec), plan_requests(plan, spec.limits), batch_timeout_s=1.0)
    wait_for(lambda: run.progress().current == "decode bucket 2 (sequences), run 1")
    end = run.wait(20)
    assert end.state is WarmupState.FAILED
    assert end.reason is not None
    assert "run 1" in end.reason
    assert end.done == 0


def test_an_engine_that_dies_fails_it(engines: Engines) -> None:
    plan = WarmupPlan(decode_buckets=(4,))
    spec, url = engines.start(plan)
    switch(url, "oom_load")
    end = WarmupRun(url, engines.model(spec), plan_requests(plan, spec.limits)).wait(20)
    assert end.state is WarmupState.FAILED
    assert end.reason is not None
    assert end.reason.startswith("decode bucket 4 (sequences), run 1: ")


def test_it_can_be_cancelled(engines: Engines) -> None:
    plan = WarmupPlan(decode_buckets=(2,))
    spec, url = engines.start(plan)
    switch(url, "hang")
    run = WarmupRun(url, engines.model(spec), plan_requests(plan, spec.limits))
    wait_for(lambda: run.progress().current is not None)
    run.cancel()
    assert run.wait(5).state is WarmupState.CANCELLED


def test_an_engine_that_never_runs_the_bucket_together_is_found_out(engines: Engines) -> None:
    """The limits of the plan say 32 sequences; the engine takes 16 at once."""
    spec, url = engines.start()
    limits = LimitsSpec(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=64)
    batches = plan_requests(WarmupPlan(decode_buckets=(32,)), limits)
    end = WarmupRun(url, engines.model(spec), batches, together_s=5).wait(60)
    assert end.state is WarmupState.FAILED
    assert end.reason is not None
    assert "never ran in the same step" in end.reason


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def poll_until(
    probe: ProgressProbe, targets: dict[str, ProbeTarget], now: datetime, count: int
) -> list[ProgressResult]:
    found: list[ProgressResult] = []

    def enough() -> bool:
        found.extend(probe.poll(targets, now))
        return len(found) >= count

    wait_for(enough)
    return found


def test_an_engine_with_traffic_is_not_asked(engines: Engines) -> None:
    spec, url = engines.start()
    model = engines.model(spec)

    def first_tokens() -> float:
        page = httpx.get(f"{url}/metrics", trust_env=False).text
        return float(re.findall(r"^canaryctl_ttft_seconds_count\S* (\S+)$", page, re.MULTILINE)[0])

    def complete() -> None:
        body = {"model": model, "prompt": [1, 2, 3], "max_tokens": 2}
        httpx.post(f"{url}/v1/completions", json=body, trust_env=False).raise_for_status()

    targets = {"one": ProbeTarget(url, model, first_tokens)}
    probe = ProgressProbe(interval_s=1.0, timeout_s=1.0)
    (asked,) = poll_until(probe, targets, NOW, 1)
    assert asked.ok
    assert not asked.seen
    complete()
    wait_for(lambda: first_tokens() == 2)
    (seen,) = poll_until(probe, targets, NOW + timedelta(seconds=1), 1)
    assert seen.ok
    assert seen.seen
    assert first_tokens() == 2, "nothing but the traffic"
    (idle,) = poll_until(probe, targets, NOW + timedelta(seconds=2), 1)
    assert idle.ok
    assert not idle.seen
    assert first_tokens() == 3
    complete()
    wait_for(lambda: first_tokens() == 4)
    switch(url, "hang")
    (before,) = poll_until(probe, targets, NOW + timedelta(seconds=3), 1)
    assert before.seen, "it generated since the last check"
    (hung,) = poll_until(probe, targets, NOW + timedelta(seconds=4), 1)
    assert hung.reason == "no token in 1 s"


def test_progress_is_a_token_and_a_hang_is_found_in_time(engines: Engines) -> None:
    spec, well = engines.start()
    _, hung = engines.start()
    targets = {
        "well": ProbeTarget(well, engines.model(spec)),
        "hung": ProbeTarget(hung, engines.model(spec)),
    }
    probe = ProgressProbe(interval_s=1.0, timeout_s=1.0)
    first = poll_until(probe, targets, NOW, 2)
    assert {result.instance for result in first} == {"well", "hung"}
    assert all(result.ok and result.seconds is not None for result in first)

    switch(hung, "hang")
    assert probe.poll(targets, NOW + timedelta(seconds=0.5)) == (), "not due yet"
    later = NOW + timedelta(seconds=1)
    begun = time.monotonic()
    second = {result.instance: result for result in poll_until(probe, targets, later, 2)}
    assert time.monotonic() - begun < 1.5
    assert second["well"].ok
    assert not second["hung"].ok
    assert second["hung"].reason == "no token in 1 s"
    assert healthy(hung, "/health", 1), "health alone would not have told"


def test_at_most_one_check_of_an_instance_is_outstanding(engines: Engines) -> None:
    spec, url = engines.start()
    switch(url, "hang")
    targets = {"one": ProbeTarget(url, engines.model(spec))}
    probe = ProgressProbe(interval_s=0.1, timeout_s=30.0)
    for second in range(5):
        assert probe.poll(targets, NOW + timedelta(seconds=second)) == ()
    page = httpx.get(f"{url}/metrics", trust_env=False).text
    held = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", page, re.MULTILINE)
    assert sum(map(float, held)) == 1
    late = NOW + timedelta(seconds=31)
    assert probe.poll(targets, late) == (), "whoever asks may have stood still itself"
    (given_up,) = probe.poll(targets, late)
    assert given_up.reason == "no token in 30 s"
    assert probe.poll(targets, NOW + timedelta(seconds=32)) == (), "told once"


def test_an_answer_that_waited_for_whoever_asked_is_progress(engines: Engines) -> None:
    """As after the controller was stopped for longer than a token may take."""
    spec, url = engines.start()
    targets = {"one": ProbeTarget(url, engines.model(spec))}
    probe = ProgressProbe(interval_s=1.0, timeout_s=1.0)
    assert probe.poll(targets, NOW) == ()
    late = NOW + timedelta(seconds=60)
    results = list(probe.poll(targets, late))  # the answer is on its way
    time.sleep(1)
    results += probe.poll(targets, late)
    assert [result.ok for result in results] == [True]


def test_what_is_not_there_fails_and_who_is_gone_is_forgotten(engines: Engines) -> None:
    targets = {"gone": ProbeTarget("http://127.0.0.1:9", "m")}
    probe = ProgressProbe(interval_s=1.0, timeout_s=1.0)
    (result,) = poll_until(probe, targets, NOW, 1)
    assert result.reason is not None
    assert result.reason.startswith("ConnectError")
    probe.poll(targets, NOW + timedelta(seconds=2))
    assert probe.poll({}, NOW + timedelta(seconds=4)) == ()
    spec, url = engines.start()
    wrong = poll_until(probe, {"wrong": ProbeTarget(url, "no-such-model")}, NOW, 1)
    assert wrong[0].reason is not None
    assert wrong[0].reason.startswith("HTTP 404")
    moved = {"gone": ProbeTarget(url, engines.model(spec))}
    assert poll_until(probe, moved, NOW, 1)[0].ok


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, "<html>not an engine</html>", "expected a completion with its usage"),
        (200, '{"usage": {"completion_tokens": 0}}', "expected one token, found 0"),
        (503, "engine is dead", "HTTP 503: engine is dead"),
    ],
)
def test_an_answer_without_a_token_is_no_progress(status: int, body: str, said: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()
        writer.close()

    async def probed() -> ProgressResult:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            targets = {"one": ProbeTarget(f"http://127.0.0.1:{port}", "m")}
            probe = ProgressProbe(interval_s=1.0, timeout_s=5.0)
            while not (results := probe.poll(targets, NOW)):
                await asyncio.sleep(0.01)
        return results[0]

    result = asyncio.run(probed())
    assert not result.ok
    assert result.reason is not None
    assert said in result.reason
