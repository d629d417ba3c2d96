"""The requests of a profile, one after another: pure, and the same for the same seed."""

import itertools
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass

from canaryctl.runtimes.load.profile import Phase, Profile, PromptKind, Range


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request: when (seconds from the start), what, and in whose session."""

    at_s: float
    prompt: tuple[int, ...] | str
    output_tokens: int
    session: str | None


def planned_requests(
    profile: Profile, *, duration_s: float | None, requests: int | None
) -> Iterator[PlannedRequest]:
    """Endless where neither ``duration_s`` nor ``requests`` ends it."""
    arrivals = _arrivals(profile, random.Random(f"arrivals {profile.seed}"))  # noqa: S311
    # Streams of their own: another rate asks the same questions at other times.
    content = random.Random(f"content {profile.seed}")  # noqa: S311
    for at_s, phase in itertools.islice(arrivals, requests):
        if duration_s is not None and at_s >= duration_s:
            return
        session = content.randrange(profile.sessions) if profile.sessions else None
        yield PlannedRequest(
            at_s=at_s,
            prompt=_prompt(profile, phase.prompt_tokens or profile.prompt_tokens, content),
            output_tokens=_pick(phase.output_tokens or profile.output_tokens, content),
            session=None if session is None else f"load-{profile.seed}-{session}",
        )


def _arrivals(profile: Profile, random_times: random.Random) -> Iterator[tuple[float, Phase]]:
    """A Poisson process whose rate changes from phase to phase.

    It forgets its past, so that it may be begun anew at the border of each phase.
    """
    constant = () if profile.rate is None else (_endless(profile.rate),)
    begins_at = 0.0
    for phase in itertools.cycle(profile.phases or constant):
        at_s = begins_at + random_times.expovariate(phase.rate)
        while at_s < begins_at + phase.duration:
            yield at_s, phase
            at_s += random_times.expovariate(phase.rate)
        begins_at += phase.duration


def _endless(rate: float) -> Phase:
    return Phase.model_construct(
        rate=rate, duration=float("inf"), prompt_tokens=None, output_tokens=None
    )


def _prompt(profile: Profile, tokens: Range, content: random.Random) -> tuple[int, ...] | str:
    count = _pick(tokens, content)
    if profile.prompt is PromptKind.TEXT:
        return "".join(content.choices(string.ascii_lowercase, k=count))
    return tuple(content.choices(range(profile.vocabulary), k=count))


def _pick(tokens: Range, content: random.Random) -> int:
    return content.randint(tokens.min, tokens.max)
