"""Send a profile's requests to targets, in an open loop, and report how they were answered."""

import asyncio
import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from canaryctl.common.errors import InputError
from canaryctl.runtimes.httpclient import async_client
from canaryctl.runtimes.load.profile import Profile
from canaryctl.runtimes.load.report import NO_ARTIFACT, Failed, LoadReport, Outcome, report
from canaryctl.runtimes.load.schedule import PlannedRequest, planned_requests

ARTIFACT_HEADER = "x-canaryctl-artifact"
_PATH = "/v1/completions"
_STOP_GRACE_S = 2.0


async def run_load(
    targets: Sequence[str],
    profile: Profile,
    *,
    duration_s: float | None = None,
    requests: int | None = None,
    model: str | None = None,
    planned: Iterable[PlannedRequest] | None = None,
    stop: asyncio.Event | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> LoadReport:
    """Load every target with the same requests at the same times.

    ``targets``: base URLs. ``duration_s`` and ``requests`` (per target) override the profile's
    own; one of them is needed. ``planned``: requests to send instead of the profile's, which then
    says how alone. After the last request all open ones are awaited; after ``stop`` only for two
    seconds. Failing requests are counted, and never raise.
    """
    if planned is None:
        duration_s = profile.duration if duration_s is None else duration_s
        requests = profile.requests if requests is None else requests
        if duration_s is None and requests is None:
            raise InputError("load needs an end: a duration (for) or a number of requests")
        planned = planned_requests(profile, duration_s=duration_s, requests=requests)
    if not targets or len(set(targets)) != len(targets):
        raise InputError(f"load needs targets, each named once; found {list(targets)}")
    async with async_client(profile.timeout) as http:
        run = _Run(http, targets, profile, model, on_outcome or (lambda _: None))
        return await run.execute(stop or asyncio.Event(), planned)


class _Run:
    def __init__(
        self,
        http: httpx.AsyncClient,
        targets: Sequence[str],
        profile: Profile,
        model: str | None,
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        self._http = http
        self._targets = targets
        self._profile = profile
        self._model = model
        self._on_outcome = on_outcome
        self._outcomes: list[Outcome] = []
        self._lags_s: list[float] = []
        self._not_sent = 0
        self._open: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []

    async def execute(self, stop: asyncio.Event, requests: Iterable[PlannedRequest]) -> LoadReport:
        await _warm_client(self._http)
        begun = time.perf_counter()
        stopped = asyncio.create_task(stop.wait())
        sending = asyncio.create_task(self._send_all(begun, requests))
        await asyncio.wait({sending, stopped}, return_when=asyncio.FIRST_COMPLETED)
        while self._tasks and not stop.is_set():
            await asyncio.wait({*self._tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_GRACE_S)
        left = [task for task in (*self._tasks, sending, stopped) if not task.done()]
        unfinished = len(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if not sending.cancelled():
            sending.result()
        if self._errors:
            raise self._errors[0]  # an error of ours must not pass for one of the target
        return report(
            self._targets,
            self._outcomes,
            elapsed_s=time.perf_counter() - begun,
            lags_s=self._lags_s,
            not_sent=self._not_sent,
            unfinished=unfinished,
        )

    async def _send_all(self, begun: float, requests: Iterable[PlannedRequest]) -> None:
        for planned in requests:
            wait_s = begun + planned.at_s - time.perf_counter()
            # Also when late: others must have their turn.
            await asyncio.sleep(max(0.0, wait_s))
            if any(self._open[url] >= self._profile.max_concurrency for url in self._targets):
                self._not_sent += len(self._targets)
                continue
            self._lags_s.append(time.perf_counter() - begun - planned.at_s)
            body = json.dumps(_body(planned, self._profile, self._model)).encode()
            for url in self._targets:
                self._open[url] += 1
                task = asyncio.create_task(self._ask(url, planned, body))
                self._tasks.add(task)
                task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)

    async def _ask(self, url: str, planned: PlannedRequest, body: bytes) -> None:
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if planned.session is not None:
            headers[self._profile.session_header] = planned.session
        try:
            outcome = await _outcome(self._http, url, headers, body, self._profile)
        finally:
            self._open[url] -= 1
        self._outcomes.append(outcome)
        self._on_outcome(outcome)


async def _warm_client(http: httpx.AsyncClient) -> None:
    """Pay the client's first-time costs (0.1 s of imports) before the first request is timed."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: it refuses
        with contextlib.suppress(httpx.ConnectError):
            await http.get(f"http://127.0.0.1:{nobody.getsockname()[1]}/")


def _body(planned: PlannedRequest, profile: Profile, model: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": planned.prompt,
        "max_tokens": planned.output_tokens,
        "temperature": 0,
        "stream": profile.stream,
        "ignore_eos": profile.ignore_eos,
    }
    if profile.stream:
        body["stream_options"] = {"include_usage": True}
    if model is not None:
        body["model"] = model
    return body


@dataclass(slots=True)
class _Answer:
    """What has been seen of an answer so far; times in seconds of the performance counter."""

    begun: float = field(default_factory=time.perf_counter)
    artifact: str | None = None  # None: no response has begun
    first: float | None = None
    last: float | None = None
    longest_gap_s: float = 0.0
    tokens: int = 0
    reason: str | None = None  # why it failed

    def outcome(self, target: str) -> Outcome:
        failed = None
        if self.reason is not None:
            answered = self.artifact is not None and not self.reason.startswith("http_")
            failed = Failed.CUT_OFF if answered else Failed.BEFORE_RESPONSE
        tpot_s = None
        if self.first is not None and self.last is not None and self.tokens > 1:
            tpot_s = (self.last - self.first) / (self.tokens - 1)
        return Outcome(
            target=target,
            failed=failed,
            reason=self.reason,
            artifact=self.artifact,
            ttft_s=None if self.first is None else self.first - self.begun,
            tpot_s=tpot_s,
            itl_max_s=None if tpot_s is None else self.longest_gap_s,
            e2e_s=time.perf_counter() - self.begun,
            output_tokens=self.tokens,
            sent_s=self.begun,
        )


async def _outcome(
    http: httpx.AsyncClient, url: str, headers: dict[str, str], body: bytes, profile: Profile
) -> Outcome:
    answer = _Answer()
    try:
        async with asyncio.timeout(profile.timeout):
            await _read(http, url, headers, body, answer, stream=profile.stream)
    except (TimeoutError, httpx.TimeoutException):
        answer.reason = "timeout"
    except httpx.ConnectError:
        answer.reason = "refused"
    except httpx.NetworkError:
        answer.reason = "reset"
    except httpx.ProtocolError:
        answer.reason = "closed"
    except (ValueError, KeyError, TypeError):
        answer.reason = "not understood"
    return answer.outcome(url)


async def _read(
    http: httpx.AsyncClient,
    url: str,
    headers: dict[str, str],
    body: bytes,
    answer: _Answer,
    *,
    stream: bool,
) -> None:
    async with http.stream("POST", url + _PATH, content=body, headers=headers) as response:
        answer.artifact = response.headers.get(ARTIFACT_HEADER, NO_ARTIFACT)
        if response.status_code != httpx.codes.OK:
            answer.reason = f"http_{response.status_code}"
            return
        if not stream:
            await response.aread()
            answer.tokens = int(response.json()["usage"]["completion_tokens"])
            return
        answer.reason = "ended early"
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                answer.reason = None
            elif line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    answer.reason = "error event"
                    return
                _count(chunk, answer)


def _count(chunk: dict[str, Any], answer: _Answer) -> None:
    """A chunk may carry several tokens: the usage at the end says how many there were."""
    if any(choice["text"] or choice["finish_reason"] is None for choice in chunk["choices"]):
        now = time.perf_counter()
        if answer.last is not None:
            answer.longest_gap_s = max(answer.longest_gap_s, now - answer.last)
        answer.first, answer.last = answer.first or now, now
        answer.tokens += 1
    if usage := chunk.get("usage"):
        answer.tokens = int(usage["completion_tokens"])
