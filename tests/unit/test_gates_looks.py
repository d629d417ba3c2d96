"""Whether there is a look to take, and where the next window begins."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from canaryctl.common.metrics import Signal
from canaryctl.gates.deltas import NO_NEW_SAMPLE, Skipped, awaited, delta, next_start, readable
from canaryctl.gates.samples import Delta, Missing, Scrape, Series


def scrape(at: float, count: float | None = 0.0, instance: str = "c0") -> Scrape:
    """``count`` None: nothing could be read."""
    value = Missing("down") if count is None else Series({(): count})
    return Scrape(instance, at, {Signal.REQUESTS: value})


def test_the_same_sample_twice_is_no_difference() -> None:
    assert delta(scrape(5.0, 3), scrape(5.0, 3)) == Skipped(NO_NEW_SAMPLE)


def test_a_look_waits_for_the_slowest_readable_instance() -> None:
    before = {"a": scrape(5.0), "b": scrape(6.0)}
    assert awaited(before, {"a": scrape(7.0), "b": scrape(6.0)}) == ("b",)
    assert awaited(before, {"a": scrape(4.9), "b": scrape(6.0)}) == ("a", "b")
    assert awaited(before, {"a": scrape(7.0), "b": scrape(8.0)}) == ()


def test_a_look_waits_for_nobody_who_cannot_be_read_or_is_new() -> None:
    before = {"a": scrape(5.0)}
    assert awaited(before, {"a": scrape(5.0, None), "new": scrape(1.0)}) == ()
    assert awaited({}, {"a": scrape(1.0)}) == ()


def test_one_that_was_asked_for_nothing_is_readable() -> None:
    assert readable(Scrape("c0", 1.0, {}))
    assert not readable(scrape(1.0, None))
    assert readable(Scrape("c0", 1.0, {Signal.OOM: Missing("x"), Signal.RUNNING: Series({})}))


def test_who_is_gone_starts_no_window_and_who_never_answered_neither() -> None:
    before = {"a": scrape(5.0), "gone": scrape(5.0)}
    after = {"a": scrape(6.0, None), "never": scrape(6.0, None), "b": scrape(6.0)}
    assert next_start(before, after) == {"a": before["a"], "b": after["b"]}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),  # events since
            st.booleans(),  # the store was asked before it had a new sample
            st.booleans(),  # it could be read
        ),
        max_size=30,
    )
)
def test_windows_add_up_to_everything_whatever_failed_between(
    looks: list[tuple[int, bool, bool]],
) -> None:
    """No event is counted twice or lost: the windows tile the time between good scrapes."""
    count, at = 0.0, 1.0
    start = {"c0": scrape(at, count)}
    stored = start["c0"]
    counted, spans = 0.0, 0.0
    for events, repeated, good in [*looks, (0, False, True)]:
        count += events
        at += 1.0
        if not repeated:
            stored = scrape(at, count)
        after = {"c0": stored if good else scrape(at, None)}
        if awaited(start, after):
            continue
        if good:
            found = delta(start["c0"], after["c0"])
            assert isinstance(found, Delta)
            value = found.values[Signal.REQUESTS]
            assert isinstance(value, Series)
            counted += value.total
            spans += found.span_s
        start = next_start(start, after)
    assert (counted, spans) == (count, at - 1.0)


def test_time_that_stands_still_ends_no_look() -> None:
    scrapes = [scrape(at, 1) for at in (1.0, 1.0, 1.0)]
    pairs = itertools.pairwise(scrapes)
    assert all(awaited({"c0": a}, {"c0": b}) == ("c0",) for a, b in pairs)
