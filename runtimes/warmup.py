"""Run every bucket of a warm-up plan on an engine before a user's request can reach it.

A first visit to a shape may compile, allocate or initialise; one request is not enough, and a
shape is only visited when the right number of sequences run in the same engine step. So for a
decode bucket of b sequences, b streams are opened together and must be seen decoding together;
for a mixed bucket of T tokens, a prefill is sent into running decodes.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import httpx

from canaryctl.common.errors import CanaryctlError, InputError
from canaryctl.runtimes.generation import TokenStream, completion_body
from canaryctl.runtimes.httpclient import async_client
from canaryctl.runtimes.spec import LimitsSpec, WarmupPlan

# Shorter than a block of the prefix cache (16 tokens), so that none is ever found in it.
_DECODE_PROMPT_TOKENS = 8
_TOGETHER = 4  # tokens that each sequence makes while all of the bucket run
_MIXED_DECODES = 2
_MIXED_OUTPUT_TOKENS = 48
# Sequences of a bucket arrive one after the other while those before them decode already: one
# step for each has been seen to be enough. Where it is not, the batch is run again longer.
_STEPS_PER_ARRIVAL = 1
# An engine counts a step a moment after its tokens were sent.
_COUNTED_WITHIN_S = 2.0
_COUNTS_EVERY_S = 0.1


class BucketKind(StrEnum):
    DECODE = "decode"
    MIXED = "mixed"


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

    ``replayed``: steps of all tries that replayed the graph which the bucket is padded to, by
    the engine's own account; None: it does not say, or the bucket has no graph of its own.
    """

    kind: BucketKind
    bucket: int
    repeat: int
    seconds: float
    tries: int
    replayed: int | None = None


@dataclass(frozen=True, slots=True)
class Replays:
    """The engine's account of its graphs. ``sizes``: captured, of sequences that decode one
    token each; ``read``: steps that replayed each size so far; None: it does not say."""

    sizes: tuple[int, ...]
    read: Callable[[], Mapping[int, float] | None]

    def size_of(self, batch: WarmupBatch) -> int | None:
        """The graph that the batch is to replay; None for mixed steps, which pass many sizes."""
        if batch.kind is not BucketKind.DECODE:
            return None
        return min((size for size in self.sizes if size >= batch.bucket), default=None)

    def count(self, size: int | None) -> float | None:
        found = None if size is None else self.read()
        return None if found is None or size is None else found.get(size, 0.0)


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
    ``replays``: what proves that graphs were replayed; None: nothing can.
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
    ) -> None:
        self._base_url = base_url
        self._model = model
        self._batches = tuple(batches)
        self._replays = replays
        self._timeout_s = batch_timeout_s
        self._together_s = together_s
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
            for batch in self._batches:
                self._progress = replace(self._progress, current=batch.title)
                time_taken = await self._run_batch(http, batch)
                self._progress = replace(self._progress, times=(*self._progress.times, time_taken))

    async def _run_batch(self, http: httpx.AsyncClient, batch: WarmupBatch) -> BatchTime:
        output_tokens, tried = batch.output_tokens, 0
        give_up_at = time.perf_counter() + self._together_s
        before = await self._count(batch)
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
                replayed = await self._replayed(batch, before)
                return BatchTime(batch.kind, batch.bucket, batch.repeat, seconds, tried, replayed)
            # A busy host hands requests over one by one: longer ones meet sooner or later.
            if time.perf_counter() > give_up_at:
                raise _FailedError(
                    f"{batch.title}: its requests never ran in the same step, with outputs of up "
                    f"to {output_tokens} tokens; does the engine run that many at once?"
                )
            output_tokens = min(2 * output_tokens, batch.most_output_tokens)

    async def _count(self, batch: WarmupBatch) -> float | None:
        if self._replays is None:
            return None
        return await asyncio.to_thread(self._replays.count, self._replays.size_of(batch))

    async def _replayed(self, batch: WarmupBatch, before: float | None) -> int | None:
        """Steps since ``before``; waits a moment for the first."""
        if before is None:
            return None
        give_up_at = time.perf_counter() + _COUNTED_WITHIN_S
        while True:
            after = await self._count(batch)
            if after is None:
                return None
            if after > before or time.perf_counter() > give_up_at:
                return round(after - before)
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
