"""Drive an engine with as many requests at once as it is said to hold.

Each is as long as the model allows, prompt and answer, and new to every cache. All generate as
much, so that when the first ends the others lack no more of their length than they began later:
the cache is as full then as it can be. Between rounds the engine is idle.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from canaryctl.common.saturation import Round
from canaryctl.runtimes.background import Background
from canaryctl.runtimes.generation import TokenStream, completion_body
from canaryctl.runtimes.httpclient import async_client

Counted = tuple[int, int] | str | None
"""(requests held, requests missed) of a round; why nothing can be said; None: its requests have
to be longer."""

_TOGETHER = 8  # steps in which all of them run
_MOST_FACTOR = 32  # by how much longer they run together where they miss each other
_READ_EVERY_S = 0.1
_READ_WITHIN_S = 5.0
_IDLE_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Drive:
    """``together`` requests of ``tokens`` each, to an engine that computes at most
    ``step_tokens`` in a step. ``timeout_s``: of a round."""

    base_url: str
    model: str
    together: int
    tokens: int
    step_tokens: int
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Requests, by the engine's account; ``preemptions``: so far. None: it does not say."""

    running: float | None
    waiting: float | None
    preemptions: float | None


@dataclass(frozen=True, slots=True)
class Saturation:
    """Requests of all rounds that were held and that were missed."""

    held: int
    missed: int


def output_tokens(drive: Drive, *, factor: int) -> int:
    """What each request generates: the first one while the prompts of all others arrive, at most
    one in a step, and are computed, in steps of ``step_tokens``; ``factor`` times as long where
    they arrive more slowly."""
    others = drive.together - 1
    steps = max(others, -(-others * drive.tokens // drive.step_tokens))
    return min(factor * (_TOGETHER + steps), drive.tokens - 1)


class SaturationRun(Background[Saturation]):
    """Rounds, one after the other, until there are ``enough``.

    ``read``: the engine's load now. ``counted``: what a round says. ``enough``: whether no more
    are needed after so many (held, missed).
    """

    def __init__(
        self,
        drive: Drive,
        read: Callable[[], EngineLoad],
        counted: Callable[[Round], Counted],
        enough: Callable[[int, int], bool],
    ) -> None:
        self._drive, self._read = drive, read
        self._counted, self._enough = counted, enough
        self._factor = 1
        self._cancelled = threading.Event()
        super().__init__(lambda: asyncio.run(self._work()), "driving it")

    def cancel(self) -> None:
        """Ask it to end; what is in flight is closed within a fraction of a second."""
        self._cancelled.set()

    async def _work(self) -> Saturation | str:
        held = missed = 0
        async with async_client(self._drive.timeout_s) as http:
            while not self._enough(held, missed):
                counted = await self._round(http)
                if isinstance(counted, str):
                    return counted
                held, missed = held + counted[0], missed + counted[1]
        return Saturation(held, missed)

    async def _round(self, http: httpx.AsyncClient) -> tuple[int, int] | str:
        """As long as it took in the round before; twice as long where its requests miss."""
        while True:
            idle = await self._idle()
            if idle is not None:
                return idle
            work = asyncio.ensure_future(self._send(http))
            while not work.done():
                await asyncio.wait({work}, timeout=_READ_EVERY_S)
                if self._cancelled.is_set():
                    work.cancel()
                    await asyncio.wait({work})
                    return "driving it was given up"
            counted = self._counted(work.result())
            if counted is not None:
                return counted
            if self._factor >= _MOST_FACTOR:
                return (
                    f"its {self._drive.together} requests never ran at the same time, and it let "
                    "none of them wait: they could not be sent quickly enough"
                )
            self._factor *= 2

    async def _idle(self) -> str | None:
        """Wait until nobody's request is in the engine; why not, in words."""
        give_up_at = time.perf_counter() + _IDLE_WITHIN_S
        while True:
            load = await asyncio.to_thread(self._read)
            received = _received(load)
            if received == 0:
                return None
            if time.perf_counter() > give_up_at or self._cancelled.is_set():
                if received is None:
                    return "the engine does not say how many requests it has"
                return f"the engine has {received:.0f} requests of others"
            await asyncio.sleep(_READ_EVERY_S)

    async def _send(self, http: httpx.AsyncClient) -> Round:
        asked, output = self._drive.together, output_tokens(self._drive, factor=self._factor)
        before = await self._preemptions()
        streams = [TokenStream() for _ in range(asked)]
        whole = [
            asyncio.ensure_future(stream.read(http, self._drive.base_url, self._body(output)))
            for stream in streams
        ]
        all_of_them = asyncio.ensure_future(asyncio.wait(whole, timeout=self._drive.timeout_s))
        waited: float | None = None
        try:
            while not any(task.done() for task in whole):
                load = await asyncio.to_thread(self._read)
                received = _received(load)
                if received is not None and not any(task.done() for task in whole):
                    waited = load.waiting if received >= asked else 0.0
                await asyncio.wait(
                    whole, timeout=_READ_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                )
            await all_of_them
        finally:
            for task in (*whole, all_of_them):
                task.cancel()
            await asyncio.gather(*whole, all_of_them, return_exceptions=True)
        after = await self._preemptions()
        good = [s for s, task in zip(streams, whole, strict=True) if _ended(s, task)]
        first_end = min((stream.times[-1] for stream in good), default=0.0)
        return Round(
            asked=asked,
            failed=asked - len(good),
            late=sum(stream.times[0] > first_end for stream in good),
            longest=self._factor >= _MOST_FACTOR,
            preempted=None if before is None or after is None else after - before,
            waited=waited,
        )

    async def _preemptions(self) -> float | None:
        """So far. A busy engine may miss a reading; one that does not say it is asked in vain."""
        give_up_at = time.perf_counter() + _READ_WITHIN_S
        while True:
            load = await asyncio.to_thread(self._read)
            if load.preemptions is not None or time.perf_counter() > give_up_at:
                return load.preemptions
            await asyncio.sleep(_READ_EVERY_S)

    def _body(self, output: int) -> dict[str, object]:
        return completion_body(
            self._drive.model,
            prompt_tokens=self._drive.tokens - output,
            output_tokens=output,
        )


def _received(load: EngineLoad) -> float | None:
    """Requests that are in the engine."""
    if load.running is None or load.waiting is None:
        return None
    return load.running + load.waiting


def _ended(stream: TokenStream, task: "asyncio.Future[None]") -> bool:
    return not task.cancelled() and stream.failure is None
