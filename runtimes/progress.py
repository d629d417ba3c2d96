"""One generated token in bounded time: the only proof that an engine makes progress.

A hung engine answers its health check with 200 and exports its metrics.
"""

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import httpx

from canaryctl.runtimes.generation import PATH, completion_body
from canaryctl.runtimes.httpclient import client

_PROMPT_TOKENS = 4
_MOST_OUTSTANDING = 32  # threads, over all instances


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    base_url: str
    model: str


@dataclass(frozen=True, slots=True)
class ProgressResult:
    """``seconds``: how long the token took; None where none came, and ``reason`` says why."""

    instance: str
    started_at: datetime
    seconds: float | None = None
    reason: str | None = None

    @property
    def ok(self) -> bool:
        return self.seconds is not None


class ProgressProbe:
    """Asks each instance for one token every ``interval_s``, and waits ``timeout_s`` for it.

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
                self._checks[name] = _Check(target, now, self._timeout_s)
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
    """One request, in a thread that dies with the controller."""

    def __init__(self, target: ProbeTarget, now: datetime, timeout_s: float) -> None:
        self.target = target
        self.started_at = now
        self._reported = False
        self._overdue = False
        self._answer: queue.SimpleQueue[float | str] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=lambda: self._answer.put(_generate(target, timeout_s)),
            name="progress-probe",
            daemon=True,
        )
        self._thread.start()

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
            if (now - self.started_at).total_seconds() <= timeout_s:
                return None
            # Twice in a row: a controller that was stopped itself has an answer waiting that
            # its thread had no time to take.
            if not self._overdue:
                self._overdue = True
                return None
            answer = f"no token in {timeout_s:g} s"
        self._reported = True
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
