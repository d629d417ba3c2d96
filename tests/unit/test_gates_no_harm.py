"""What no harm is worth: by then a canary as bad as `detectable` would have failed."""

import math
import random
from itertools import count

from canaryctl.gates.rules.share_limit import ShareLimit
from canaryctl.gates.rules.standing import Bars

LIMIT, DETECTABLE, PER_LOOK, RUNS = 0.1, 1.0, 10, 4000
RULE = ShareLimit(LIMIT, 1.0, Bars(math.log(800), -math.log(0.05), DETECTABLE, 0.01), "fail", "x")


def looks_until_no_harm() -> int:
    """Of a canary without an event."""
    state = RULE.start()
    for look in count():
        state = RULE.look(state, 15.0 * look, k_fail=0.0, k_pass=None, n=float(PER_LOOK))
        if RULE.standing(state).no_harm:
            return look + 1
    raise AssertionError


def fails(looks: int, draw: random.Random) -> bool:
    """Whether a canary at the limit's detectable multiple fails in so many."""
    state = RULE.start()
    share = LIMIT * (1 + DETECTABLE)
    for look in range(looks):
        events = sum(draw.random() < share for _ in range(PER_LOOK))
        state = RULE.look(state, 15.0 * look, k_fail=float(events), k_pass=None, n=float(PER_LOOK))
        if RULE.standing(state).failed:
            return True
    return False


def test_a_detectable_canary_has_failed_with_90_percent_by_the_time_of_no_harm() -> None:
    looks, draw = looks_until_no_harm(), random.Random(1)
    power = sum(fails(looks, draw) for _ in range(RUNS)) / RUNS
    # One standard error is 0.5 %; without the price of late starts it is 88 %.
    assert 0.89 < power < 0.92
