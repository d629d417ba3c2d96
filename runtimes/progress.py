"""One generated token in bounded time: the only proof that an engine makes progress.

A hung engine answers its health check with 200 and exports its metrics. But each question is a
request that latency gates see, so that an engine is asked only when it has given no first token
to anybody else since the last check.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import httpx

from canaryctl.runtimes.generation import PATH, completion_body
from canaryctl.runtimes.httpclient import client

_PROMPT_TOKENS = 4
_READ_S = 2.0  # what reading the engine's count may add before a check is given up
_MOST_OUTSTANDING = 32  # threads, over all instances


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """``first_tokens``: reads how many requests have got a first token from the engine since it
    started, by its own count, or None where it does not say; without it every check asks."""

    base_url: str
    model: str
    first_tokens: Callable[[], float | None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ProgressResult:
    """``seconds``: how long the token took; None where none came, and ``reason`` says why, or
    where none was asked for, since the engine was ``seen`` to give others."""

    instance: str
    started_at: datetime
    seconds: float | None = None
    reason: str | None = None
    seen: bool = False

    @property
    def ok(self) -> bool:
        return self.seen or self.seconds is not None


class ProgressProbe:
    """Checks each instance every ``interval_s``: where no request got a first token since the
    last check, it asks for one, and waits ``timeout_s`` for it.

    A hang is therefore reported at most ``interval_s + timeout_s`` (and the time between two
    polls) after it began. At most one check per instance is outstanding; the next is due
    ``interval_s`` after the last began, or when that has ended.
    """

    def __init__(self, *, interval_s: float, timeout_s: float) -> None:
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._checks: dict[str, _Check] = {}

    def poll(self, targets: Mapping[str, ProbeTarget], now: datetime) -> tuple[ProgressResult, ...]:
        """Begin what is due and return what has ended since the last poll; never waits.

        ``targets``: instance → where it listens, for all instances to be checked. What is known
        of any other instance is forgotten.
        """
        self._checks = {name: self._checks[name] for name in self._checks if name in targets}
        results = [
            result
            for name, check in self._checks.items()
            if (result := check.report(name, now, self._timeout_s)) is not None
        ]
        for name, target in targets.items():
            if self._is_due(name, target, now):
                last = self._checks.get(name)
                known = last.count if last is not None and last.target == target else None
                self._checks[name] = _Check(target, now, self._timeout_s, known)
        return tuple(results)

    def _is_due(self, name: str, target: ProbeTarget, now: datetime) -> bool:
        last = self._checks.get(name)
        if last is None or last.target != target:
            due = True
        else:
            waited_s = (now - last.started_at).total_seconds()
            due = not last.outstanding and waited_s >= self._interval_s
        return due and sum(check.outstanding for check in self._checks.values()) < _MOST_OUTSTANDING


class _Check:
    """One request at most, in a thread that dies with the controller. ``known``: the engine's
    count of first tokens after the last check; ``count``: after this one; None: not known."""

    def __init__(
        self, target: ProbeTarget, now: datetime, timeout_s: float, known: float | None
    ) -> None:
        self.count: float | None = None
        self.target = target
        self.started_at = now
        self._reported = False
        self._overdue = False
        self._answer: queue.SimpleQueue[float | str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=lambda: self._answer.put(self._check(known, timeout_s)),
            name="progress-probe",
            daemon=True,
        )
        self._thread.start()

    def _check(self, known: float | None, timeout_s: float) -> float | str | None:
        """Seconds that a token took, or why none came; None: others were seen to get one."""
        read = self.target.first_tokens
        found = read() if read is not None else None
        if found is not None and known is not None and found > known:
            self.count = found
            return None
        answer = _generate(self.target, timeout_s)
        # The engine may count its own token a moment later: that is no progress of the next check.
        self.count = None if found is None else found + 1
        return answer

    @property
    def outstanding(self) -> bool:
        return self._thread.is_alive()

    def report(self, instance: str, now: datetime, timeout_s: float) -> ProgressResult | None:
        """The result, once. A request that trickles is given up by the clock."""
        if self._reported:
            return None
        try:
            answer = self._answer.get_nowait()
        except queue.Empty:
            reads_s = _READ_S if self.target.first_tokens is not None else 0.0
            if (now - self.started_at).total_seconds() <= timeout_s + reads_s:
                return None
            # Twice in a row: a controller that was stopped itself has an answer waiting that
            # its thread had no time to take.
            if not self._overdue:
                self._overdue = True
                return None
            answer = f"no token in {timeout_s:g} s"
        self._reported = True
        if answer is None:
            return ProgressResult(instance, self.started_at, seen=True)
        if isinstance(answer, str):
            return ProgressResult(instance, self.started_at, reason=answer)
        return ProgressResult(instance, self.started_at, seconds=answer)


def _generate(target: ProbeTarget, timeout_s: float) -> float | str:
    """Seconds that one token took, or why none came."""
    body = completion_body(target.model, prompt_tokens=_PROMPT_TOKENS, output_tokens=1)
    begun = time.perf_counter()
    try:
        with client(timeout_s) as http:
            response = http.post(target.base_url + PATH, json=body)
    except httpx.TimeoutException:
        return f"no token in {timeout_s:g} s"
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    taken_s = time.perf_counter() - begun
    if response.status_code != httpx.codes.OK:
        return f"HTTP {response.status_code}: {response.text[:300]}"
    try:
        tokens = response.json()["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError):
        return f"expected a completion with its usage, found: {response.text[:300]}"
    return taken_s if tokens == 1 else f"expected one token, found {tokens}"
