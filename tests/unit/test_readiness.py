"""Readiness: strictly in order, each stage timed once, and never without its proof."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.runtimes.engines.base import LogFacts, Stage
from canaryctl.runtimes.readiness import Readiness, assess, lacking_sizes, overdue
from canaryctl.runtimes.spec import (
    EngineSpec,
    GraphMode,
    GraphSpec,
    ModelSpec,
    RuntimeSpec,
    SpeculativeSpec,
    WarmupPlan,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def spec(
    *,
    mode: GraphMode = GraphMode.FULL_AND_PIECEWISE,
    sizes: tuple[int, ...] | None = (1, 2, 4, 8),
    buckets: tuple[int, ...] = (1, 8),
    block: bool = True,
    speculative: int = 0,
) -> RuntimeSpec:
    return RuntimeSpec(
        engine=EngineSpec(name="vllm", version="0.25.1"),
        model=ModelSpec(id="m"),
        graph=GraphSpec(mode=mode, capture_sizes=sizes),
        speculative=SpeculativeSpec(method="ngram", num_speculative_tokens=speculative)
        if speculative
        else None,
        warmup_plan=WarmupPlan(decode_buckets=buckets, block_ready_until_complete=block),
    )


def look(
    *stages: Stage,
    of: RuntimeSpec | None = None,
    alive: bool = True,
    health_ok: bool = False,
    warmed: bool = False,
    captured: tuple[int, ...] | None = None,
    previous: Readiness | None = None,
    at_s: float = 0,
    out_of_memory: tuple[str, ...] = (),
    fatal: tuple[str, ...] = (),
) -> Readiness:
    return assess(
        LogFacts(stages=stages, out_of_memory=out_of_memory, fatal=fatal),
        alive=alive,
        health_ok=health_ok,
        spec=of or spec(),
        warmed=warmed,
        previous=previous.stages if previous else {},
        now=NOW + timedelta(seconds=at_s),
        captured=captured,
    )


def test_stages_are_timed_as_they_complete() -> None:
    first = look()
    assert dict(first.stages) == {Stage.STARTED: NOW}
    assert first.missing == "the model to be loaded"
    loaded = look(Stage.LOADED, previous=first, at_s=10)
    assert loaded.missing == "compilation"
    captured = look(Stage.CAPTURED, previous=loaded, at_s=20)
    assert captured.missing == "every bucket of the warm-up plan to be run"
    warmed = look(health_ok=True, warmed=True, previous=captured, at_s=30)
    assert warmed.ready
    assert {stage: (at - NOW).total_seconds() for stage, at in warmed.stages.items()} == {
        Stage.STARTED: 0,
        Stage.LOADED: 10,
        Stage.COMPILED: 20,
        Stage.CAPTURED: 20,
        Stage.WARMED: 30,
        Stage.READY: 30,
    }


def test_a_server_that_answers_is_not_ready() -> None:
    seen = look(Stage.CAPTURED, health_ok=True, captured=(1, 2, 4, 8))
    assert not seen.ready
    assert seen.missing == "every bucket of the warm-up plan to be run"


def test_graphs_need_proof_of_capture_and_health_is_none() -> None:
    seen = look(health_ok=True, warmed=True)
    assert Stage.CAPTURED not in seen.stages
    assert not seen.ready
    assert seen.missing is not None
    assert "graph capture" in seen.missing


def test_without_graphs_a_listening_server_is_enough() -> None:
    eager = spec(mode=GraphMode.NONE, sizes=None)
    assert look(of=eager).missing == "the model to be loaded"
    assert look(of=eager, health_ok=True, warmed=True, captured=()).ready


def test_warm_but_silent_is_not_ready() -> None:
    seen = look(Stage.CAPTURED, warmed=True)
    assert not seen.ready
    assert seen.missing == "the server to answer its health check"


def test_a_plan_that_does_not_block_lets_traffic_in_before_it_is_through() -> None:
    early = look(Stage.CAPTURED, of=spec(block=False), health_ok=True)
    assert early.ready
    assert Stage.WARMED not in early.stages
    late = look(of=spec(block=False), health_ok=True, warmed=True, previous=early, at_s=5)
    assert late.stages[Stage.WARMED] == NOW + timedelta(seconds=5)
    assert late.stages[Stage.READY] == NOW


def test_a_reduced_grid_is_a_fault_that_names_the_sizes() -> None:
    seen = look(Stage.CAPTURED, health_ok=True, warmed=True, captured=(1, 2))
    assert not seen.ready
    assert seen.fault is not None
    assert "capture sizes 4, 8" in seen.fault
    assert "decode buckets 8 (the largest size is 2)" in seen.fault


def test_an_empty_grid_where_graphs_were_asked_for_is_a_fault() -> None:
    seen = look(of=spec(sizes=None, buckets=()), health_ok=True, captured=())
    assert seen.fault is not None
    assert "no graph was captured" in seen.fault


def test_a_decode_bucket_between_two_sizes_is_padded_and_so_covered() -> None:
    assert lacking_sizes(spec(sizes=None, buckets=(5, 6)), (1, 2, 4, 8)) == ()
    assert lacking_sizes(spec(sizes=None, buckets=(9,)), (1, 2, 4, 8)) == (
        "decode buckets 9 (the largest size is 8)",
    )


def test_speculative_decoding_counts_tokens_and_rounds_sizes() -> None:
    asked = spec(sizes=(1, 2, 4, 8), buckets=(2,), speculative=3)  # four tokens a sequence
    assert lacking_sizes(asked, (4, 8)) == ()
    assert lacking_sizes(asked, (4,)) == (
        "capture sizes 8",
        "decode buckets 2 (the largest size is 4)",
    )


def test_death_is_a_fault_with_the_engines_own_words() -> None:
    seen = look(Stage.LOADED, alive=False, fatal=("EngineCore failed to start",))
    assert seen.fault == "the engine's process has ended: EngineCore failed to start"
    assert seen.stages == {}
    ready = look(Stage.CAPTURED, health_ok=True, warmed=True)
    assert not look(alive=False, previous=ready).ready


def test_out_of_memory_is_a_fault_until_ready_and_the_gates_matter_after() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory"
    starting = look(Stage.LOADED, out_of_memory=(line,))
    assert starting.fault is not None
    assert line in starting.fault
    ready = look(Stage.CAPTURED, health_ok=True, warmed=True)
    assert look(previous=ready, health_ok=True, warmed=True, out_of_memory=(line,)).fault is None


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(list(Stage)[:4])), st.booleans(), st.booleans()),
        min_size=1,
    )
)
def test_no_stage_comes_before_its_forerunner_or_changes_its_time(
    looks: list[tuple[list[Stage], bool, bool]],
) -> None:
    seen = Readiness({})
    for second, (said, health_ok, warmed) in enumerate(looks):
        before = dict(seen.stages)
        seen = look(*said, health_ok=health_ok, warmed=warmed, previous=seen, at_s=second)
        assert before.items() <= dict(seen.stages).items()
        assert list(seen.stages) == list(Stage)[: len(seen.stages)]
        assert list(seen.stages.values()) == sorted(seen.stages.values())
        assert (seen.missing is None) == seen.ready


DEADLINES = {"load": 60.0, "compile": 30.0, "capture": 20.0, "warm": 10.0}


@pytest.mark.parametrize(
    ("last", "deadline_s", "name"),
    [
        (Stage.STARTED, 60, "load"),
        (Stage.LOADED, 30, "compile"),
        (Stage.COMPILED, 20, "capture"),
        (Stage.CAPTURED, 10, "warm"),
    ],
)
def test_each_stage_has_its_own_deadline(last: Stage, deadline_s: int, name: str) -> None:
    stages = {stage: NOW for stage in Stage if stage.order <= last.order}
    assert overdue(stages, DEADLINES, NOW + timedelta(seconds=deadline_s)) is None
    late = overdue(stages, DEADLINES, NOW + timedelta(seconds=deadline_s + 1))
    assert late is not None
    assert late.startswith(f"{name} is not complete")
    assert f"deadline {deadline_s} s" in late


def test_nothing_is_overdue_before_the_start_or_after_ready() -> None:
    later = NOW + timedelta(days=1)
    assert overdue({}, DEADLINES, later) is None
    assert overdue(dict.fromkeys(Stage, NOW), DEADLINES, later) is None
    assert overdue({Stage.STARTED: NOW}, {}, later) is None


def test_a_deadline_of_no_stage_is_an_error() -> None:
    with pytest.raises(ValueError, match="laod"):
        overdue({}, {"laod": 5.0}, NOW)
