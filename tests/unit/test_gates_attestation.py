"""The runtime that runs against the one that is declared."""

import pytest

from canaryctl.common.metrics import Signal
from canaryctl.gates.base import StartFacts
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import Missing, Series
from tests.support.gates import Values, arm, judge, spec

GATE = spec("attestation")
DECLARED = {
    "engine_version": "0.25.1",
    "torch_version": "2.11.0",
    "cuda_version": "13.0",
    "driver_version": ">=580.65",
    "gpu_model": "H200",
    "model_revision": "c1899de289a04d12100db370d81485cdf75e47ca",
    "graph_mode": "FULL_AND_PIECEWISE",
    "graph_sizes": "1,2,4,8",
}
ATTESTED = {
    **DECLARED,
    "torch_version": "2.11.0+cu130",
    "cuda_version": "13.0.1",
    "driver_version": "580.159.04",
    "gpu_model": "NVIDIA H200",
    "graph_sizes": "8,4,2,1",
    "nccl_version": "2.28.9",
}


def attested(**changes: str | None) -> Values:
    labels = {k: v for k, v in {**ATTESTED, **changes}.items() if v is not None}
    return {Signal.ATTESTATION: Series({tuple(sorted(labels.items())): 1.0})}


def judged(
    *instances: Values,
    declared: dict[str, str] | None = None,
    start: dict[str, StartFacts] | None = None,
) -> GateResult:
    wanted = DECLARED if declared is None else declared
    return judge(GATE, 1, arm(*instances), declared=wanted, start=start or {})[1]


def test_the_runtime_declared_is_the_one_that_runs() -> None:
    result = judged(attested(), attested())
    assert result.outcome is Outcome.PASSED
    assert "attested as declared by 2 instances" in result.reason
    assert result.details["left_open"] == {"nccl_version": "2.28.9"}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("engine_version", "0.24.0"),
        ("torch_version", "2.10.0+cu130"),
        ("cuda_version", "12.9"),
        ("cuda_version", "13"),
        ("driver_version", "575.57"),
        ("gpu_model", "NVIDIA H100 80GB HBM3"),
        ("gpu_model", "NVIDIA H200,NVIDIA H100"),
        ("model_revision", "9d2e3c6"),
        ("graph_mode", "PIECEWISE"),
    ],
)
def test_a_mismatch_names_both_sides(name: str, found: str) -> None:
    result = judged(attested(), attested(**{name: found}))
    assert result.outcome is Outcome.FAILED
    assert f"i1: {name}: declared {DECLARED[name]}, attested {found}" in result.reason


def test_sizes_that_are_missing_or_added_are_named() -> None:
    result = judged(attested(graph_sizes="1,2,16"))
    assert "declared 1,2,4,8, attested 1,2,16 (4, 8 missing; 16 not declared)" in result.reason
    none = judged(attested(graph_sizes="none"))
    assert "attested none (1, 2, 4, 8 missing)" in none.reason


def test_every_mismatch_is_told_at_once() -> None:
    result = judged(attested(engine_version="0.24.0", cuda_version="12.9"))
    assert result.value == 2
    assert "engine_version" in result.reason
    assert "cuda_version" in result.reason


def test_a_local_part_counts_where_it_is_declared() -> None:
    declared = {"torch_version": "2.11.0+cpu"}
    assert judged(attested(), declared=declared).outcome is Outcome.FAILED
    same = judged(attested(torch_version="2.11.0+cpu"), declared=declared)
    assert same.outcome is Outcome.PASSED


def test_what_is_declared_and_not_attested_is_open() -> None:
    result = judged(attested(model_revision=None, driver_version=None))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.reason == "declared and not attested: driver_version, model_revision"
    wrong = judged(attested(model_revision=None, engine_version="0.1"))
    assert wrong.outcome is Outcome.FAILED  # what is known to be wrong is wrong


def test_an_engine_without_the_attestation_is_asked_for_its_grid() -> None:
    labels = (("mode", "FULL"), ("requested", "default"), ("sizes", "1,2"))
    old: Values = {
        Signal.ATTESTATION: Missing("absent from the page"),
        Signal.GRID: Series({labels: 1.0}),
    }
    known = {"graph_mode": "FULL", "graph_sizes": "1,2"}
    assert judged(old, declared=known).outcome is Outcome.PASSED
    assert judged(old, declared={"graph_sizes": "1,2,4"}).outcome is Outcome.FAILED
    assert (
        "not attested: engine_version"
        in judged(old, declared={**known, "engine_version": "1"}).reason
    )


DOWNGRADE = (
    "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with X backend (support: "
    "AttentionCGSupport.NEVER); setting cudagraph_mode=PIECEWISE because attention is compiled "
    "piecewise"
)


def test_a_mode_that_only_the_log_lowers_is_another_than_declared() -> None:
    start = {
        "i0": StartFacts(resolved={"graph_mode": "FULL_AND_PIECEWISE"}),
        "i1": StartFacts(
            resolved={"graph_mode": "PIECEWISE"}, resolved_by={"graph_mode": DOWNGRADE}
        ),
    }
    result = judged(attested(), attested(), start=start)
    assert result.outcome is Outcome.FAILED
    assert result.reason == (
        "the runtime is not the one declared: i1: graph_mode: declared FULL_AND_PIECEWISE, "
        f"attested PIECEWISE (by its log: {DOWNGRADE})"
    )
    assert result.details["attested"]["i1"]["graph_mode"] == "PIECEWISE"
    assert judged(attested(), start={"i0": start["i0"]}).outcome is Outcome.PASSED
    # The other way round: what the page has is not what was captured.
    piecewise = {**DECLARED, "graph_mode": "PIECEWISE"}
    assert judged(attested(), declared=piecewise, start={"i0": start["i1"]}).outcome is (
        Outcome.PASSED
    )


def test_sizes_that_the_log_says_were_captured_count() -> None:
    start = {
        "i0": StartFacts(resolved={"graph_sizes": "1,2"}, resolved_by={"graph_sizes": "dropped"})
    }
    result = judged(attested(), start=start)
    assert result.outcome is Outcome.FAILED
    assert "declared 1,2,4,8, attested 1,2 (4, 8 missing) (by its log: dropped)" in result.reason
    # Words alone, of what the page has as well.
    words = {"i0": StartFacts(resolved_by={"graph_sizes": "dropped"})}
    page = judged(attested(graph_sizes="1,2,4"), start=words)
    assert "attested 1,2,4 (8 missing) (by its log: dropped)" in page.reason
    assert judged(attested(), start=words).outcome is Outcome.PASSED


def test_an_attention_backend_is_attested_by_the_log_alone() -> None:
    declared = {**DECLARED, "attention_backend": "FLASH_ATTN"}
    asked = attested(requested_attention_backend="FLASH_ATTN")
    silent = judged(asked, declared=declared)
    assert silent.outcome is Outcome.INCONCLUSIVE
    assert silent.reason == "declared and not attested: attention_backend"
    for found, outcome in (("FLASH_ATTN", Outcome.PASSED), ("TRITON_ATTN", Outcome.FAILED)):
        start = {"i0": StartFacts(resolved={"attention_backend": found})}
        assert judged(asked, declared=declared, start=start).outcome is outcome
        left_open = judged(asked, start=start).details["left_open"]
        assert left_open["attention_backend"] == found


def test_a_log_alone_attests_no_runtime() -> None:
    silent: Values = {Signal.ATTESTATION: Missing("absent from the page")}
    start = {"i0": StartFacts(resolved={"graph_mode": "PIECEWISE"})}
    result = judged(silent, declared={"graph_mode": "PIECEWISE"}, start=start)
    assert result.outcome is Outcome.INCONCLUSIVE


def test_silence_is_no_pass() -> None:
    silent: Values = {Signal.ATTESTATION: Missing("absent from the page")}
    result = judged(attested(), silent)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "absent from the page" in result.reason
    assert judged(attested(), declared={}).outcome is Outcome.INCONCLUSIVE


def test_a_version_that_is_none_is_told_as_it_is() -> None:
    result = judged(attested(driver_version="unknown build"))
    assert result.outcome is Outcome.FAILED
    assert "attested unknown build (found 'unknown build', expected a version" in result.reason
