"""What every stage of a baseline run is asked: the same requests at the same times."""

import hashlib
import random
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from canaryctl.common.errors import InputError
from canaryctl.runtimes.grid.traces import read_trace
from canaryctl.runtimes.load.profile import Profile, parse_profile
from canaryctl.runtimes.load.schedule import PlannedRequest, planned_requests
from canaryctl.runtimes.load.traced import traced_requests

MOST_REQUESTS = 200_000
"""They are kept in memory, so that every stage gets the same."""


@dataclass(frozen=True, slots=True)
class Load:
    """``identity``: digest over times and lengths of the requests. ``profile``: how they are
    sent."""

    source: str
    profile: Profile
    requests: tuple[PlannedRequest, ...]

    @property
    def identity(self) -> str:
        digest = hashlib.sha256()
        for request in self.requests:
            shape = (round(request.at_s, 6), len(request.prompt), request.output_tokens)
            digest.update(repr(shape).encode())
        return f"sha256:{digest.hexdigest()[:16]}, {len(self.requests)} requests"

    def repeat(self, number: int) -> Iterator[PlannedRequest]:
        """The requests with prompts of their own for each repeat: one that was asked before
        would be found in the engine's prefix cache."""
        draw = random.Random(f"repeat {number} {self.profile.seed}")  # noqa: S311
        for request in self.requests:
            count = len(request.prompt)
            prompt: tuple[int, ...] | str
            if isinstance(request.prompt, str):
                prompt = "".join(draw.choices(string.ascii_lowercase, k=count))
            else:
                prompt = tuple(draw.choices(range(self.profile.vocabulary), k=count))
            yield replace(request, prompt=prompt)


def of_trace(
    path: Path,
    *,
    speed: float,
    duration_s: float | None,
    requests: int | None,
    max_model_len: int,
) -> Load:
    """A request trace, its first ``duration_s`` seconds or ``requests`` where given."""
    profile = Profile.model_validate({"rate": 1.0})
    planned = traced_requests(
        read_trace(path),
        profile,
        max_model_len=max_model_len,
        speed=speed,
        duration_s=duration_s,
        requests=requests,
    )
    return Load(str(path), profile, _kept(planned, str(path)))


def of_profile(path: Path, *, duration_s: float | None, requests: int | None) -> Load:
    """A load profile; InputError where nothing ends it."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the profile {path} cannot be read: {error}") from error
    profile = parse_profile(text, str(path))
    duration_s = profile.duration if duration_s is None else duration_s
    requests = profile.requests if requests is None else requests
    if duration_s is None and requests is None:
        raise InputError(f"{path}: the load needs an end; give --for or --requests")
    planned = planned_requests(profile, duration_s=duration_s, requests=requests)
    return Load(str(path), profile, _kept(planned, str(path)))


def _kept(planned: Iterable[PlannedRequest], source: str) -> tuple[PlannedRequest, ...]:
    kept: list[PlannedRequest] = []
    for request in planned:
        if len(kept) == MOST_REQUESTS:
            raise InputError(
                f"{source}: more than {MOST_REQUESTS} requests; give --for or --requests"
            )
        kept.append(request)
    if not kept:
        raise InputError(f"{source}: no request falls within the time; give a longer --for")
    return tuple(kept)
