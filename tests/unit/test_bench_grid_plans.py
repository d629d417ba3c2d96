"""The benchmark of planned grids holds its bar, on the cheapest of its workloads."""

from pathlib import Path

import pytest

from benchmarks.grid_plans import HAND, WORKLOADS, measure


@pytest.mark.parametrize("name", ["code", "long prefill"])
def test_half_the_memory_at_no_worse_a_p99(name: str, tmp_path: Path) -> None:
    workload = next(workload for workload in WORKLOADS if workload.name == name)
    result = measure(workload, tmp_path)
    assert result.holds
    assert result.plan.compared["by hand"].sizes == HAND
    assert result.plan.worth_it == (name == "code")
