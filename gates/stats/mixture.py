"""Mixtures of e-processes: over a grid of alternatives, and over late starts.

An e-process stays at or under 1/α with probability 1−α for ever, whenever it is looked at
(Ville), and any fixed convex mixture of e-processes is one. State is plain lists of floats.
"""

import math
from collections.abc import Sequence
from math import exp, log
from operator import sub

START_SPACING_S = 300.0
STARTS = 11


def log_mean_exp(logs: Sequence[float]) -> float:
    """ln of the mean of exp(logs): a grid of alternatives, equally weighted."""
    top = max(logs)
    return top + log(sum([exp(x - top) for x in logs]) / len(logs))


def log_weighted_exp(logs: Sequence[float], weights: Sequence[float]) -> float:
    """ln of Σ w·exp(log), the weights adding up to 1 at most: e-processes of one null, mixed."""
    top = max(logs)
    return top + math.log(sum(w * math.exp(x - top) for x, w in zip(logs, weights, strict=True)))


def take_starts(
    starts: list[list[float]], logs: Sequence[float], elapsed_s: float
) -> list[list[float]]:
    """Snapshots of ``logs`` for the late starts due by ``elapsed_s``; earlier ones are kept.

    Call it before the evidence of the look at ``elapsed_s`` is added. Start s (1…11) is due at
    5·s minutes. Where none is due, ``starts`` itself: a snapshot never changes, so that states
    may share it.
    """
    due = min(STARTS, int(elapsed_s // START_SPACING_S))
    new = due - len(starts)
    return starts if new <= 0 else [*starts, *(list(logs) for _ in range(new))]


def log_e_late(logs: Sequence[float], starts: Sequence[Sequence[float]]) -> float:
    """ln E of E = ½E⁽⁰⁾ + ½/11·Σ_{s=1..11} E⁽ˢ⁾, where E⁽ˢ⁾ = mean exp(L − L_s), 1 before s.

    It costs at most ln 2 for regressions that are there from the start, and spares those that
    come late from first having to undo the evidence against them. Source: docs/gates.md.
    """
    terms = [math.log(0.5) + log_mean_exp(logs)]
    weight = math.log(0.5 / STARTS)
    terms += [weight + log_mean_exp([*map(sub, logs, start)]) for start in starts]
    unstarted = STARTS - len(starts)
    if unstarted:
        terms.append(weight + math.log(unstarted))
    top = max(terms)
    return top + math.log(sum(math.exp(t - top) for t in terms))
