"""The words that the simulated model says: a function of model and prompt alone.

Parity between two runtimes can so be judged: they differ only where one computes wrongly.
"""

import random
from collections.abc import Iterator, Sequence
from hashlib import blake2b

_SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "zo")
WORDS = tuple(f" {first}{second}" for first in _SYLLABLES for second in _SYLLABLES)
_WRONG = {word: WORDS[(index + 1) % len(WORDS)] for index, word in enumerate(WORDS)}
MEDIAN_LENGTH = 128  # tokens after which half of the answers end by themselves

CHARACTERS_PER_TOKEN = 4

Prompt = str | Sequence[int]


def count_tokens(prompt: Prompt) -> int:
    """Token ids are counted; text has about one token in four characters."""
    if isinstance(prompt, str):
        return max(1, -(-len(prompt) // CHARACTERS_PER_TOKEN))
    return len(prompt)


class Answer:
    """What the model answers to one prompt.

    ``natural_length``: tokens after which it stops by itself. Iterating gives word after word
    without end.
    """

    def __init__(self, model: str, prompt: Prompt) -> None:
        text = prompt if isinstance(prompt, str) else ",".join(map(str, prompt))
        digest = blake2b(f"{model}\0{text}".encode(), digest_size=8).digest()
        self._random = random.Random(digest)  # noqa: S311  a function of the prompt, no secret
        self.natural_length = max(1, round(MEDIAN_LENGTH * self._random.lognormvariate(0, 0.6)))

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return WORDS[int(self._random.random() * len(WORDS))]


def token_id(word: str) -> int:
    return WORDS.index(word)


def logprob(word: str) -> float:
    """Of the word that is said: another for each, between −1 and 0."""
    return -(token_id(word) + 1) / (len(WORDS) + 1)


def wrong(word: str) -> str:
    """Another word than the right one, always the same."""
    return _WRONG[word]
