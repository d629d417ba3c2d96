"""What is learnt from equal engines beside each other, and how it is kept."""

import json
import math
import random
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from canaryctl.common.metrics import Signal
from canaryctl.gates import history
from canaryctl.gates.history import AaHistory, Dependence, HistoryError, from_document, learn
from canaryctl.gates.samples import ArmWindow, Delta, Histogram
from canaryctl.gates.stats import dependence

GRID = [0.1, 0.2, 0.4, 0.8, math.inf]
Draw = Callable[[random.Random, int, int], list[int]]
"""(random, engine, look) → observations per bucket."""


def independent(rng: random.Random, engine: int, look: int) -> list[int]:
    counts = [0] * len(GRID)
    for bucket in rng.choices(range(5), weights=[50, 30, 12, 7, 1], k=100):
        counts[bucket] += 1
    return counts


def bursts(looks: int) -> Draw:
    """One in four stretches of so many looks is slow as a whole, for each engine on its own."""

    def draw(rng: random.Random, engine: int, look: int) -> list[int]:
        queued = random.Random(f"{engine} {look // looks}").random() < 0.25
        return [10, 20, 30, 30, 10] if queued else [50, 30, 15, 5, 0]

    return draw


def record(
    draw: Draw, *, engines: int = 10, looks: int = 240, look_s: float = 15.0, seed: int = 1
) -> list[ArmWindow]:
    rng = random.Random(seed)
    return [
        ArmWindow(
            tuple(
                Delta(
                    f"b{e}",
                    look_s,
                    {
                        Signal.TTFT: Histogram(
                            tuple(zip(GRID, accumulate(draw(rng, e, k)), strict=True)), 1.0
                        )
                    },
                )
                for e in range(engines)
            ),
            engines,
        )
        for k in range(looks)
    ]


def test_independent_requests_have_phi_one() -> None:
    found = learn(record(independent)).dependence(Signal.TTFT, 0.9)
    assert found is not None
    assert 1 <= found.phi < 1.3
    assert found.phi_upper == pytest.approx(found.phi * (1 + 1.28 * math.sqrt(2 / 108)))
    assert (found.engines, found.blocks) == (10, 12)


def test_short_bursts_take_two_hours_to_be_believed() -> None:
    found = [learn(record(bursts(1), looks=n)).dependence(Signal.TTFT, 0.9) for n in (479, 240)]
    assert [each.block_looks for each in found if each is not None] == [1, 4]


@pytest.mark.parametrize(("looks", "block_looks"), [(1, 1), (4, 4), (8, 8)])
def test_bursts_are_found_with_their_length(looks: int, block_looks: int) -> None:
    found = learn(record(bursts(looks))).dependence(Signal.TTFT, 0.9)
    assert found is not None
    assert found.phi > 4
    assert found.block_looks >= block_looks
    assert found.block_looks <= 20


def test_what_the_load_does_to_all_alike_is_no_dependence() -> None:
    def drift(rng: random.Random, engine: int, look: int) -> list[int]:
        slow = (25 if look // 20 % 2 else 12) + rng.randint(0, 1)
        return [100 - slow, slow, 0, 0, 0]

    many = learn(record(drift)).dependence(Signal.TTFT, 0.9)
    few = learn(record(drift, engines=4)).dependence(Signal.TTFT, 0.9)
    assert many is not None
    assert few is not None
    assert many.phi == 1.0
    assert few.phi > 2  # successive blocks cannot tell it apart, and say more rather than less
    assert few.phi_upper == pytest.approx(few.phi * (1 + 1.28 * math.sqrt(2 / (0.67 * 11))))


def test_less_than_an_hour_says_nothing_and_says_so() -> None:
    short = learn(record(independent, looks=120))
    assert short.dependence(Signal.TTFT, 0.9) is None
    assert short.lacks == "the A/A history spans 30 of the 60 minutes that it takes"
    assert learn(record(independent, looks=239)).lacks is None  # of 240 scrapes
    assert learn([]).lacks is not None
    assert learn([ArmWindow((), 3)]).dependences == {}


def test_without_exceedances_the_dependence_is_unknown() -> None:
    found = learn(record(lambda rng, engine, look: [100, 0, 0, 0, 0]))
    assert found.lacks is None
    assert found.dependences == {}
    few = learn(record(lambda rng, engine, look: [100, 0, 0, 0, int(engine == look)]))
    assert few.dependence(Signal.TTFT, 0.99) is None


def test_looks_without_an_engine_are_left_out_with_their_block() -> None:
    windows = record(independent)
    windows[5] = ArmWindow(windows[5].deltas[:-1], 10)  # restarted
    extra = windows[7].deltas[0]
    windows[7] = ArmWindow((*windows[7].deltas, Delta("new", 15.0, extra.values)), 11)
    found = learn(windows).dependence(Signal.TTFT, 0.9)
    assert found is not None
    assert (found.engines, found.blocks) == (10, 11)


def test_the_past_that_places_edges_is_the_last_half_hour() -> None:
    past = learn(record(independent)).pasts[Signal.TTFT]
    assert past.edges == tuple(GRID)
    assert past.count == pytest.approx(10 * 100 * 120, rel=0.18)


def test_block_lengths_double_up_to_five_minutes() -> None:
    assert dependence.lengths(20) == [1, 2, 4, 8, 20]
    assert dependence.lengths(1) == [1]
    assert dependence.lengths(2) == [1, 2]
    assert dependence.lengths(150) == [1, 2, 4, 8, 16, 32, 64, 150]


def test_phi_by_hand() -> None:
    counts = [[1, 3, 2, 2, 2], [0, 0, 0, 5, 5], None]
    assert dependence.phi(counts) == pytest.approx((2 + 30) / (4 * 4))
    assert dependence.phi([[1, 2], [3, 2], None, [9, 9]]) == pytest.approx(4 / 8)
    assert dependence.phi([[0, 0], [0, 0]]) is None
    assert dependence.phi([]) is None


KNOWN = AaHistory(15.0, 3600.0, {(Signal.TTFT, 0.99): Dependence(1.5, 1.7, 4, 10, 12)})


def test_a_document_reads_back_the_same() -> None:
    for found in (learn(record(independent)), KNOWN, learn([])):
        document = json.loads(json.dumps(found.as_document(), allow_nan=False))
        assert from_document(document) == found


def changed(**changes: Any) -> dict[str, Any]:
    return {**KNOWN.as_document(), **changes}


def row(**changes: Any) -> dict[str, Any]:
    return {**KNOWN.as_document()["dependences"][0], **changes}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "expected the keys"),
        ({}, "expected the keys"),
        (changed(more=1), "expected the keys"),
        (changed(version=2), "version 2, expected 1"),
        (changed(look_s="15"), "look_s: found '15', expected a number"),
        (changed(span_s=math.nan), "span_s: found nan"),
        (changed(look_s=0), "look_s: found 0"),
        (changed(dependences={}), "expected a list"),
        (changed(dependences=[1]), r"dependences\[0\]"),
        (changed(dependences=[row(signal="ttfb")]), "signal: found 'ttfb', expected one of ttft"),
        (changed(dependences=[row(signal=["ttft"])]), "signal: found"),
        (changed(dependences=[row(quantile=0.98)]), "quantile: found 0.98"),
        (changed(dependences=[row(phi=0.5)]), "phi: found 0.5, expected 1 or more"),
        (changed(dependences=[row(phi_upper=1.4)]), "phi_upper: found 1.4, expected 1.5"),
        (changed(dependences=[row(block_looks=1.5)]), "expected a whole number"),
        (changed(dependences=[row(engines=True)]), "expected a number"),
        (changed(dependences=[row(), row()]), "comes twice"),
        (changed(pasts=[{"signal": "ttft"}]), "expected the keys"),
        (changed(pasts=[{"signal": "ttft", "edges": [1], "cumulative": [1]}]), "expected 2"),
        (changed(pasts=[{"signal": "ttft", "edges": [1], "cumulative": [2, 1]}]), "fall"),
        (changed(pasts=[{"signal": "ttft", "edges": 1, "cumulative": []}]), "expected a list"),
    ],
)
def test_a_document_that_is_none_is_refused(document: object, said: str) -> None:
    with pytest.raises(HistoryError, match=said):
        from_document(document)


def test_l_star_is_a_time() -> None:
    found = KNOWN.dependence(Signal.TTFT, 0.99)
    assert found is not None
    assert KNOWN.block_s(found) == 60.0
    assert set(history.QUANTILES) == {"p99", "p95", "p90", "p50"}
