"""What the probe costs stays far below what a step of an engine takes."""

import pytest

from benchmarks.probe_cost import CASES, SIZES, TARGET_US, full_page, scrape, step_us

BOUND_US = {
    "1 decode": TARGET_US,
    "8 decodes": TARGET_US,
    "16 decodes and a prompt of 400 tokens": TARGET_US,
    "64 decodes": 1.5 * TARGET_US,
    "64 decodes, one of them its last": 1.5 * TARGET_US,
    "256 decodes": 3 * TARGET_US,
    "256 decodes, all waited differently": 10 * TARGET_US,
}
"""Two to three times what was measured on a slow machine (docs/benchmarks/probe.md)."""


@pytest.mark.parametrize("name", CASES)
def test_a_step_costs_little(name: str) -> None:
    """CPU time, the least of twenty repeats: what else runs on the machine only adds to it."""
    assert min(step_us(CASES[name], steps=100, repeats=20)) < BOUND_US[name]


def test_a_scrape_of_every_size_is_bounded() -> None:
    found = scrape(len(SIZES))
    assert found["lines"] < 10_000
    names = {family.name for family in full_page(len(SIZES)).collect()}
    assert {"canaryctl_step_time_seconds", "canaryctl_step_shape"} <= names
