"""How long requests have been in flight, from two numbers that every engine exports: how many are
in flight (I) and how many have ended so far (F).

Of the I(t0) requests in flight at t0 at most F(t) − F(t0) have ended by t; so with

    I(t0) − (F(t) − F(t0)) > 0        and I > 0 all the while

that many of them are in flight still, and are at least t − t0 old: arithmetic, not statistics. In
a steady state the largest such t − t0 is the mean time in the engine (Little's law, L = λW).
What is in flight for longer than ``age`` is at most the least I since then.

Limits: a request whose end is not counted makes the age too large, one of several sequences (n > 1)
that is counted once makes it too large by as much.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

MOST_POINTS = 96


class Point(NamedTuple):
    """``at``: seconds on any clock; ``in_flight``, ``ended``: requests, the latter cumulative;
    ``least``: in flight at any time since the point before."""

    at: float
    in_flight: float
    ended: float
    least: float


class Oldest(NamedTuple):
    """``requests`` that are at least ``age_s`` old; 0 and 0 where none is known to be."""

    age_s: float
    requests: float


def oldest(points: Sequence[Point]) -> Oldest:
    """The largest age that the points, in the order of time, prove some request to have."""
    found, least = Oldest(0.0, 0.0), math.inf
    for then, after in zip(points[-2::-1], points[:0:-1], strict=True):
        now, least = points[-1], min(least, after.least)
        if least <= 0:
            break
        left = min(then.in_flight - (now.ended - then.ended), least)
        if left > 0:
            found = Oldest(now.at - then.at, left)
    return found


def most_older(points: Sequence[Point], age_s: float) -> float | None:
    """At most how many requests are ``age_s`` old or older; None: the points do not go back so
    far."""
    if not points or points[-1].at - points[0].at < age_s:
        return None
    return min(p.in_flight for p in points if points[-1].at - p.at <= age_s)


def remember(points: Sequence[Point], new: Point, horizon_s: float) -> list[Point]:
    """``points`` and one more, back to ``horizon_s`` and never more than MOST_POINTS: then every
    other of the older half is left out, but for what was least in flight."""
    kept = [p for p in points if new.at - p.at <= horizon_s]
    if len(kept) < MOST_POINTS:
        return [*kept, new]
    half = len(kept) // 2
    thinned = [kept[0]]
    for left_out, point in zip(kept[1:half:2], kept[2 : half + 1 : 2], strict=False):
        thinned.append(point._replace(least=min(point.least, left_out.least)))
    return [*thinned, *(p for p in kept[half:] if p.at > thinned[-1].at), new]
