"""Requests that the controller itself makes of an engine: random prompts, exact lengths."""

import asyncio
import secrets
import time
from dataclasses import dataclass, field

import httpx

PATH = "/v1/completions"


def completion_body(
    model: str, *, prompt_tokens: int, output_tokens: int, temperature: float = 0.0
) -> dict[str, object]:
    """A request of exactly that many tokens in and out."""
    return {
        "model": model,
        "prompt": random_prompt(prompt_tokens),
        "max_tokens": output_tokens,
        "min_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": temperature,
    }


def random_prompt(tokens: int) -> list[int]:
    """Token ids that every vocabulary has, new each time: no prefix cache has seen them."""
    return [10 + byte % 240 for byte in secrets.token_bytes(tokens)]


@dataclass(slots=True)
class TokenStream:
    """One streamed answer. ``times``: when its events arrived, in seconds of the performance
    counter; ``begun`` is set with the first one, or when there will be none."""

    times: list[float] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str | None = None

    async def read(self, http: httpx.AsyncClient, base_url: str, body: dict[str, object]) -> None:
        """Send the request and read the answer to its end. What goes wrong is in ``failure``."""
        try:
            await self._read(http, base_url + PATH, {**body, "stream": True})
        except httpx.HTTPError as error:
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self.begun.set()
        if not self.times and self.failure is None:
            self.failure = "a stream ended without a token"

    async def _read(self, http: httpx.AsyncClient, url: str, body: dict[str, object]) -> None:
        async with http.stream("POST", url, json=body) as response:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread()).decode(errors="replace")
                self.failure = f"HTTP {response.status_code}: {text[:300]}"
                return
            async for line in response.aiter_lines():
                # Hundreds of streams run at once: events are told apart without parsing them.
                if line.startswith('data: {"error"'):
                    self.failure = f"the engine said: {line[6:306]}"
                    return
                if line.startswith("data: {"):
                    self.times.append(time.perf_counter())
                    self.begun.set()
