"""Run every bucket of a warm-up plan on an engine before a user's request can reach it.

A first visit to a shape may compile, allocate or initialise; one request is not enough, and a
shape is only visited when the right number of sequences run in the same engine step. So for a
decode bucket of b sequences, b streams are opened together and must be seen decoding together;
for a mixed bucket of T tokens, a prefill is sent into running decodes. That the graph was replayed
is what the engine's own count of steps says (:mod:`canaryctl.runtimes.replays`).
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TypeVar

import httpx

from canaryctl.common.errors import CanaryctlError, InputError
from canaryctl.runtimes.generation import TokenStream, completion_body
from canaryctl.runtimes.httpclient import async_client
from canaryctl.runtimes.replays import BucketKind, Count, Replays
from canaryctl.runtimes.spec import LimitsSpec, WarmupPlan

# Shorter than a block of the prefix cache (16 tokens), so that none is ever found in it.
_DECODE_PROMPT_TOKENS = 8
_TOGETHER = 4  # tokens that each sequence makes while all of the bucket run
_MIXED_DECODES = 2
_MIXED_OUTPUT_TOKENS = 48
# Sequences of a bucket arrive one after the other while those before them decode already: one
# step for each has been seen to be enough. Where it is not, the batch is run again longer.
_STEPS_PER_ARRIVAL = 1
_COUNTS_EVERY_S = 0.1
# A prompt may just miss the decodes that it was sent into: a mixed step is tried so often before
# it counts as one that did not replay its graph.
_MIXED_TRIES = 3


T = TypeVar("T")


class WarmupPlanError(InputError):
    """Buckets of the plan that the limits make unreachable; the message names each."""


@dataclass(frozen=True, slots=True)
class WarmupBatch:
    """Requests that bring one bucket about, once.

    ``decodes`` streams with prompts of ``prompt_tokens`` run together for ``output_tokens``;
    once all decode, prompts of ``prefills`` tokens each are sent.
    """

    kind: BucketKind
    bucket: int
    repeat: int  # from 1
    decodes: int
    prompt_tokens: int
    output_tokens: int
    most_output_tokens: int  # what the model's length leaves room for
    prefills: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        unit = "sequences" if self.kind is BucketKind.DECODE else "tokens"
        return f"{self.kind.value} bucket {self.bucket} ({unit}), run {self.repeat}"


def plan_requests(plan: WarmupPlan, limits: LimitsSpec) -> tuple[WarmupBatch, ...]:
    """The batches of ``plan``: smaller buckets first, each ``repeat_per_bucket`` times.

    Raises WarmupPlanError that names every bucket which ``limits`` do not let the engine run:
    the artifact must say what can be warmed.
    """
    faults: list[str] = []
    batches: list[WarmupBatch] = []
    for kind, buckets in (
        (BucketKind.DECODE, plan.decode_buckets),
        (BucketKind.MIXED, plan.mixed_token_buckets),
    ):
        for bucket in sorted(set(buckets)):
            batch = _decode(bucket, limits) if kind is BucketKind.DECODE else _mixed(bucket, limits)
            if isinstance(batch, str):
                faults.append(f"{kind.value} bucket {bucket}: {batch}")
                continue
            batches += (replace(batch, repeat=i + 1) for i in range(plan.repeat_per_bucket))
    if faults:
        raise WarmupPlanError("the warm-up plan cannot be run: " + "; ".join(faults))
    return tuple(batches)


def _decode(bucket: int, limits: LimitsSpec) -> WarmupBatch | str:
    if bucket > limits.max_num_seqs:
        return f"max_num_seqs lets {limits.max_num_seqs} sequences run together"
    prompt = min(_DECODE_PROMPT_TOKENS, limits.max_model_len // 2)
    room = limits.max_model_len - prompt
    if room < 2 * _TOGETHER:
        return f"max_model_len {limits.max_model_len} leaves {room} tokens to decode"
    wanted = 3 * _TOGETHER + _STEPS_PER_ARRIVAL * bucket
    return WarmupBatch(
        kind=BucketKind.DECODE,
        bucket=bucket,
        repeat=1,
        decodes=bucket,
        prompt_tokens=prompt,
        output_tokens=min(wanted, room),
        most_output_tokens=room,
    )


def _mixed(bucket: int, limits: LimitsSpec) -> WarmupBatch | str:
    if bucket > limits.max_num_batched_tokens:
        return f"max_num_batched_tokens lets a step have {limits.max_num_batched_tokens}"
    decodes = min(_MIXED_DECODES, limits.max_num_seqs - 1, bucket - 1)
    if decodes < 1:
        return "a mixed step has a decode and a prefill: two tokens and two sequences at least"
    longest = limits.max_model_len - 1  # one token is made
    prompt = min(_DECODE_PROMPT_TOKENS, limits.max_model_len // 2)
    room = limits.max_model_len - prompt
    if room < 2 * _TOGETHER:
        return f"max_model_len {limits.max_model_len} leaves {room} tokens to decode"
    tokens = bucket - decodes
    count = -(-tokens // longest)
    if count + decodes > limits.max_num_seqs:
        return (
            f"its {count} prefills of at most {longest} tokens and {decodes} decodes exceed "
            f"max_num_seqs {limits.max_num_seqs}"
        )
    prefills = tuple(tokens // count + (index < tokens % count) for index in range(count))
    return WarmupBatch(
        kind=BucketKind.MIXED,
        bucket=bucket,
        repeat=1,
        decodes=decodes,
        prompt_tokens=prompt,
        output_tokens=min(_MIXED_OUTPUT_TOKENS, room),
        most_output_tokens=room,
        prefills=prefills,
    )


class WarmupState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class BatchTime:
    """One run of one bucket, in seconds; several ``tries`` where its sequences missed each
    other at first. ``seconds`` is that of the last try.

    ``graph``: the size of the graph that the bucket is padded to; 0: none is captured for such
    steps, None: not known. ``replayed``: steps of all tries that replayed it, by the engine's own
    account; None: it does not say, or there is no graph.
    """

    kind: BucketKind
    bucket: int
    repeat: int
    seconds: float
    tries: int
    graph: int | None = None
    replayed: int | None = None


@dataclass(frozen=True, slots=True)
class WarmupProgress:
    state: WarmupState
    total: int
    times: tuple[BatchTime, ...] = ()
    current: str | None = None
    reason: str | None = None  # of a failure

    @property
    def done(self) -> int:
        return len(self.times)


class WarmupRun:
    """Runs ``batches`` on one engine, in a thread of its own. Begins at once.

    A plan without batches is done at once. ``batch_timeout_s`` bounds one try of one batch;
    ``together_s`` how long a batch is tried again while its requests miss each other.
    ``replays``: what proves that graphs were replayed; None: nothing can. An engine counts a step
    a moment after its tokens were sent, ``counted_s`` at most.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        batches: Sequence[WarmupBatch],
        *,
        replays: Replays | None = None,
        batch_timeout_s: float = 120.0,
        together_s: float = 45.0,
        counted_s: float = 2.0,
    ) -> None:
        self._base_url = base_url
        self._model = model
        self._batches = tuple(batches)
        self._replays, self._counts = replays, False
        self._timeout_s = batch_timeout_s
        self._together_s, self._counted_s = together_s, counted_s
        self._cancelled = threading.Event()
        self._progress = WarmupProgress(WarmupState.RUNNING, total=len(self._batches))
        self._thread = threading.Thread(target=self._run, name="warm-up", daemon=True)
        self._thread.start()

    def progress(self) -> WarmupProgress:
        return self._progress

    def cancel(self) -> None:
        """Ask it to end; what is in flight is closed within a fraction of a second."""
        self._cancelled.set()

    def wait(self, timeout_s: float) -> WarmupProgress:
        self._thread.join(timeout_s)
        return self._progress

    def _run(self) -> None:
        try:
            asyncio.run(self._until_cancelled())
        except _FailedError as failure:
            self._end(WarmupState.FAILED, str(failure))
        except Exception as error:
            # A thread has no caller: what it does not report is lost, and the run never ends.
            self._end(WarmupState.FAILED, f"{type(error).__name__}: {error}")
            raise

    def _end(self, state: WarmupState, reason: str | None = None) -> None:
        self._progress = replace(self._progress, state=state, current=None, reason=reason)

    async def _until_cancelled(self) -> None:
        work = asyncio.ensure_future(self._work())
        while not work.done():
            await asyncio.wait({work}, timeout=0.1)
            if self._cancelled.is_set():
                work.cancel()
        if work.cancelled():
            self._end(WarmupState.CANCELLED)
            return
        work.result()
        self._end(WarmupState.DONE)

    async def _work(self) -> None:
        async with async_client(self._timeout_s) as http:
            await self._first_step(http)
            for batch in self._batches:
                self._progress = replace(self._progress, current=batch.title)
                time_taken = await self._run_batch(http, batch)
                self._progress = replace(self._progress, times=(*self._progress.times, time_taken))

    async def _first_step(self, http: httpx.AsyncClient) -> None:
        """An engine may count nothing before its first step; then a run comes before those that
        are counted. It does not count at all where it says nothing even after that."""
        replays = self._replays
        if replays is None or not self._batches:
            return
        if await asyncio.to_thread(replays.read) is None:
            await self._run_batch(http, self._batches[0])
        self._counts = await self._until_told(replays.read) is not None

    async def _until_told(self, read: Callable[[], T | None]) -> T | None:
        """What an engine says that may be too busy to answer at once; None: it did not."""
        give_up_at = time.perf_counter() + self._counted_s
        while True:
            found = await asyncio.to_thread(read)
            if found is not None or time.perf_counter() > give_up_at:
                return found
            await asyncio.sleep(_COUNTS_EVERY_S)

    async def _run_batch(self, http: httpx.AsyncClient, batch: WarmupBatch) -> BatchTime:
        output_tokens, tried = batch.output_tokens, 0
        give_up_at = time.perf_counter() + self._together_s
        graph = None if self._replays is None else self._replays.graph(batch.kind, batch.bucket)
        before = await self._count(batch, graph)
        while True:
            tried += 1
            begun = time.perf_counter()
            try:
                async with asyncio.timeout(self._timeout_s):
                    met = await self._try(http, replace(batch, output_tokens=output_tokens))
            except TimeoutError:
                raise _FailedError(f"{batch.title}: not done in {self._timeout_s:g} s") from None
            except _FailedError as failure:
                raise _FailedError(f"{batch.title}: {failure}") from None
            if met:
                seconds = time.perf_counter() - begun
                replayed = await self._replayed(batch, graph, before)
                if replayed == 0 and batch.kind is BucketKind.MIXED and tried < _MIXED_TRIES:
                    continue
                return BatchTime(
                    batch.kind, batch.bucket, batch.repeat, seconds, tried, graph, replayed
                )
            # A busy host hands requests over one by one: longer ones meet sooner or later.
            if time.perf_counter() > give_up_at:
                raise _FailedError(
                    f"{batch.title}: its requests never ran in the same step, with outputs of up "
                    f"to {output_tokens} tokens; does the engine run that many at once?"
                )
            output_tokens = min(2 * output_tokens, batch.most_output_tokens)

    async def _count(self, batch: WarmupBatch, graph: int | None) -> Count | None:
        if self._replays is None or not graph or not self._counts:
            return None
        return await self._until_told(partial(self._replays.count, batch.kind, graph))

    async def _replayed(
        self, batch: WarmupBatch, graph: int | None, before: Count | None
    ) -> int | None:
        """Steps since ``before``; waits a moment for the first. Prompts that need not have come
        into the same step prove nothing when none is counted."""
        if before is None:
            return None
        give_up_at = time.perf_counter() + self._counted_s
        while True:
            after = await self._count(batch, graph)
            if after is None:
                return None
            more = after.since(before)
            if more:
                return more
            if time.perf_counter() > give_up_at:
                return None if len(batch.prefills) > 1 else more
            await asyncio.sleep(_COUNTS_EVERY_S)

    async def _try(self, http: httpx.AsyncClient, batch: WarmupBatch) -> bool:
        """Whether the requests were seen in the same steps."""
        streams = [TokenStream() for _ in range(batch.decodes)]
        prefills = [TokenStream() for _ in batch.prefills]
        async with asyncio.TaskGroup() as group:
            for index, stream in enumerate(streams):
                body = self._body(batch.prompt_tokens, batch.output_tokens, index)
                group.create_task(stream.read(http, self._base_url, body))
            if prefills:
                for stream in streams:
                    await stream.begun.wait()
            for index, stream in enumerate(prefills):
                body = self._body(batch.prefills[index], 1, index)
                group.create_task(stream.read(http, self._base_url, body))
        failures = [stream.failure for stream in (*streams, *prefills) if stream.failure]
        if failures:
            raise _FailedError(failures[0])
        if prefills:
            first_end = min(stream.times[-1] for stream in streams)
            return all(stream.times[0] <= first_end for stream in prefills)
        return _decoded_together(streams)

    def _body(self, prompt_tokens: int, output_tokens: int, index: int) -> dict[str, object]:
        return completion_body(
            self._model,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            # Greedy and random sampling are different kernels: warm both.
            temperature=float(index % 2),
        )


class _FailedError(CanaryctlError):
    """Ends a warm-up; the message is its reason."""


def _decoded_together(streams: Sequence[TokenStream]) -> bool:
    """Whether each made enough tokens while all ran: the last had begun and none had ended."""
    if len(streams) == 1:
        return True
    begin = max(stream.times[0] for stream in streams)
    end = min(stream.times[-1] for stream in streams)
    return all(sum(begin <= at <= end for at in stream.times) >= _TOGETHER for stream in streams)
