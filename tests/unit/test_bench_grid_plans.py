"""The benchmark of planned grids holds its bar on each of its workloads."""

from pathlib import Path

import pytest

from benchmarks.grid_plans import HAND, WORKLOADS, Workload, measure


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_half_the_memory_at_no_worse_a_step(workload: Workload, tmp_path: Path) -> None:
    result = measure(workload, tmp_path)
    assert result.holds
    assert result.plan.compared["by hand"].sizes == HAND
    assert result.plan.worth_it == (workload.name != "long prefill")
