"""The shapes that a trace's requests make, by the simulated engine's batching, in virtual time."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from canaryctl.common.errors import InputError
from canaryctl.runtimes.grid.cost import CostModel
from canaryctl.runtimes.grid.distribution import Distribution, Kind, Traffic
from canaryctl.runtimes.grid.rules import EngineRules
from canaryctl.runtimes.grid.traces import Trace
from canaryctl.runtimes.simulator.batching import Batcher, BatchLimits, Request, Step
from canaryctl.runtimes.simulator.prefix import BLOCK_SIZE

Counts = Mapping[Kind, "Counter[int]"]


def replay(
    trace: Trace, cost: CostModel, rules: EngineRules, *, kv_tokens: int, speed: float = 1.0
) -> Traffic:
    """One engine with its default grid serves the trace; ``speed``: how many times faster
    requests arrive than in it.

    The batching is that of the simulated engine: no prefix is cached, a context's length does
    not slow a step. InputError names the line of a request that the engine could not hold.
    """
    if not speed > 0:
        raise InputError(f"found a speed of {speed:g}, expected more than 0")
    batcher = Batcher(
        BatchLimits(rules.max_num_seqs, rules.max_num_batched_tokens, kv_tokens // BLOCK_SIZE),
        rules.graphs(rules.default()),
        cost.simulated(),
        compiled=True,
    )
    whole: dict[Kind, Counter[int]] = defaultdict(Counter)
    by_hour: dict[int, dict[Kind, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    waiting = iter(trace.requests)
    upcoming = next(waiting, None)
    now = 0.0
    while upcoming is not None or not batcher.idle:
        if batcher.idle and upcoming is not None:
            now = max(now, upcoming.arrival_s / speed)
        while upcoming is not None and upcoming.arrival_s / speed <= now:
            request = Request(
                upcoming.input_tokens, upcoming.output_tokens, upcoming.arrival_s / speed
            )
            try:
                batcher.add(request)
            except ValueError as error:
                raise InputError(f"{trace.path}:{upcoming.line}: {error}") from error
            upcoming = next(waiting, None)
        step = batcher.begin(now)
        if step is None:
            now = batcher.next_ready(now)
            continue
        _count(whole, step)
        if trace.begins is not None:
            _count(by_hour[int((trace.begins + now * speed) % 86400 // 3600)], step)
        now = step.end
        batcher.complete(step)
    return Traffic(
        f"{trace.path}, {len(trace.requests)} requests replayed",
        _distributions(whole),
        (
            "shapes are the simulated engine's for these requests, not counted on a real one",
            *((f"requests arrive {speed:g} times as fast as in the trace",) if speed != 1 else ()),
        ),
        {hour: _distributions(counts) for hour, counts in sorted(by_hour.items())},
    )


def _count(counts: dict[Kind, "Counter[int]"], step: Step) -> None:
    counts[Kind.SCHEDULED_TOKENS][step.tokens] += 1
    if step.pure_decode:
        counts[Kind.DECODE_SEQUENCES][len(step.work)] += 1
        return
    counts[Kind.MIXED_TOKENS][step.tokens] += 1
    prompt = sum(tokens for request, tokens in step.work if not request.decoding)
    if prompt:
        counts[Kind.PREFILL_TOKENS][prompt] += 1


def _distributions(counts: Counts) -> dict[Kind, Distribution]:
    return {kind: Distribution.of(sizes) for kind, sizes in counts.items()}
