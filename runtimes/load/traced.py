"""The requests of a trace, as the load generator plans them: the trace's times and lengths, and
contents from a seed."""

import random
from collections.abc import Iterator
from itertools import islice

from canaryctl.common.errors import InputError
from canaryctl.runtimes.grid.traces import Trace
from canaryctl.runtimes.load.profile import Profile
from canaryctl.runtimes.load.schedule import PlannedRequest


def traced_requests(
    trace: Trace,
    profile: Profile,
    *,
    max_model_len: int,
    speed: float = 1.0,
    duration_s: float | None = None,
    requests: int | None = None,
) -> Iterator[PlannedRequest]:
    """The requests within ``duration_s`` (after ``speed``), at most ``requests`` of them.

    InputError names the line of a request that the model's length has no room for.
    """
    if not speed > 0:
        raise InputError(f"found a speed of {speed:g}, expected more than 0")
    content = random.Random(f"content {profile.seed}")  # noqa: S311
    for request in islice(trace.requests, requests):
        at_s = request.arrival_s / speed
        if duration_s is not None and at_s >= duration_s:
            return
        tokens = request.input_tokens + request.output_tokens
        if tokens > max_model_len:
            raise InputError(
                f"{trace.path}:{request.line}: the request has {tokens} tokens, max_model_len is "
                f"{max_model_len}; leave it out or raise limits.max_model_len"
            )
        prompt = tuple(content.choices(range(profile.vocabulary), k=request.input_tokens))
        yield PlannedRequest(at_s, prompt, request.output_tokens, session=None)
