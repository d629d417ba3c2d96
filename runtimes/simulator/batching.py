"""Continuous batching, one step at a time, as vLLM's scheduler does it.

Pure: time is given, randomness is seeded, so the same arrivals give the same steps. A step
first serves the running requests (one token each, or a chunk of prefill), then admits waiting
ones, within ``max_num_batched_tokens``. KV cache is held in blocks; when none is free the
request admitted last is preempted and computed again later. What the prefix cache holds of a
prompt is not computed again, but for its last token. Context length does not change a step's time.
"""

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from canaryctl.runtimes.simulator.cost import CostModel
from canaryctl.runtimes.simulator.graphs import Dispatch, GraphSet, StepMode
from canaryctl.runtimes.simulator.prefix import BLOCK_SIZE, PrefixCache


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. Times in seconds; ``output_tokens`` is how many it will generate.

    ``slowdown``: how many times slower than its neighbours it is served, without slowing them.
    ``ready_at``: it takes part in no step that begins earlier. ``scheduled``: when the first
    step that it took part in began.
    ``prefix``: the keys of its prompt's blocks.
    """

    prompt_tokens: int
    output_tokens: int
    arrival: float
    slowdown: float = 1.0
    ready_at: float = 0.0
    scheduled: float = math.inf
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    gone: bool = False
    prefix: tuple[bytes, ...] = ()

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.generated

    @property
    def decoding(self) -> bool:
        """All but its last token is computed: it takes one token of the next step."""
        return self.generated > 0 and self.computed == self.length - 1

    @property
    def finished(self) -> bool:
        return self.generated == self.output_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what it computes, how it runs, and when it begins and ends (seconds)."""

    begin: float
    end: float
    work: tuple[tuple[Request, int], ...]
    tokens: int
    pure_decode: bool
    dispatch: Dispatch
    captured: bool = False  # its graph, which no step had needed before

    @property
    def padded(self) -> int:
        return self.dispatch.bucket or self.tokens


@dataclass(slots=True)
class Conditions:
    """What faults change in the model. ``late_capture``: the first step that needs a graph takes
    so many times a capture longer; 0: all are captured before."""

    step_factor: float = 1.0
    downgraded: bool = False
    slow_share: float = 0.0
    slow_factor: float = 1.0
    late_capture: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchLimits:
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * BLOCK_SIZE


class Batcher:
    """The scheduler. ``begin`` forms a step, ``complete`` applies it when its time is over."""

    def __init__(
        self,
        limits: BatchLimits,
        graphs: GraphSet,
        cost: CostModel,
        *,
        compiled: bool,
        seed: int = 0,
        step_scale: float = 1.0,
        jitter: float = 0.0,
    ) -> None:
        self.limits = limits
        self.conditions = Conditions()
        self.preemptions = 0
        self.prefix_queries = self.prefix_hits = 0  # prompt tokens
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._graphs, self._cost, self._compiled = graphs, cost, compiled
        self._step_scale, self._jitter = step_scale, jitter
        # Apart, so that what requests draw does not depend on how many steps ran.
        self._step_random = random.Random(f"steps {seed}")  # noqa: S311  a model, not a secret
        self._request_random = random.Random(f"requests {seed}")  # noqa: S311
        self._captured: set[Dispatch] = set()
        self._free_blocks = limits.num_blocks
        self._prefixes = PrefixCache(limits.num_blocks)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    @property
    def kv_usage(self) -> float:
        """Used share of the KV cache's blocks."""
        return 1.0 - self._free_blocks / self.limits.num_blocks

    def add(self, request: Request, *, delay_s: float = 0.0) -> None:
        """Queue a request; ``delay_s`` holds it back. Requests come in order of arrival.

        Raises ValueError for one that could never be held in the KV cache.
        """
        tokens = request.prompt_tokens + request.output_tokens
        if tokens > self.limits.kv_tokens:
            raise ValueError(
                f"the request needs {tokens} tokens of KV cache, "
                f"which holds {self.limits.kv_tokens} in all"
            )
        if self._request_random.random() < self.conditions.slow_share:
            request.slowdown = self.conditions.slow_factor
            delay_s += (request.slowdown - 1) * self._seconds(
                self._graphs.dispatch(request.prompt_tokens, pure_decode=False),
                request.prompt_tokens,
            )
        request.ready_at = request.arrival + delay_s
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Forget a request and free what it holds; a step in progress goes on without it."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._release(request)

    def begin(self, at: float) -> Step | None:
        """The step that begins at ``at``; None when no request can take part in one."""
        before = self.preemptions
        work, budget = self._schedule_running(at)
        if self.preemptions == before:
            work += self._admit(at, budget)
        if not work:
            return None
        tokens = sum(count for _, count in work)
        pure_decode = tokens == len(work)
        dispatch = self._graphs.dispatch(
            tokens, pure_decode=pure_decode, downgraded=self.conditions.downgraded
        )
        seconds = self._seconds(dispatch, tokens) * self._draw_jitter()
        captured = self._captures(dispatch)
        if captured:
            seconds += self._cost.graph_s(dispatch) * self.conditions.late_capture
        return Step(at, at + seconds, tuple(work), tokens, pure_decode, dispatch, captured)

    def _captures(self, dispatch: Dispatch) -> bool:
        """Whether a step has to capture its graph before it can replay it."""
        late = self.conditions.late_capture > 0 and dispatch.mode is not StepMode.NONE
        if not late or dispatch in self._captured:
            return False
        self._captured.add(dispatch)
        return True

    def next_ready(self, after: float) -> float:
        """When the next request that is held back at ``after`` takes part: the time to try
        again when ``begin(after)`` gave no step. Not for an idle batcher."""
        return min(
            request.ready_at
            for request in (*self.running, *self.waiting)
            if request.ready_at > after
        )

    def complete(self, step: Step) -> Sequence[Request]:
        """Apply a step that has ended: the requests that got a token, in batch order. Those
        that are finished have left."""
        generated = []
        for request, tokens in step.work:
            if request.gone:
                continue
            request.computed += tokens
            if request.slowdown > 1:
                request.ready_at = step.end + (request.slowdown - 1) * (step.end - step.begin)
            if request.computed == request.length:
                if not request.generated:
                    self._prefixes.keep(request.prefix)
                request.generated += 1
                generated.append(request)
                if request.finished:
                    self.running.remove(request)
                    self._release(request)
        return generated

    def _schedule_running(self, at: float) -> tuple[list[tuple[Request, int]], int]:
        work: list[tuple[Request, int]] = []
        budget, index = self.limits.max_num_batched_tokens, 0
        while index < len(self.running) and budget:
            request = self.running[index]
            index += 1
            if request.ready_at > at:
                continue
            tokens = min(request.length - request.computed, budget)
            while not self._hold(request, tokens):
                victim = self.running.pop()
                self._preempt(victim)
                if victim is request:
                    break
            else:
                work.append((request, tokens))
                budget -= tokens
        return work, budget

    def _admit(self, at: float, budget: int) -> list[tuple[Request, int]]:
        admitted: list[tuple[Request, int]] = []
        if not self.waiting:
            return admitted
        for request in tuple(self.waiting):
            if not budget or len(self.running) >= self.limits.max_num_seqs:
                break
            if request.ready_at > at:
                continue
            request.computed = self._cached(request)
            tokens = min(request.length - request.computed, budget)
            if not self._hold(request, tokens):
                request.computed = 0
                break
            if not request.generated:
                self.prefix_queries += request.prompt_tokens
                self.prefix_hits += request.computed
            self.waiting.remove(request)
            self.running.append(request)
            request.scheduled = min(request.scheduled, at)  # again after it was preempted
            admitted.append((request, tokens))
            budget -= tokens
        return admitted

    def _cached(self, request: Request) -> int:
        """Tokens that need not be computed: the last one of a prompt always is."""
        most = (request.prompt_tokens - 1) // BLOCK_SIZE
        return min(self._prefixes.find(request.prefix), most) * BLOCK_SIZE

    def _hold(self, request: Request, tokens: int) -> bool:
        """Take the blocks for ``tokens`` more; False when too few are free."""
        needed = -(-(request.computed + tokens) // BLOCK_SIZE) - request.blocks
        if needed > self._free_blocks:
            return False
        self._free_blocks -= needed
        request.blocks += needed
        return True

    def _preempt(self, request: Request) -> None:
        self._free_blocks += request.blocks
        request.blocks = 0
        request.computed = 0
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self._free_blocks += request.blocks
        request.blocks = 0
        request.gone = True

    def _seconds(self, dispatch: Dispatch, tokens: int) -> float:
        seconds = self._cost.step_s(dispatch, tokens, compiled=self._compiled)
        return seconds * self._step_scale * self.conditions.step_factor

    def _draw_jitter(self) -> float:
        # Log-normal of mean 1.
        return self._step_random.lognormvariate(-(self._jitter**2) / 2, self._jitter)
