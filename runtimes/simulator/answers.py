"""The JSON of OpenAI answers. A stream writes one chunk a token, so the chunks are templates."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from canaryctl.runtimes.simulator.text import logprob, token_id

DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, generated: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
    }


def error(message: str, *, status: int, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI and vLLM write it."""
    kinds = {400: "BadRequestError", 404: "NotFoundError", 405: "MethodNotAllowedError"}
    kind = kinds.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How one request is answered: ``chat`` or completion."""

    id: str
    created: int
    model: str
    fingerprint: str
    chat: bool

    def whole(
        self,
        words: Sequence[str],
        reason: str,
        prompt_tokens: int,
        *,
        logprobs: bool,
        token_ids: bool = False,
    ) -> dict[str, Any]:
        """An answer that is not streamed. ``token_ids``: in its log-probabilities."""
        text = "".join(words)
        content: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        )
        kind = "chat.completion" if self.chat else "text_completion"
        told = _logprobs(words, token_ids=token_ids) if logprobs else None
        choice = {"index": 0, **content, "logprobs": told, "finish_reason": reason}
        return {**self._head(kind), "choices": [choice], "usage": usage(prompt_tokens, len(words))}

    def opening(self) -> bytes:
        """What a stream says before the first token."""
        if not self.chat:
            return b""
        return self._chunk({"delta": {"role": "assistant", "content": ""}, "finish_reason": None})

    def pieces(self) -> tuple[bytes, bytes, bytes]:
        """What stands before a word, after it, and after the last one (``%s``: the reason)."""
        mark = "\0word\0"
        content = {"delta": {"content": mark}} if self.chat else {"text": mark}
        chunk = self._chunk({**content, "logprobs": None, "finish_reason": None})
        before, after = chunk.split(json.dumps(mark)[1:-1].encode())
        return before, after, after.replace(b'"finish_reason":null', b'"finish_reason":"%s"')

    def closing(self, reason: str) -> bytes:
        """The end of a stream that has no last token."""
        content: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
        return self._chunk({**content, "finish_reason": reason})

    def usage_chunk(self, prompt_tokens: int, generated: int) -> bytes:
        document = {**self._head(self._chunk_kind), "choices": []}
        return _event({**document, "usage": usage(prompt_tokens, generated)})

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return _event({**self._head(self._chunk_kind), "choices": [{"index": 0, **choice}]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def _logprobs(words: Sequence[str], *, token_ids: bool) -> dict[str, Any]:
    """OpenAI's form for completions; with token ids vLLM's, whose offsets are of what it shows."""
    found = [logprob(word) for word in words]
    shown = [f"token_id:{token_id(word)}" for word in words] if token_ids else list(words)
    return {
        "text_offset": [0, *itertools.accumulate(map(len, shown[:-1]))],
        "token_logprobs": found,
        "tokens": shown,
        "top_logprobs": [{token: value} for token, value in zip(shown, found, strict=True)],
    }


def error_event(message: str) -> bytes:
    """An error in the middle of a stream, as vLLM sends it."""
    return _event(error(message, status=500))


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
