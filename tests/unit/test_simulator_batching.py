"""The batching model: its invariants, its statistics, and that it repeats."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canaryctl.runtimes.engines.grid import vllm_default_sizes
from canaryctl.runtimes.simulator.batching import (
    Batcher,
    BatchLimits,
    Conditions,
    Request,
    Step,
)
from canaryctl.runtimes.simulator.cost import calibrated
from canaryctl.runtimes.simulator.graphs import EagerReason, GraphSet, StepMode
from canaryctl.runtimes.simulator.prefix import BLOCK_SIZE

GRAPHS = GraphSet.of("FULL_AND_PIECEWISE", vllm_default_sizes(256, 8192), 256)


def make_batcher(
    *,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 2048,
    num_blocks: int = 4096,
    graphs: GraphSet = GRAPHS,
    seed: int = 0,
    jitter: float = 0.0,
) -> Batcher:
    return Batcher(
        BatchLimits(max_num_seqs, max_num_batched_tokens, num_blocks),
        graphs,
        calibrated(),
        compiled=True,
        seed=seed,
        jitter=jitter,
    )


@dataclass
class Trace:
    """What a run did: all steps, and the times of each request's tokens."""

    steps: list[Step] = field(default_factory=list)
    tokens: dict[Request, list[float]] = field(default_factory=dict)

    def ttft(self) -> list[float]:
        return [times[0] - request.arrival for request, times in self.tokens.items()]

    def e2e(self) -> list[float]:
        return [times[-1] - request.arrival for request, times in self.tokens.items()]

    def tpot(self, request: Request) -> float:
        times = self.tokens[request]
        return (times[-1] - times[0]) / (len(times) - 1)


def run(batcher: Batcher, requests: Sequence[Request]) -> Trace:
    """Serve ``requests`` (in order of arrival) to their ends, in the model's own time."""
    trace, pending, now = Trace(tokens={request: [] for request in requests}), list(requests), 0.0
    while pending or not batcher.idle:
        while pending and (pending[0].arrival <= now or batcher.idle):
            now = max(now, pending[0].arrival)
            batcher.add(pending.pop(0))
        step = batcher.begin(now)
        if step is None:
            arrivals = [pending[0].arrival] if pending else []
            now = min([batcher.next_ready(now), *arrivals])
            continue
        now = step.end
        trace.steps.append(step)
        for request in batcher.complete(step):
            trace.tokens[request].append(now)
    return trace


def poisson(count: int, rate: float, *, seed: int = 1, output_tokens: int = 24) -> list[Request]:
    randomness, at, requests = random.Random(seed), 0.0, []
    for _ in range(count):
        at += randomness.expovariate(rate)
        requests.append(Request(prompt_tokens=64, output_tokens=output_tokens, arrival=at))
    return requests


request_shapes = st.lists(
    st.tuples(st.integers(1, 200), st.integers(1, 40), st.floats(0, 0.05)),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60)
@given(
    shapes=request_shapes,
    max_num_seqs=st.integers(1, 8),
    budget=st.integers(8, 128),
    num_blocks=st.integers(15, 40),
    slow_share=st.sampled_from([0.0, 0.5]),
)
def test_every_request_gets_all_its_tokens_within_the_limits(
    shapes: list[tuple[int, int, float]],
    max_num_seqs: int,
    budget: int,
    num_blocks: int,
    slow_share: float,
) -> None:
    batcher = make_batcher(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, num_blocks=num_blocks
    )
    batcher.conditions = Conditions(slow_share=slow_share, slow_factor=4.0)
    at, requests = 0.0, []
    for prompt_tokens, output_tokens, gap in shapes:
        at += gap
        requests.append(Request(prompt_tokens, output_tokens, at))
    trace = run(batcher, requests)
    for request in requests:
        times = trace.tokens[request]
        assert len(times) == request.output_tokens
        assert times == sorted(times)
        assert times[0] > request.arrival
    for step in trace.steps:
        assert 0 < step.tokens <= budget
        assert len(step.work) <= max_num_seqs
        assert step.padded >= step.tokens
        assert step.end > step.begin
    assert all(before.end <= after.begin for before, after in pairwise(trace.steps))
    assert batcher.kv_usage == 0.0
    if not batcher.preemptions:
        scheduled = sum(step.tokens for step in trace.steps)
        assert scheduled == sum(r.prompt_tokens + r.output_tokens - 1 for r in requests)


def test_a_batch_decodes_at_the_calibrated_speed() -> None:
    for batch, full_ms in ((1, 1.87), (16, 1.98), (48, 3.13), (64, 3.40)):
        requests = [Request(8, 50, arrival=0.0) for _ in range(batch)]
        trace = run(make_batcher(), requests)
        assert 1000 * trace.tpot(requests[0]) == pytest.approx(full_ms, abs=0.01)
        decoding = [step for step in trace.steps if step.pure_decode]
        assert {step.dispatch.mode for step in decoding} == {StepMode.FULL}
        assert len(decoding) == 49


def test_a_batch_beyond_the_grid_is_several_times_slower() -> None:
    small = GraphSet.of("FULL_AND_PIECEWISE", (1, 2, 4, 8), 64)
    speeds = []
    for batch in (8, 9):
        requests = [Request(8, 50, arrival=0.0) for _ in range(batch)]
        trace = run(make_batcher(graphs=small), requests)
        speeds.append(trace.tpot(requests[0]))
    assert speeds[1] > 4 * speeds[0]
    assert trace.steps[-1].dispatch.reason is EagerReason.BEYOND_GRID


def test_a_long_prompt_is_prefilled_in_chunks_beside_decoding() -> None:
    batcher = make_batcher(max_num_batched_tokens=100)
    decoding = Request(4, 30, arrival=0.0)
    long = Request(350, 5, arrival=0.003)
    trace = run(batcher, [decoding, long])
    chunks = [dict(step.work).get(long, 0) for step in trace.steps]
    assert [chunk for chunk in chunks if chunk > 1] == [99, 99, 99, 53]
    mixed = [step for step in trace.steps if step.tokens == 100]
    assert len(mixed) == 3
    assert all(not step.pure_decode and decoding in dict(step.work) for step in mixed)
    assert {step.dispatch.mode for step in mixed} == {StepMode.PIECEWISE}


def test_the_request_admitted_last_is_preempted_and_computed_again() -> None:
    batcher = make_batcher(num_blocks=8)
    first = Request(4 * BLOCK_SIZE, 40, arrival=0.0)
    second = Request(4 * BLOCK_SIZE - 1, 40, arrival=0.0)
    trace = run(batcher, [first, second])
    assert batcher.preemptions == 1
    assert trace.tokens[first][-1] < trace.tokens[second][-1]
    again = [dict(step.work)[second] for step in trace.steps if dict(step.work).get(second, 0) > 1]
    assert again[0] == second.prompt_tokens
    assert again[1] > second.prompt_tokens  # with what it had generated
    assert len(trace.tokens[second]) == 40


def test_a_request_that_can_never_be_held_is_refused() -> None:
    batcher = make_batcher(num_blocks=4)
    with pytest.raises(ValueError, match="needs 65 tokens of KV cache, which holds 64"):
        batcher.add(Request(60, 5, arrival=0.0))
    batcher.add(Request(60, 4, arrival=0.0))


def test_an_aborted_request_frees_its_cache_in_the_middle_of_a_step() -> None:
    batcher = make_batcher()
    kept, aborted = Request(100, 10, arrival=0.0), Request(100, 10, arrival=0.0)
    waiting = Request(100, 10, arrival=9.0)
    for request in (kept, aborted, waiting):
        batcher.add(request)
    step = batcher.begin(0.0)
    assert step is not None
    held = batcher.kv_usage
    batcher.abort(aborted)
    batcher.abort(waiting)
    assert batcher.kv_usage == pytest.approx(held / 2)
    assert batcher.complete(step) == [kept]
    assert (batcher.running, list(batcher.waiting)) == ([kept], [])


def timeline(trace: Trace) -> list[tuple[float, float, int, str]]:
    return [(step.begin, step.end, step.tokens, step.dispatch.mode) for step in trace.steps]


def test_the_same_seed_and_arrivals_give_the_same_steps() -> None:
    one, two, other = (
        timeline(run(make_batcher(seed=seed, jitter=0.1), poisson(100, 30))) for seed in (3, 3, 4)
    )
    assert one == two
    assert one != other


def test_jitter_leaves_the_mean_step_time_alone() -> None:
    requests = [Request(8, 4000, arrival=0.0)]
    batcher = make_batcher(jitter=0.2, seed=5)
    durations = [step.end - step.begin for step in run(batcher, requests).steps[1:]]
    mean, sd = statistics.mean(durations), statistics.stdev(durations)
    expected = calibrated().full.at(1)
    assert sd / mean == pytest.approx(0.2, rel=0.1)
    assert abs(mean - expected) < 4 * sd / len(durations) ** 0.5


def test_one_request_at_a_time_waits_as_queueing_theory_says() -> None:
    # One sequence, one token, one step each: an M/D/1 queue at 60 % of its capacity.
    service = calibrated().piecewise.at(64)
    requests = poisson(20_000, 0.6 / service, output_tokens=1)
    mean_ttft = statistics.mean(run(make_batcher(max_num_seqs=1), requests).ttft())
    expected = service + 0.6 * service / (2 * (1 - 0.6))
    assert mean_ttft == pytest.approx(expected, rel=0.05)


def test_latency_grows_with_the_load() -> None:
    means = [
        statistics.mean(run(make_batcher(max_num_seqs=16), poisson(600, rate)).e2e())
        for rate in (10, 100, 250)
    ]
    assert means == sorted(means)
    assert means[2] > 1.5 * means[0]


def test_beyond_capacity_requests_queue_without_end() -> None:
    batcher = make_batcher(max_num_seqs=4)
    waits = run(batcher, poisson(600, 400)).ttft()
    assert statistics.mean(waits[-100:]) > 3 * statistics.mean(waits[:100])


def test_a_slow_tail_slows_its_share_of_requests_and_no_other() -> None:
    plain = run(make_batcher(), poisson(2000, 20))
    batcher = make_batcher(seed=7)
    batcher.conditions = Conditions(slow_share=0.05, slow_factor=8.0)
    faulty = run(batcher, poisson(2000, 20))
    slow = [request for request in faulty.tokens if request.slowdown > 1]
    # 5 % of 2000 with a standard deviation of 9.7.
    assert 61 <= len(slow) <= 139
    usual = statistics.median(plain.tpot(request) for request in plain.tokens)
    assert statistics.median(map(faulty.tpot, slow)) == pytest.approx(8 * usual, rel=0.1)
    others = [faulty.tpot(request) for request in faulty.tokens if request.slowdown == 1]
    assert statistics.median(others) == pytest.approx(usual, rel=0.05)


def test_slow_steps_and_lost_graphs_slow_everything() -> None:
    def median_tpot(conditions: Conditions) -> float:
        batcher = make_batcher()
        batcher.conditions = conditions
        trace = run(batcher, poisson(100, 5))
        return statistics.median(trace.tpot(request) for request in trace.tokens)

    usual = median_tpot(Conditions())
    assert median_tpot(Conditions(step_factor=3.0)) == pytest.approx(3 * usual, rel=0.1)
    assert median_tpot(Conditions(downgraded=True)) == pytest.approx(14.53e-3, rel=0.05)


def test_a_late_capture_makes_the_first_step_of_each_graph_slow() -> None:
    def steps(conditions: Conditions) -> list[Step]:
        batcher = make_batcher()
        batcher.conditions = conditions
        return run(batcher, [Request(20, 5, 0.0), Request(20, 5, 0.0)]).steps

    usual, late = steps(Conditions()), steps(Conditions(late_capture=10.0))
    assert not any(step.captured for step in usual)
    assert [step.captured for step in late] == [True, True, False, False, False]
    assert [step.dispatch.mode for step in late[:2]] == [StepMode.PIECEWISE, StepMode.FULL]
    more = [(b.end - b.begin) - (a.end - a.begin) for a, b in zip(usual, late, strict=True)]
    assert min(more[:2]) > 0.2
    assert max(more[2:]) == pytest.approx(0)
