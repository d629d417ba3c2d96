"""What the probe costs stays far below what a step of an engine takes."""

import pytest

from benchmarks.probe_cost import CASES, SIZES, TARGET_US, full_page, scrape, step_us

BOUND = 10  # times the target: a busy machine counts slower, a walk over all edges 50 times


@pytest.mark.parametrize("name", [name for name in CASES if "256" not in name])
def test_a_usual_step_costs_little(name: str) -> None:
    assert min(step_us(CASES[name], steps=300, repeats=3)) < BOUND * TARGET_US


def test_a_step_of_the_largest_batch_costs_less_than_a_tenth_of_a_millisecond_a_sequence() -> None:
    assert min(step_us(CASES["256 decodes, all waited differently"], steps=50, repeats=3)) < 5000


def test_a_scrape_of_every_size_is_bounded() -> None:
    found = scrape(len(SIZES))
    assert found["lines"] < 10_000
    names = {family.name for family in full_page(len(SIZES)).collect()}
    assert {"canaryctl_step_time_seconds", "canaryctl_step_shape"} <= names
