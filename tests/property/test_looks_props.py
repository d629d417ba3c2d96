"""A look and its document say the same, to the last bit."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from canaryctl.common.metrics import CustomSignal, MetricKind, MetricRef, Signal
from canaryctl.common.parity import Agreement, Parity
from canaryctl.controller.store.columns import dumps, loads
from canaryctl.gates.base import Event, Look, StartFacts
from canaryctl.gates.looks import look_document, look_of
from canaryctl.gates.samples import (
    ArmWindow,
    Delta,
    Histogram,
    HistogramSet,
    Missing,
    Series,
)

NUMBERS = st.floats(allow_nan=False)
LABELS = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=2).map(
    lambda pairs: tuple(sorted(pairs))
)
EDGES = st.sampled_from([(0.02, 0.1 + 0.2, float("inf")), (1.0, float("inf")), (), (0.5,)])


@st.composite
def histograms(draw: Any) -> Histogram:
    edges = draw(EDGES)
    counts = [draw(st.integers(-3, 2**70)) for _ in edges]
    return Histogram(tuple(zip(edges, counts, strict=True)), draw(NUMBERS))


VALUES = st.one_of(
    st.builds(Missing, st.text(max_size=9)),
    st.builds(Series, st.dictionaries(LABELS, NUMBERS, max_size=3)),
    histograms(),
    st.builds(HistogramSet, st.dictionaries(LABELS, histograms(), max_size=3)),
)
CUSTOM = CustomSignal(
    "queue_p90.histogram",
    MetricRef("vllm:queue", MetricKind.HISTOGRAM, {"role": "a.*"}, sum_over=("status",)),
)
SIGNALS = st.sampled_from([*Signal, CUSTOM])
DELTAS = st.builds(
    Delta, st.text(max_size=4), NUMBERS, st.dictionaries(SIGNALS, VALUES, max_size=3)
)
ARMS = st.builds(
    ArmWindow,
    st.lists(DELTAS, max_size=3).map(tuple),
    st.integers(0, 9),
    st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
)
LIMITS = st.none() | st.dictionaries(st.sampled_from(["max_num_seqs", "x"]), st.integers(0, 9))
AGREEMENTS = st.builds(
    Agreement,
    st.dictionaries(st.sampled_from(["1", "2", "32"]), st.integers(1, 99)),
    st.dictionaries(st.sampled_from(["1", "2", "32"]), st.integers(0, 9)),
    st.none() | NUMBERS,
)
LOOKS = st.builds(
    Look,
    at=NUMBERS,
    canary=ARMS,
    baseline=st.none() | ARMS,
    unequal_load=st.none() | st.text(max_size=9),
    canary_limits=LIMITS,
    baseline_limits=LIMITS,
    canary_events=st.lists(
        st.builds(Event, st.text(max_size=4), st.text(max_size=4), NUMBERS, st.text(max_size=4)),
        max_size=2,
    ).map(tuple),
    progress_checks=st.integers(0, 9),
    declared=st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
    start=st.dictionaries(
        st.text(max_size=4),
        st.builds(
            StartFacts,
            st.dictionaries(st.text(max_size=4), NUMBERS, max_size=2),
            st.dictionaries(st.text(max_size=4), st.integers(0, 2**40), max_size=2),
            st.dictionaries(st.text(max_size=4), st.integers(1, 9), max_size=2),
            st.dictionaries(st.text(max_size=4), st.integers(0, 99), max_size=2),
            st.lists(st.text(max_size=4), max_size=2).map(tuple),
            st.integers(0, 99),
            st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
            st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
        ),
        max_size=2,
    ),
    saturation=st.none()
    | st.builds(Missing, st.text(max_size=4))
    | st.tuples(st.integers(0, 9), st.integers(0, 9)),
    parity=st.none()
    | st.builds(Missing, st.text(max_size=4))
    | st.builds(Parity, st.text(max_size=4), AGREEMENTS, AGREEMENTS, st.text(max_size=4)),
)


@given(LOOKS)
def test_a_look_comes_back_as_it_was(look: Look) -> None:
    stored = loads(dumps(look_document(look)))
    again = look_of(stored)
    assert again == look
    kept = [s.ref for d in again.canary.deltas for s in d.values if isinstance(s, CustomSignal)]
    assert all(ref == CUSTOM.ref for ref in kept)


def test_edges_are_kept_once() -> None:
    edges = tuple(0.02 * 1.1 ** (k / 2) for k in range(190))
    histogram = Histogram(tuple((edge, 5) for edge in (*edges, float("inf"))), 1.0)
    deltas = tuple(Delta(str(n), 15.0, {Signal.TTFT: histogram}) for n in range(10))
    document = look_document(Look(at=1.0, canary=ArmWindow(deltas, 10), baseline=None))
    assert len(json.dumps(document, allow_nan=False)) < 12_000
    assert len(document["edges"]) == 1
