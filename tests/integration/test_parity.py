"""Parity of outputs, between simulated engines: real servers, the driver, and the gate."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from canaryctl.common.parity import Parity
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.runtimes.parity import ParityRun, Side, batches, prompts
from tests.support.gates import arm, judge, spec
from tests.support.simulated import ENGINE, SimulatedServer, simulated_spec

GRAPHS = {"mode": "FULL_AND_PIECEWISE", "capture_sizes": [1, 2, 4, 8, 16, 32]}
GATE = spec("output_parity", max_ratio="5%", max_nats=0.05)


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedServer]:
    runtime = ENGINE.eager(simulated_spec(graph=GRAPHS))
    with SimulatedServer(runtime, tmp_path_factory.mktemp("eager") / "log") as server:
        yield server


def side(server: SimulatedServer) -> Side:
    limits = server.spec.limits
    model = ENGINE.model_name(server.spec)
    return Side(server.url, model, limits.max_num_seqs, limits.max_model_len)


def measured(canary: SimulatedServer, reference: SimulatedServer) -> Parity:
    found = ParityRun(side(canary), side(reference), "r0-0 (eager)").wait(60)
    assert isinstance(found, Parity), found
    return found


def judged(found: Parity) -> GateResult:
    return judge(GATE, 3, arm({}), parity=found)[1]


def test_equal_engines_agree(eager: SimulatedServer, tmp_path: Path) -> None:
    with SimulatedServer(simulated_spec(graph=GRAPHS), tmp_path / "log") as canary:
        found = measured(canary, eager)
        page = canary.page()
        for size in ("1", "2", "4", "8", "16", "32"):
            replayed = page.value("canaryctl_engine_steps_total", bucket=size, pure_decode="true")
            assert replayed > 0, f"no graph of {size} was replayed"
    assert (found.canary.diverged, found.canary.nats) == ({}, 0.0)
    assert found.canary.prompts == 160
    assert judged(found).outcome is Outcome.PASSED


def test_output_that_is_wrong_only_under_graphs_is_found(
    eager: SimulatedServer, tmp_path: Path
) -> None:
    runtime = simulated_spec({"fault": "wrong_output"}, graph=GRAPHS)
    with SimulatedServer(runtime, tmp_path / "log") as canary:
        found = measured(canary, eager)
    result = judged(found)
    assert result.outcome is Outcome.FAILED
    assert "160 of 160 prompts are answered otherwise than by r0-0 (eager)" in result.reason
    assert found.itself.diverged == {}


def test_an_engine_that_does_not_answer_is_no_result(eager: SimulatedServer) -> None:
    nobody = Side("http://127.0.0.1:9", "qwen", 8, 4096)
    found = ParityRun(nobody, side(eager), "r0-0 (eager)").wait(60)
    assert isinstance(found, str)
    assert "http://127.0.0.1:9" in found


@pytest.mark.parametrize("most", [1, 3, 16, 32])
def test_batches_have_prompts_enough_and_every_size(most: int) -> None:
    sizes = batches(most)
    for size in (1, 2, 4, 8, 16, 32):
        assert sizes.count(size) * size >= 24 if size <= most else size not in sizes
    assert len(set(prompts(sum(sizes)))) == sum(sizes)
