"""Bodies of OpenAI requests: what is taken from them, and what is refused.

Fields that only shape sampling are accepted and change nothing; fields that would change the
form of an answer in a way that is not simulated are refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from canaryctl.runtimes.simulator.config import SimulatorConfig
from canaryctl.runtimes.simulator.text import Prompt, count_tokens

_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's and vLLM's default for /v1/completions
_NOT_SIMULATED: Mapping[str, tuple[Any, ...]] = {
    # field: values that change nothing
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "tools": (None, []),
    "prompt_logprobs": (None, 0),
}


class RequestError(Exception):
    """A request that OpenAI's API refuses; ``status`` is the HTTP status."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """``most`` and ``least``: bounds of the number of tokens generated."""

    prompt: Prompt
    prompt_tokens: int
    most: int
    least: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    logprobs: bool  # of the tokens said; those of others are not modelled
    token_ids: bool  # instead of the tokens' texts, beside their log-probabilities


def parse_generation(body: bytes, config: SimulatorConfig, *, chat: bool) -> GenerationRequest:
    """The request in ``body``. RequestError says what was found and expected."""
    document = _object(body)
    model = document.get("model", config.served_name)
    if model not in {config.served_name, config.model}:
        raise RequestError(f"The model `{model}` does not exist.", status=404, param="model")
    for name, harmless in _NOT_SIMULATED.items():
        if document.get(name) not in harmless:
            raise RequestError(f"{name} is not simulated by this engine", param=name)
    prompt = _chat_prompt(document) if chat else _prompt(document)
    prompt_tokens = count_tokens(prompt)
    room = config.max_model_len - prompt_tokens
    if room < 1:
        raise RequestError(
            f"This model's maximum context length is {config.max_model_len} tokens. However, "
            f"the prompt has {prompt_tokens} tokens, and at least 1 is to be generated.",
            param="prompt",
        )
    most = _whole(document, "max_completion_tokens", 1) if chat else None
    if most is None:
        most = _whole(document, "max_tokens", 1)
    if most is None:
        most = room if chat else min(room, _DEFAULT_COMPLETION_TOKENS)
    if most > room:
        raise RequestError(
            f"This model's maximum context length is {config.max_model_len} tokens. However, "
            f"{prompt_tokens} are in the prompt and {most} are to be generated.",
            param="max_tokens",
        )
    least = _whole(document, "min_tokens", 0) or 0
    if least > most:
        raise RequestError(f"min_tokens is {least}, expected at most {most}", param="min_tokens")
    stream = _flag(document, "stream")
    options = document.get("stream_options")
    if options is not None and (not stream or not isinstance(options, dict)):
        raise RequestError("stream_options is an object, and needs stream", param="stream_options")
    return GenerationRequest(
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        most=most,
        least=least,
        ignore_eos=_flag(document, "ignore_eos"),
        stream=stream,
        include_usage=_flag(options or {}, "include_usage"),
        logprobs=_logprobs(document, whole=not chat and not stream),
        token_ids=_flag(document, "return_tokens_as_token_ids"),
    )


def _logprobs(document: Mapping[str, Any], *, whole: bool) -> bool:
    """Whether they are wanted; where the answer is not ``whole``, they may not be."""
    wanted = document.get("logprobs")
    if wanted is None or wanted is False or (wanted == 0 and not whole):
        return False
    if type(wanted) is int and wanted in (0, 1) and whole:
        return True
    raise RequestError(
        "logprobs is simulated by this engine as 0 or 1, for completions that are not streamed",
        param="logprobs",
    )


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestError(f"the body is a {type(document).__name__}, expected an object")
    return document


def _prompt(document: Mapping[str, Any]) -> Prompt:
    prompt = document.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return prompt
    raise RequestError(
        "prompt is expected to be one text or one list of token ids, not empty", param="prompt"
    )


def _chat_prompt(document: Mapping[str, Any]) -> str:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages is expected to be a list, not empty", param="messages")
    parts = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError("each message needs a role", param="messages")
        parts.append(f"<{message['role']}>{_content(message.get('content'))}")
    return "\n".join(parts)


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise RequestError("content is expected to be text, or parts of text", param="messages")


def _whole(document: Mapping[str, Any], name: str, low: int) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not int or value < low:
        raise RequestError(f"{name} is {value!r}, expected a whole number from {low}", param=name)
    return value


def _flag(document: Mapping[str, Any], name: str) -> bool:
    value = document.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name} is {value!r}, expected true or false", param=name)
    return bool(value)
