"""The examples for real engines are without faults."""

from pathlib import Path

import pytest

from canaryctl.controller.artifact.loader import load_artifact
from canaryctl.runtimes.engines.vllm import VllmEngine

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "vllm").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_and_the_engine_finds_no_fault(path: Path) -> None:
    runtime = load_artifact(path).document.runtime
    engine = VllmEngine()
    assert engine.check(runtime) == ()
    assert set(runtime.warmup_plan.decode_buckets) <= set(
        engine.resolved_grid(runtime) or range(1, runtime.limits.max_num_seqs + 1)
    )


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"cpu-stable", "cpu-good", "cpu-slow", "h200"}
