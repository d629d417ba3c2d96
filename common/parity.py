"""How far the greedy answers of two engines agree: runtimes measure it, gates judge it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Agreement:
    """One run of all prompts against another, prompt by prompt.

    ``asked``: prompts by the size of the batch that they were asked in (a JSON key, so text);
    ``diverged``: those of them whose answers differ in a token. ``nats``: mean absolute
    difference of the log-probabilities of the tokens before the first that differs; None: an
    engine told none.
    """

    asked: Mapping[str, int]
    diverged: Mapping[str, int]
    nats: float | None = None

    @property
    def prompts(self) -> int:
        return sum(self.asked.values())

    @property
    def share(self) -> float:
        return sum(self.diverged.values()) / self.prompts

    def of(self, batch: str) -> tuple[int, int]:
        """(diverged, asked) in batches of this size."""
        return self.diverged.get(batch, 0), self.asked.get(batch, 0)


@dataclass(frozen=True, slots=True)
class Parity:
    """``canary``: its answers in batches of many sizes against the reference's in small ones.
    ``itself``: the reference's own in the same batches, against the same: what differs there
    comes of the batch and not of the runtime. ``reference``: who it is, in words.
    ``example``: where an answer of the canary parts from the reference's; empty: nowhere.
    ``token_ids``: tokens were compared by their ids; False: by their texts, which tokens share."""

    reference: str
    canary: Agreement
    itself: Agreement
    example: str = ""
    token_ids: bool = False

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Parity":
        """What ``dataclasses.asdict`` made of one; before there was ``token_ids``, texts were
        compared."""
        sides = {name: Agreement(**document[name]) for name in ("canary", "itself")}
        return cls(**{**document, **sides})
