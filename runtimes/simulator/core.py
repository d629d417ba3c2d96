"""Runs the batching model in real time and hands each request its tokens.

One task steps the batch. Time in the model is anchored to the machine's: a request arrives
when it really does, and a token is handed out when its step has ended, or as soon after as the
machine allows. What is counted is the model's time, so a busy host does not show as a slow
engine.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from canaryctl.runtimes.simulator.batching import Batcher, Conditions, Request, Step
from canaryctl.runtimes.simulator.config import SimulatorConfig
from canaryctl.runtimes.simulator.faults import (
    FIRST_REQUEST_S,
    START_ONLY,
    ActiveFaults,
    Fault,
    FaultRequest,
)
from canaryctl.runtimes.simulator.graphs import StepMode
from canaryctl.runtimes.simulator.memory import MemoryPlan
from canaryctl.runtimes.simulator.prefix import block_keys
from canaryctl.runtimes.simulator.stats import Stats
from canaryctl.runtimes.simulator.text import Answer, Prompt, wrong

LOG = logging.getLogger("simulated")

_LAG_WARNING_S = 1.0  # how far behind real time is worth a line in the log
_LAG_WARNING_EVERY_S = 30.0
_STEPS_BEFORE_YIELD = 8  # steps that may end at once while catching up
_DYING_S = 2.0  # how long a real server answers 503 after its core died, before it exits


class EngineDeadError(Exception):
    """The simulated engine core has died; the server answers 5xx until it exits."""


@dataclass(slots=True, eq=False)
class Stream:
    """One request and its tokens. ``finish_reason`` is set with the last token."""

    request: Request
    answer: Answer
    stops: bool  # ends by itself, rather than at the number of tokens asked for
    words: deque[str] = field(default_factory=deque)
    finish_reason: str | None = None
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    _waiter: asyncio.Future[None] | None = None

    async def read(self) -> list[str]:
        """The words that have come since the last call; waits for at least one, or the end.

        Raises EngineDeadError when the engine died before the answer was complete.
        """
        while not self.words and self.finish_reason is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.finish_reason == "error":
            raise EngineDeadError("the simulated engine died while it answered")
        words = list(self.words)
        self.words.clear()
        return words

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineCore:
    """A simulated engine's core: ``submit`` and ``abort`` requests, ``run`` steps them.

    ``on_death``: called when the engine has died, with the seconds until the process exits.
    """

    def __init__(
        self,
        config: SimulatorConfig,
        memory: MemoryPlan,
        batcher: Batcher,
        faults: ActiveFaults,
        on_death: Callable[[float], None],
    ) -> None:
        self.config, self.memory, self.batcher = config, memory, batcher
        self.faults = faults
        self.stats = self._no_stats()
        self.dead = False
        self._on_death = on_death
        self._streams: dict[Request, Stream] = {}
        self._wake = asyncio.Event()
        self._now = 0.0  # the model's time: the end of the last step
        self._served_any = False
        self._preemptions_before = 0
        self._lag_warned_at = float("-inf")

    def submit(
        self,
        prompt: Prompt,
        *,
        prompt_tokens: int,
        most: int,
        least: int,
        ignore_eos: bool,
    ) -> Stream:
        """Queue a request for at most ``most`` and at least ``least`` tokens.

        Raises EngineDeadError; ValueError for a request that the KV cache could never hold.
        """
        if self.dead:
            raise EngineDeadError("the simulated engine is dead")
        answer = Answer(f"{self.config.model}@{self.config.revision}", prompt)
        natural = most if ignore_eos else max(answer.natural_length, least)
        request = Request(
            prompt_tokens=prompt_tokens,
            output_tokens=min(most, natural),
            arrival=asyncio.get_running_loop().time(),
            prefix=block_keys(prompt),
        )
        first_delay = Fault.SLOW_FIRST_REQUEST in self.faults and not self._served_any
        self.batcher.add(request, delay_s=FIRST_REQUEST_S if first_delay else 0.0)
        self._served_any = True
        stream = Stream(request, answer, stops=natural < most)
        self._streams[request] = stream
        self._wake.set()
        return stream

    def abort(self, stream: Stream) -> None:
        """The client has gone, or the server stops."""
        if self._streams.pop(stream.request, None) is not None:
            self.batcher.abort(stream.request)
            self.stats.finished["abort"] += 1
            stream.finish_reason = "abort"
            stream.wake()

    def abort_all(self) -> None:
        for stream in list(self._streams.values()):
            self.abort(stream)

    def switch(self, change: FaultRequest) -> None:
        """Put these faults in force instead of those that can be changed while running."""
        self.faults.active = (self.faults.active & START_ONLY) | set(change.faults)
        self.faults.factor, self.faults.share = change.factor, change.share
        LOG.warning("faults in force: %s", ", ".join(sorted(self.faults.active)) or "none")
        if Fault.COUNTER_RESET in self.faults:
            self.stats = self._no_stats()
            self.batcher.prefix_queries = self.batcher.prefix_hits = 0
        self.apply_conditions()
        self._wake.set()

    def apply_conditions(self) -> None:
        """Make the faults in force felt; those that end the engine end it now."""
        late = Fault.LATE_CAPTURE in self.faults
        self.batcher.conditions = Conditions(
            step_factor=self.faults.factor_of(Fault.SLOW),
            downgraded=Fault.EAGER_FALLBACK in self.faults,
            slow_share=self.faults.slow_share,
            slow_factor=self.faults.factor_of(Fault.SLOW_TAIL),
            late_capture=self.faults.factor_of(Fault.LATE_CAPTURE) * late,
        )
        if Fault.EXIT in self.faults:
            self._die(after_s=0.0)

    def _no_stats(self) -> Stats:
        return Stats(self.config.max_num_seqs, self.config.max_num_batched_tokens)

    async def run(self) -> None:
        """Step the batch until cancelled or dead."""
        clock = asyncio.get_running_loop().time
        self._now = clock()
        ended_at_once = 0
        while not self.dead:
            if Fault.HANG in self.faults:
                await self._wait_for_change()
                self._now = max(self._now, clock())
                continue
            if self.batcher.idle:
                await self._wait_for_change()
                continue
            step = self.batcher.begin(self._now)
            if step is None:
                await self._wait_until(self.batcher.next_ready(self._now))
                continue
            if Fault.OOM_LOAD in self.faults:
                self._run_out_of_memory(step)
                return
            delay = step.end - clock()
            if delay > 0:
                await asyncio.sleep(delay)
                ended_at_once = 0
            else:
                self._warn_of_lag(-delay, clock())
                ended_at_once += 1
                if ended_at_once % _STEPS_BEFORE_YIELD == 0:
                    await asyncio.sleep(0)
            self._now = step.end
            self._deliver(step)

    async def _wait_for_change(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    async def _wait_until(self, at: float) -> None:
        """Until the model's time ``at``, or until something changes before it."""
        clock = asyncio.get_running_loop().time
        delay = at - clock()
        if delay > 0:
            try:
                await asyncio.wait_for(self._wait_for_change(), delay)
            except TimeoutError:
                pass
            else:
                at = min(at, clock())
        self._now = max(self._now, at)

    def _deliver(self, step: Step) -> None:
        stats, at = self.stats, step.end
        stats.observe_step(step)
        if step.captured:
            LOG.info(
                "Capturing a cudagraph on (%s,BatchDescriptor(num_tokens=%d, uniform=%s))",
                step.dispatch.mode,
                step.dispatch.bucket,
                step.pure_decode,
            )
        preemptions = self.batcher.preemptions
        stats.preemptions += preemptions - self._preemptions_before
        self._preemptions_before = preemptions
        corrupted = Fault.WRONG_OUTPUT in self.faults and step.dispatch.mode is not StepMode.NONE
        prompt_tokens = generated = 0
        for request in self.batcher.complete(step):
            stream = self._streams[request]
            generated += 1
            if request.generated == 1:
                prompt_tokens += request.prompt_tokens
                stream.first_token_at = at
                stats.observe_first_token(at - request.arrival)
            else:
                stats.observe_gap(at - stream.last_token_at)
            stream.last_token_at = at
            word = next(stream.answer)
            stream.words.append(wrong(word) if corrupted else word)
            if request.finished:
                self._finish(stream, at)
            stream.wake()
        if generated:
            stats.observe_iteration(prompt_tokens, generated)

    def _finish(self, stream: Stream, at: float) -> None:
        request = stream.request
        stream.finish_reason = "stop" if stream.stops else "length"
        del self._streams[request]
        self.stats.observe_finish(
            stream.finish_reason,
            e2e_s=at - request.arrival,
            prefill_s=stream.first_token_at - request.scheduled,
            decode_s=at - stream.first_token_at,
            output_tokens=request.generated,
        )

    def _run_out_of_memory(self, step: Step) -> None:
        LOG.error(
            "torch.OutOfMemoryError: CUDA out of memory (simulated). Tried to allocate %d MiB "
            "for a step of %d tokens.",
            2 * step.tokens,
            step.tokens,
        )
        LOG.error("EngineCore encountered a fatal error.")
        self.stats.oom += 1
        self._fail_all()
        self._die(after_s=_DYING_S)

    def _fail_all(self) -> None:
        for stream in list(self._streams.values()):
            self.batcher.abort(stream.request)
            self.stats.finished["error"] += 1
            stream.finish_reason = "error"
            stream.wake()
        self._streams.clear()

    def _die(self, *, after_s: float) -> None:
        self.dead = True
        self._on_death(after_s)

    def _warn_of_lag(self, lag_s: float, now: float) -> None:
        if lag_s > _LAG_WARNING_S and now - self._lag_warned_at > _LAG_WARNING_EVERY_S:
            self._lag_warned_at = now
            LOG.warning("this host is too busy: tokens come %.1f s later than simulated", lag_s)
