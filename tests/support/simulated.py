"""Simulated engines as real processes, started as the adapter says."""

import asyncio
import json
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from canaryctl.runtimes.engines.base import LogFacts
from canaryctl.runtimes.engines.simulated import SimulatedEngine
from canaryctl.runtimes.spec import RuntimeSpec

ENGINE = SimulatedEngine()


def simulated_spec(args: dict[str, Any] | None = None, **sections: Any) -> RuntimeSpec:
    """A spec whose engine starts at once (``time_scale: 0``), unless ``args`` say otherwise."""
    return RuntimeSpec.model_validate(
        {
            "engine": {
                "name": "simulated",
                "version": "0.25.1",
                "args": {"time_scale": 0, **(args or {})},
            },
            "model": {"id": "qwen"},
            **sections,
        }
    )


class SimulatedServer:
    """One engine process: used as a context manager, it is ended with the block."""

    def __init__(self, spec: RuntimeSpec, log: Path, *, wait: bool = True) -> None:
        self.spec, self.log, self._wait = spec, log, wait
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=10)

    def __enter__(self) -> Self:
        launch = ENGINE.launch(self.spec, host="127.0.0.1", port=self.port)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(launch.argv, stdout=log, stderr=subprocess.STDOUT)
        if self._wait:
            self.until(self.healthy)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()

    def until(self, condition: Callable[[], bool], timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s} s:\n{self.log_text()}"
            time.sleep(0.02)

    def healthy(self) -> bool:
        assert self.process.poll() is None, self.log_text()
        return self.health() == 200

    def health(self) -> int | None:
        """The status of ``/health``; None where nothing listens."""
        try:
            return self.client.get("/health").status_code
        except httpx.TransportError:
            return None

    def log_text(self) -> str:
        return self.log.read_text()

    def facts(self) -> LogFacts:
        return ENGINE.read_log(self.log_text().splitlines(), self.spec.engine.version)

    def complete(self, tokens: int = 8, prompt: object = "hello", **more: Any) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more}
        return self.client.post("/v1/completions", json=body)

    def text(self, prompt: str = "hello", tokens: int = 8) -> str:
        answer = self.complete(tokens, prompt).json()
        return str(answer["choices"][0]["text"])

    def switch(self, *faults: str, **more: Any) -> httpx.Response:
        return self.client.post("/simulator/faults", json={"faults": faults, **more})

    def complete_many(self, count: int, *, rate: float = 0, tokens: int = 8) -> list[int]:
        """Statuses of ``count`` requests, all at once or at ``rate`` a second."""

        async def one(client: httpx.AsyncClient, number: int) -> int:
            await asyncio.sleep(number / rate if rate else 0)
            body = {"prompt": [number] * 16, "max_tokens": tokens, "ignore_eos": True}
            return (await client.post("/v1/completions", json=body)).status_code

        async def all_of_them() -> list[int]:
            async with httpx.AsyncClient(base_url=self.url, timeout=30) as client:
                return await asyncio.gather(*(one(client, number) for number in range(count)))

        return asyncio.run(all_of_them())

    def page(self) -> "MetricsPage":
        return MetricsPage(self.client.get("/metrics").text)

    @contextmanager
    def streaming(self, tokens: int) -> Iterator[httpx.Response]:
        """A stream whose first token has come."""
        body = {"prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        with self.client.stream("POST", "/v1/completions", json=body) as response:
            self.until(lambda: self.page().value("vllm:num_requests_running") == 1)
            yield response


class MetricsPage:
    """A scraped page."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))

    @property
    def names(self) -> set[str]:
        return {sample.name for family in self.families for sample in family.samples}

    def value(self, name: str, **match: str) -> float:
        """The sum of the series of ``name`` whose labels fully match."""
        values = [value for labels, value in self.series(name) if _matches(labels, match)]
        return sum(values)

    def series(self, name: str) -> list[tuple[dict[str, str], float]]:
        return [
            (dict(sample.labels), sample.value)
            for family in self.families
            for sample in family.samples
            if sample.name == name
        ]

    def labels(self, name: str) -> dict[str, str]:
        """The labels of the one series of ``name``."""
        [(labels, _)] = self.series(name)
        return labels

    def count_above(self, histogram: str, seconds: float) -> float:
        """How many observations lie above the edge next below ``seconds``."""
        below = [
            value
            for labels, value in self.series(f"{histogram}_bucket")
            if float(labels["le"]) <= seconds
        ]
        return self.value(f"{histogram}_count") - max(below, default=0.0)


def _matches(labels: dict[str, str], match: dict[str, str]) -> bool:
    return all(re.fullmatch(pattern, labels.get(name, "")) for name, pattern in match.items())


def events(stream: str) -> list[Any]:
    """The JSON documents of a stream of server-sent events; its end is checked."""
    parts = [part.removeprefix("data: ") for part in stream.strip().split("\n\n")]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]
