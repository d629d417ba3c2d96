"""A closed loop of streaming clients over plain sockets, and what they saw.

The load generator of canaryctl offers a rate; here as many requests as asked are open at any
moment. Plain sockets, because a full HTTP client spends more on an event than a graph decode
step takes.
"""

import asyncio
import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from canaryctl.runtimes.generation import PATH, completion_body

EVENT, END = b'data: {"id"', b"data: [DONE]"
READ_BYTES = 1 << 16
ANSWER_TIMEOUT_S = 60.0
QUANTILES = (50, 95, 99)


@dataclass(slots=True)
class Answer:
    """One streamed answer. Times in seconds of the performance counter; ``gaps_s``: between
    events as they arrived, zero for those that came together."""

    sent: float
    first: float | None = None
    last: float | None = None
    events: int = 0
    gaps_s: list[float] = field(default_factory=list)
    failure: str | None = None

    def take(self, events: int, at: float) -> None:
        """``events`` arrived together."""
        if events == 0:
            return
        if self.last is not None:
            self.gaps_s.append(at - self.last)
        else:
            self.first = at
        self.gaps_s += [0.0] * (events - 1)
        self.last = at
        self.events += events


@dataclass(frozen=True, slots=True)
class Cell:
    """What so many clients saw in a time; each answer had exactly ``output_tokens``."""

    concurrency: int
    output_tokens: int
    seconds: float  # from the first request sent to the last answer complete
    answers: tuple[Answer, ...]

    def as_document(self) -> dict[str, Any]:
        """JSON types. Quantiles by nearest rank, in seconds; None without a value."""
        good = [answer for answer in self.answers if answer.failure is None]
        failures = [answer.failure for answer in self.answers if answer.failure is not None]
        ttft = [a.first - a.sent for a in good if a.first is not None]
        tpot = [
            (a.last - a.first) / (self.output_tokens - 1)
            for a in good
            if a.first is not None and a.last is not None
        ]
        return {
            "concurrency": self.concurrency,
            "requests": len(good),
            "failed": len(failures),
            "failures": sorted(set(failures))[:3],
            "seconds": self.seconds,
            "events_per_token": sum(a.events for a in good)
            / max(1, len(good) * self.output_tokens),
            "tokens_per_s": len(good) * self.output_tokens / self.seconds,
            "ttft_s": quantiles(ttft),
            "tpot_s": quantiles(tpot),
            "itl_s": quantiles(gap for a in good for gap in a.gaps_s),
        }


def quantiles(values: Iterable[float]) -> dict[str, float] | None:
    known = sorted(values)
    if not known:
        return None
    return {f"p{q}": known[max(0, math.ceil(q / 100 * len(known)) - 1)] for q in QUANTILES}


def spread(values: Iterable[float | None]) -> dict[str, Any] | None:
    """``median``, ``least``, ``most`` and ``n`` of repeated measurements."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": median(known), "least": min(known), "most": max(known), "n": len(known)}


def over_repeats(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Repeats of one cell, folded: the spread of each number over the repeats."""
    return {
        "requests": sum(cell["requests"] for cell in cells),
        "failed": sum(cell["failed"] for cell in cells),
        "tokens_per_s": spread(cell["tokens_per_s"] for cell in cells),
        **{
            f"{name}_p{q}_s": spread(
                None if cell[f"{name}_s"] is None else cell[f"{name}_s"][f"p{q}"] for cell in cells
            )
            for name in ("ttft", "tpot", "itl")
            for q in QUANTILES
        },
    }


def run_cell(
    url: str,
    model: str,
    *,
    concurrency: int,
    seconds: float,
    prompt_tokens: int,
    output_tokens: int,
    least_requests: int = 1,
) -> Cell:
    """Keep ``concurrency`` requests open for ``seconds``, then await those that are open.

    Each client makes ``least_requests`` at least, however long they take.
    """
    return asyncio.run(
        _run(url, model, concurrency, seconds, prompt_tokens, output_tokens, least_requests)
    )


async def _run(
    url: str,
    model: str,
    concurrency: int,
    seconds: float,
    prompt_tokens: int,
    output_tokens: int,
    least_requests: int,
) -> Cell:
    host, port = address(url)
    answers: list[Answer] = []
    begun = time.perf_counter()

    async def client() -> None:
        made = 0
        while made < least_requests or time.perf_counter() - begun < seconds:
            body = completion_body(model, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
            answer = await ask(host, port, json.dumps({**body, "stream": True}).encode())
            answers.append(answer)
            made += 1
            if answer.failure is not None:
                await asyncio.sleep(0.1)  # an engine that refuses is not hammered

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return Cell(concurrency, output_tokens, time.perf_counter() - begun, tuple(answers))


def address(url: str) -> tuple[str, int]:
    place = urlsplit(url)
    if place.hostname is None or place.port is None:
        raise ValueError(f"expected http://HOST:PORT, found {url!r}")
    return place.hostname, place.port


async def ask(host: str, port: int, body: bytes) -> Answer:
    """One streamed request, and its answer read to the end."""
    answer = Answer(sent=time.perf_counter())
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                head = (
                    f"POST {PATH} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await _read(reader, answer)
            finally:
                writer.close()
    except TimeoutError:
        answer.failure = f"no whole answer in {ANSWER_TIMEOUT_S:g} s"
    except OSError as error:
        answer.failure = f"{type(error).__name__}: {error}"
    return answer


async def _read(reader: asyncio.StreamReader, answer: Answer) -> None:
    status = await reader.readline()
    if b" 200 " not in status:
        answer.failure = f"answered {status.decode(errors='replace').strip() or 'nothing'}"
        return
    ended, tail = False, b""
    keep = max(len(EVENT), len(END)) - 1
    while data := await reader.read(READ_BYTES):
        at = time.perf_counter()
        text = tail + data
        # Words may be cut by a read: the tail is shorter than either, so that none counts twice.
        answer.take(text.count(EVENT) - tail.count(EVENT), at)
        ended = ended or END in text
        tail = text[-keep:]
    if not ended:
        answer.failure = "the stream ended early"
    elif answer.events == 0:
        answer.failure = "the stream had no token"
