"""Measure whether two engines say the same to the same prompts, greedily.

A captured graph may compute wrongly what the same engine computes rightly without it, and no
metric shows it. So the prompts are asked in batches of 1, 2, 4 … sequences, which replay graphs
of as many sizes, and compared token by token: by their ids where both engines tell them, since
ids without a text of their own (parts of a character, ids beyond the tokenizer) look all alike.
Numerics of real kernels depend on the batch, so that the reference is asked twice: in small
batches, against which all is compared, and in those of the canary, which shows what the batch
alone changes.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import httpx

from canaryctl.common.errors import CanaryctlError
from canaryctl.common.parity import Agreement, Parity
from canaryctl.runtimes.background import Background
from canaryctl.runtimes.generation import PATH
from canaryctl.runtimes.httpclient import async_client

PROMPTS_OF_EACH = 24
"""In batches of each size, or one batch where that is more."""

OUTPUT_TOKENS = 16
MOST_TOGETHER = 32
FEW_TOGETHER = 4
"""The batches that all is compared with: small, and yet not one after the other."""

_SEED = 1
_TOKEN_ID = re.compile(r"token_id:\d+")
_TASKS = (
    "Explain how one makes {}, step by step.",
    "Write three sentences about {}.",
    "What would a child ask about {}?",
    "Name five facts about {} and say why each matters:",
    "The history of {} began when",
    "A good recipe for a book about {} is",
    "def describe():\n    # returns a text about {}\n    return",
    "Question: where would one look for {}? Answer:",
)
_THINGS = (
    "bread",
    "the moon",
    "a railway bridge",
    "prime numbers",
    "glass",
    "ocean tides",
    "a violin",
    "the post office",
    "vaccines",
    "a lighthouse",
    "tea",
    "earthquakes",
    "a printing press",
    "honey bees",
    "maps",
    "a wall clock",
    "rain",
    "a football match",
    "volcanoes",
    "paper",
    "a sailing boat",
    "the number zero",
    "bicycles",
    "salt",
)


@dataclass(frozen=True, slots=True)
class Side:
    """An engine to ask. ``most``: sequences that it runs at once; ``longest``: tokens of a
    request, prompt and answer; ``token_ids``: it can tell them
    (:attr:`canaryctl.runtimes.engines.base.Engine.tells_token_ids`)."""

    base_url: str
    model: str
    most: int
    longest: int
    token_ids: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """``tokens``: ``token_id:123``, or their texts; ``logprobs``: theirs; None: the engine told
    none; ``text``: the whole."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...] | None
    text: str


@dataclass(frozen=True, slots=True)
class Questions:
    """How all prompts are asked. ``together``, ``few``: sizes of batches, of the canary and of
    what all is compared with; ``tokens``: of each answer; ``by_id``: told by their ids."""

    together: tuple[int, ...]
    few: tuple[int, ...]
    tokens: int
    by_id: bool

    @classmethod
    def of(cls, canary: Side, reference: Side) -> "Questions":
        """Those that both can answer."""
        together = batches(min(MOST_TOGETHER, canary.most, reference.most))
        return cls(
            together,
            _cut(sum(together), min(FEW_TOGETHER, reference.most)),
            min(OUTPUT_TOKENS, canary.longest // 2, reference.longest // 2),
            canary.token_ids and reference.token_ids,
        )


class ParityError(CanaryctlError):
    """It could not be measured; the message says why."""


def batches(most: int) -> tuple[int, ...]:
    """Sizes 1, 2, 4 … up to ``most``, each as often as it has prompts enough."""
    sizes = [1 << k for k in range(most.bit_length())]
    return tuple(size for size in sizes for _ in range(-(-PROMPTS_OF_EACH // size)))


def prompts(count: int) -> tuple[str, ...]:
    """Always the same, all different: at most 192."""
    all_of_them = [task.format(thing) for task, thing in product(_TASKS, _THINGS)]
    random.Random(_SEED).shuffle(all_of_them)  # noqa: S311  the same at every call, no secret
    if count > len(all_of_them):
        raise ValueError(f"there are {len(all_of_them)} prompts, asked for {count}")
    return tuple(all_of_them[:count])


class Reference:
    """An engine that others are compared with. ``who``: in words.

    Its answers are kept: the same questions are asked of it once, however many are compared.
    """

    def __init__(self, side: Side, who: str) -> None:
        self.side, self.who = side, who
        self._answers: dict[Questions, tuple[list[Answer], list[Answer]]] = {}

    async def answers(
        self, http: httpx.AsyncClient, questions: Questions
    ) -> tuple[list[Answer], list[Answer]]:
        """In few at a time, and in the batches of the canary; ParityError for one that is none."""
        if questions not in self._answers:
            right = await _ask(http, self.side, questions.few, questions)
            again = await _ask(http, self.side, questions.together, questions)
            self._answers[questions] = right, again
        return self._answers[questions]


async def measure(canary: Side, reference: Reference, *, timeout_s: float) -> Parity:
    """All prompts, of the reference twice. ``timeout_s``: of a request.

    Raises ParityError for an answer that is none.
    """
    questions = Questions.of(canary, reference.side)
    async with async_client(timeout_s) as http:
        right, again = await reference.answers(http, questions)
        answers = await _ask(http, canary, questions.together, questions)
    sizes = [size for size in questions.together for _ in range(size)]
    return Parity(
        reference.who,
        _agreement(answers, right, sizes),
        _agreement(again, right, sizes),
        _example(answers, right, sizes, by_id=questions.by_id),
        questions.by_id,
    )


class ParityRun(Background[Parity]):
    """One measurement."""

    def __init__(self, canary: Side, reference: Reference, *, timeout_s: float = 60.0) -> None:
        super().__init__(lambda: _measured(canary, reference, timeout_s), "the measurement")


def _measured(canary: Side, reference: Reference, timeout_s: float) -> Parity | str:
    try:
        return asyncio.run(measure(canary, reference, timeout_s=timeout_s))
    except ParityError as error:
        return str(error)


def _cut(total: int, size: int) -> tuple[int, ...]:
    rest = total % size
    return (*((size,) * (total // size)), *((rest,) if rest else ()))


async def _ask(
    http: httpx.AsyncClient, side: Side, sizes: Sequence[int], questions: Questions
) -> list[Answer]:
    """One batch after the other."""
    texts = iter(prompts(sum(sizes)))
    found: list[Answer] = []
    for size in sizes:
        batch = [_answer(http, side, next(texts), questions) for _ in range(size)]
        found += await asyncio.gather(*batch)
    return found


async def _answer(http: httpx.AsyncClient, side: Side, prompt: str, questions: Questions) -> Answer:
    body = {
        "model": side.model,
        "prompt": prompt,
        "max_tokens": questions.tokens,
        "min_tokens": questions.tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "seed": _SEED,
        "logprobs": 1,
    }
    if side.token_ids:  # also to have texts of it, for one that has no ids
        body["return_tokens_as_token_ids"] = questions.by_id
    try:
        response = await http.post(side.base_url + PATH, json=body)
    except httpx.HTTPError as error:
        raise ParityError(f"{side.base_url}: {type(error).__name__}: {error}") from error
    if response.status_code != httpx.codes.OK:
        raise ParityError(f"{side.base_url}: HTTP {response.status_code}: {response.text[:300]}")
    try:
        return _read(response.json()["choices"][0], by_id=questions.by_id)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        form = "token_id:NUMBER" if questions.by_id else "text"
        raise ParityError(
            f"{side.base_url}: expected a completion with logprobs and its tokens, each as "
            f"{form}, found: {response.text[:300]}"
        ) from error


def _read(choice: dict[str, Any], *, by_id: bool) -> Answer:
    document = choice["logprobs"]
    tokens = tuple(str(token) for token in document["tokens"])
    if not tokens:
        raise ValueError("no token")
    if by_id and not all(map(_TOKEN_ID.fullmatch, tokens)):
        raise ValueError("a token without its id")
    told = document.get("token_logprobs")
    if not told or any(value is None for value in told):
        return Answer(tokens, None, choice["text"])
    return Answer(tokens, tuple(float(value) for value in told), choice["text"])


def _agreement(
    answers: Sequence[Answer], right: Sequence[Answer], sizes: Sequence[int]
) -> Agreement:
    asked, diverged = Counter[str](), Counter[str]()
    differences: list[float] | None = []
    for answer, expected, size in zip(answers, right, sizes, strict=True):
        same = _same(answer, expected)
        asked[str(size)] += 1
        diverged[str(size)] += same is not None
        if answer.logprobs is None or expected.logprobs is None:
            differences = None
        elif differences is not None:
            common = len(answer.tokens) if same is None else same
            pairs = zip(answer.logprobs[:common], expected.logprobs[:common], strict=True)
            differences += [abs(one - other) for one, other in pairs]
    # Where no first token agrees there is nothing to compare: that is unknown, not equal.
    nats = sum(differences) / len(differences) if differences else None
    return Agreement(dict(asked), dict(+diverged), nats)


def _same(answer: Answer, expected: Answer) -> int | None:
    """How many tokens agree before the first that does not; None: all."""
    pairs = zip(answer.tokens, expected.tokens, strict=False)
    for place, (one, other) in enumerate(pairs):
        if one != other:
            return place
    shorter, longer = sorted((len(answer.tokens), len(expected.tokens)))
    return None if shorter == longer else shorter


def _example(
    answers: Sequence[Answer], right: Sequence[Answer], sizes: Sequence[int], *, by_id: bool
) -> str:
    """The first difference; of ids, which nobody can read, with the texts of both answers."""
    for number, (answer, expected, size) in enumerate(zip(answers, right, sizes, strict=True), 1):
        place = _same(answer, expected)
        if place is not None:
            one, other = (
                _token(side.tokens[place], by_id=by_id) if place < len(side.tokens) else "the end"
                for side in (answer, expected)
            )
            where = f"prompt {number} in a batch of {size}, token {place + 1}: {one}, not {other}"
            return where + (_texts(answer.text, expected.text) if by_id else "")
    return ""


def _token(token: str, *, by_id: bool) -> str:
    return f"id {token.partition(':')[2]}" if by_id else repr(token)


def _texts(one: str, other: str) -> str:
    return f", though both read {one!r}" if one == other else f"; {one!r}, not {other!r}"
