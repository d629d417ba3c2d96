"""How often steps of each size ran: what a grid is planned from."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate


class Kind(StrEnum):
    """What is counted, once for each engine step that has it."""

    DECODE_SEQUENCES = "decode_sequences"  # sequences of a step that holds decodes alone
    SCHEDULED_TOKENS = "scheduled_tokens"  # tokens of any step
    PREFILL_TOKENS = "prefill_tokens"  # prompt tokens of a step that has some
    MIXED_TOKENS = "mixed_tokens"  # all tokens of a step that has prompt tokens


@dataclass(frozen=True, slots=True)
class Distribution:
    """``sizes`` ascending, from 1; ``counts``: steps of each, more than 0."""

    sizes: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> "Distribution":
        """Sizes without a step are left out. ValueError for a size below 1 or a negative count."""
        for size, count in counts.items():
            if size < 1 or count < 0:
                raise ValueError(f"found {count} steps of size {size}, expected sizes from 1")
        kept = sorted((size, count) for size, count in counts.items() if count)
        return cls(tuple(size for size, _ in kept), tuple(count for _, count in kept))

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def tokens(self) -> int:
        return sum(size * count for size, count in self.items())

    def items(self) -> Iterable[tuple[int, int]]:
        return zip(self.sizes, self.counts, strict=True)

    def up_to(self, size: int) -> int:
        """Steps of at most ``size``."""
        return sum(self.counts[: bisect_right(self.sizes, size)])

    def share_up_to(self, size: int) -> float:
        return self.up_to(size) / self.total

    def quantile(self, share: float) -> int:
        """The least size that ``share`` of the steps do not exceed. Of an empty one: ValueError."""
        if not self.sizes:
            raise ValueError("no step was counted")
        rank = max(1, math.ceil(share * self.total - 1e-9))
        reached = list(accumulate(self.counts))
        return next(s for s, r in zip(self.sizes, reached, strict=True) if r >= rank)

    def scaled(self, factor: int) -> "Distribution":
        """Every size times ``factor``: tokens of decodes that take several each."""
        return Distribution(tuple(size * factor for size in self.sizes), self.counts)

    def without(self, other: "Distribution") -> "Distribution":
        """The steps that ``other`` does not count. ValueError where it counts more."""
        left = Counter(dict(self.items()))
        left.subtract(dict(other.items()))
        return Distribution.of(left)

    def split(self, size: int) -> tuple["Distribution", "Distribution"]:
        """Up to ``size``, and above."""
        at = bisect_right(self.sizes, size)
        return (
            Distribution(self.sizes[:at], self.counts[:at]),
            Distribution(self.sizes[at:], self.counts[at:]),
        )


def merged(parts: Iterable[Distribution]) -> Distribution:
    total: Counter[int] = Counter()
    for part in parts:
        total.update(dict(part.items()))
    return Distribution.of(total)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The shapes of a time of traffic.

    ``source``: where they come from, as a person would say it. ``notes``: what was assumed or
    rounded on the way. ``by_hour``: the same by hour of day (UTC), where it is known.
    ``observed_at``: none of it is later, in seconds since 1970; None: not known.
    """

    source: str
    kinds: Mapping[Kind, Distribution]
    notes: tuple[str, ...] = ()
    by_hour: Mapping[int, Mapping[Kind, Distribution]] = field(default_factory=dict)
    observed_at: float | None = None

    def of(self, kind: Kind) -> Distribution:
        return self.kinds.get(kind, Distribution())

    def planned(self, max_num_seqs: int) -> "Shapes":
        """What a grid serves: decodes by sequences, and the other steps by tokens.

        Where steps are known by their tokens alone, those of at most ``max_num_seqs`` are taken
        for decodes.
        """
        decode, scheduled = self.of(Kind.DECODE_SEQUENCES), self.of(Kind.SCHEDULED_TOKENS)
        mixed = self.of(Kind.MIXED_TOKENS)
        if decode.sizes or mixed.sizes:
            unclear = scheduled.total - decode.total - mixed.total
            note = f"{unclear} of {scheduled.total} steps are neither, as far as is known: left out"
            return Shapes(decode, mixed, (note,) if unclear > 0 else ())
        if not scheduled.sizes:
            raise ValueError(f"{self.source} holds no step: nothing to plan from")
        small, large = scheduled.split(max_num_seqs)
        note = (
            "steps are known by their tokens alone: those of at most "
            f"{max_num_seqs} (max_num_seqs) are taken for decodes"
        )
        return Shapes(small, large, (note,))


@dataclass(frozen=True, slots=True)
class Shapes:
    """``decode``: by sequences; ``mixed``: steps with prompt tokens, by all their tokens."""

    decode: Distribution
    mixed: Distribution
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return self.decode.total + self.mixed.total
