"""Baseline runs: stages, what is sent, the figures, the record, and what may be compared."""

import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.common.errors import ConflictError, InputError, UnknownNameError
from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.controller.baseline.engines import Up
from canaryctl.controller.baseline.figures import (
    DecodeSteps,
    Graphs,
    Latency,
    Run,
    decode_steps_of,
    edged,
    graphs_of,
    measured,
    ranked,
    spread,
)
from canaryctl.controller.baseline.leftovers import only_run
from canaryctl.controller.baseline.load import of_profile, of_trace
from canaryctl.controller.baseline.record import (
    CONDITIONS,
    BaselineRecord,
    StageRecord,
    Start,
    compare_conditions,
    latest_record,
    load_record,
    store_record,
)
from canaryctl.controller.baseline.run import conditions, memory_of, share_a_gpu
from canaryctl.controller.baseline.stages import Stage, stages_of
from canaryctl.controller.baseline.summary import memory_gib, summary_of
from canaryctl.controller.model import Instance, InstanceState
from canaryctl.gates.samples import (
    Histogram,
    HistogramSet,
    Labels,
    Missing,
    Scrape,
    Series,
    Value,
)
from canaryctl.runtimes.engines.registry import engine
from canaryctl.runtimes.load.report import Outcome, report
from canaryctl.runtimes.spec import RuntimeSpec

GIB = 2**30
SIMULATED = engine("simulated")


def runtime(**graph: Any) -> RuntimeSpec:
    return RuntimeSpec.model_validate(
        {
            "engine": {"name": "simulated", "version": "0.25.1"},
            "model": {"id": "m", "revision": "r"},
            "graph": graph,
        }
    )


def test_stages_are_eager_the_default_grid_and_the_own_one() -> None:
    own = runtime(capture_sizes=[1, 2, 4])
    eager, default, last = stages_of(own, SIMULATED, planned=False)
    assert [s.name for s in (eager, default, last)] == ["eager", "default", "own"]
    assert not eager.runtime.uses_graphs
    assert default.runtime.graph.capture_sizes is None
    assert last.runtime == own
    assert stages_of(own, SIMULATED, planned=True)[2].name == "planned"


def test_no_stage_runs_the_same_twice() -> None:
    assert [s.name for s in stages_of(runtime(), SIMULATED, planned=False)] == ["eager", "default"]
    graphless = runtime(mode="NONE")
    (only,) = stages_of(graphless, SIMULATED, planned=False)
    assert (only.name, only.runtime) == ("eager", graphless)


def test_a_stage_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"no stage own.*expected of eager, default"):
        stages_of(runtime(), SIMULATED, planned=False, wanted=("own",))
    with pytest.raises(UnknownNameError, match="warm"):
        stages_of(runtime(), SIMULATED, planned=False, wanted=("warm",))


TRACE = "arrival,input_tokens,output_tokens\n0,20,4\n1,30,5\n3,100,50\n"


def trace(tmp_path: Path, **options: Any) -> Any:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    given = {"speed": 1.0, "duration_s": None, "requests": None, "max_model_len": 150}
    return of_trace(path, **{**given, **options})


def test_a_trace_is_sent_at_its_times_with_its_lengths(tmp_path: Path) -> None:
    load = trace(tmp_path, speed=2.0)
    shapes = [(r.at_s, len(r.prompt), r.output_tokens) for r in load.requests]
    assert shapes == [(0, 20, 4), (0.5, 30, 5), (1.5, 100, 50)]
    assert len(trace(tmp_path, duration_s=2.0).requests) == 2
    assert len(trace(tmp_path, requests=1).requests) == 1
    with pytest.raises(InputError, match=r"trace\.csv:4: the request has 150 tokens.*149"):
        trace(tmp_path, max_model_len=149)


def test_every_repeat_asks_anew_at_the_same_times(tmp_path: Path) -> None:
    load = trace(tmp_path)
    first, second, again = (list(load.repeat(n)) for n in (0, 1, 0))
    assert first == again
    assert [(r.at_s, len(r.prompt)) for r in first] == [(r.at_s, len(r.prompt)) for r in second]
    assert all(a.prompt != b.prompt for a, b in zip(first, second, strict=True))


def test_the_identity_of_a_load_is_of_what_is_asked_when(tmp_path: Path) -> None:
    same, other = trace(tmp_path), trace(tmp_path, speed=2.0)
    assert same.identity == trace(tmp_path).identity
    assert same.identity != other.identity


def test_a_profile_needs_an_end(tmp_path: Path) -> None:
    path = tmp_path / "load.yaml"
    path.write_text("rate: 20\nprompt: text\n")
    with pytest.raises(InputError, match="needs an end"):
        of_profile(path, duration_s=None, requests=None)
    load = of_profile(path, duration_s=None, requests=7)
    assert len(load.requests) == 7
    assert all(isinstance(r.prompt, str) for r in load.repeat(1))


def steps(*rows: tuple[str, str, str, float]) -> Series:
    return Series(
        {
            tuple(sorted({"mode": m, "pure_decode": p, "reason": r}.items())): n
            for m, p, r, n in rows
        }
    )


def test_shares_of_steps() -> None:
    counted = steps(
        ("FULL", "true", "", 60),
        ("PIECEWISE", "true", "", 20),
        ("PIECEWISE", "false", "", 10),
        ("NONE", "true", "unknown", 20),
        ("NONE", "true", "beyond_grid", 25),
        ("NONE", "false", "beyond_grid", 5),
        ("NONE", "unknown", "unknown", 10),
    )
    tokens: dict[AnySignal, Value] = {
        Signal.TOKENS_ACTUAL: Series({(): 200.0}),
        Signal.TOKENS_PADDED: Series({(): 250.0}),
    }
    found = graphs_of({Signal.STEPS: counted, **tokens})
    assert found == Graphs(150, 0.6, 0.8, 0.6, 0.2, 0.2, 0.25, 10)


def test_decodes_are_told_by_mode_and_size_and_timed_in_the_mean() -> None:
    def of(mode: str, bucket: str, **more: str) -> Labels:
        return tuple(sorted({"mode": mode, "bucket": bucket, **more}.items()))

    full, mixed = of("FULL", "8", pure_decode="true"), of("FULL", "8", pure_decode="false")
    slow = [of("NONE", "0", pure_decode="true", reason=why) for why in ("beyond_grid", "unknown")]
    counted = Series({full: 30.0, mixed: 7.0, slow[0]: 6.0, slow[1]: 4.0})
    asked = Series({full: 200.0, mixed: 900.0, slow[0]: 60.0, slow[1]: 8.0})
    times = {of("FULL", "8"): Histogram(((math.inf, 30),), 0.06)}
    values: dict[AnySignal, Value] = {Signal.STEPS: counted, Signal.TOKENS_ACTUAL: asked}
    untimed = decode_steps_of(values)
    assert untimed == (
        DecodeSteps("FULL", 8, 30, 200, None),
        DecodeSteps("NONE", 0, 10, 68, None),
    )
    timed = decode_steps_of({**values, Signal.STEP_TIME: HistogramSet(times)})
    assert timed[0].mean_s == pytest.approx(0.002)
    run = replace(RUN, decode_steps=timed)
    assert run.decode_step_s == pytest.approx(0.002), "of those that were timed"
    assert replace(RUN, decode_steps=untimed).decode_step_s is None
    assert decode_steps_of({Signal.STEPS: counted}) == ()


def test_what_is_not_counted_is_unknown() -> None:
    assert graphs_of({}) == "the engine does not say"
    assert graphs_of({Signal.STEPS: Missing("no probe")}) == "no probe"
    none = graphs_of({Signal.STEPS: steps()})
    assert none == Graphs(0, None, None, None, None, None, None, 0)


def test_a_histogram_gives_upper_edges_and_no_number_beyond_the_last() -> None:
    histogram = Histogram(((0.1, 50), (0.2, 94), (math.inf, 100)), 10.0)
    assert edged(histogram) == Latency(0.1, None, None, 100)
    assert edged(Histogram(((0.1, 0), (math.inf, 0)), 0.0)) is None


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_ranks_are_values_that_were_seen(values: list[float]) -> None:
    found = ranked([*values, None])
    assert found is not None
    three = [value for value in (found.p50, found.p95, found.p99) if value is not None]
    assert len(three) == 3
    assert set(three) <= set(values)
    assert three == sorted(three)
    assert sum(value <= three[1] for value in values) >= 0.95 * len(values)


def test_a_repeat_that_does_not_know_makes_the_spread_unknown() -> None:
    assert spread([1.0, None]) is None
    assert spread([]) is None
    found = spread([3.0, 1.0, 2.0])
    assert found is not None
    assert (found.median, found.least, found.most) == (2, 1, 3)


def scrape(at: float, **values: Any) -> Scrape:
    return Scrape("i", at, {Signal(name): value for name, value in values.items()})


def test_a_run_is_what_clients_saw_and_what_the_engine_counted() -> None:
    good = Outcome("u", ttft_s=0.1, tpot_s=0.01, e2e_s=0.5, output_tokens=40, artifact="a")
    told = report(["u"], [good], elapsed_s=2.0, lags_s=[0.0], not_sent=1, unfinished=2)
    before = scrape(1, steps=steps(("FULL", "true", "", 5)), itl=Missing("no histogram"))
    after = scrape(2, steps=steps(("FULL", "true", "", 9)), itl=Missing("no histogram"))
    run = measured(told, [good], before, after, {})
    assert (run.requests, run.failed, run.output_tokens, run.tokens_per_s) == (3, 3, 40, 20.0)
    assert run.saturated
    assert run.begun_at == before.at
    assert run.graphs is not None
    assert run.graphs.steps == 4
    assert run.latency["ttft"] == Latency(0.1, 0.1, 0.1, 1)
    assert run.latency["itl"] is None
    assert run.unknown == ("itl: no histogram",)
    restarted = measured(told, [good], after, replace(before, at=3), {})
    assert restarted.graphs is None
    assert "the engine's counts: steps: reset" in restarted.unknown[0]


RUN = Run(
    10, 0, 2.0, 100, False,
    {"ttft": Latency(0.1, 0.2, 0.3, 10), "tpot": None, "itl": None, "e2e": None},
    Graphs(9, 1.0, 1.0, 1.0, 0.0, 0.0, 0.1, 0), ("itl: none",),
    decode_steps=(DecodeSteps("FULL", 2, 9.0, 15.0, 0.002),),
)  # fmt: skip
START = Start(
    (1, 2), {"ready": 2.0}, {"weights": 1.0 * GIB, "graphs": 1.0 * GIB, "kv_cache": 2.0 * GIB},
    1000, 8.0, {"ready": "2026-01-01T00:00:00+00:00"}, {"decode 1": 2},
)  # fmt: skip
ALIKE: dict[str, str | None] = {
    **dict.fromkeys(CONDITIONS, "same"),
    "tensor parallel": "1",
    "pipeline parallel": "1",
}
STAGE = StageRecord("own", "sha256:abc", "FULL", (1, 2), ALIKE, START, (RUN, RUN))


def record(**changes: Any) -> BaselineRecord:
    return replace(
        BaselineRecord(
            "a@1", "sha256:abc", "chat", "2026-01-01T00:00:00+00:00", "t", 2, True, (STAGE,)
        ),
        **changes,
    )


def test_a_record_is_read_as_it_was_stored(tmp_path: Path) -> None:
    assert latest_record(tmp_path, "sha256:abc") is None
    failed = StageRecord("eager", "sha256:def", "NONE", None, {}, fault="it did not start")
    kept = record(stages=(failed, STAGE))
    path = store_record(kept, tmp_path)
    assert load_record(path) == kept
    # Of before it was told, engines that were up together shared their GPUs.
    old = re.sub(r',\s*"beside_others": false', "", path.read_text())
    assert "beside_others" not in old
    (tmp_path / "old.json").write_text(old)
    (_, stage) = load_record(tmp_path / "old.json").stages
    assert stage.start == replace(START, beside_others=True)
    newer = record(begun_at="2026-01-02T00:00:00+00:00")
    store_record(newer, tmp_path)
    assert latest_record(tmp_path, "sha256:abc") == newer
    assert kept.of_artifact == STAGE
    assert newer.complete
    assert not kept.complete
    assert not record(repeats=3).complete


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, said in (("{", "can be read"), ("{}", "format"), ("[]", "format")):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            load_record(path)
    whole = store_record(record(), tmp_path)
    path.write_text(whole.read_text().replace('"elapsed_s"', '"other"'))
    with pytest.raises(InputError, match="not a whole baseline run"):
        load_record(path)


@given(st.sampled_from(CONDITIONS))
def test_runs_are_compared_only_where_every_condition_agrees(name: str) -> None:
    assert compare_conditions(ALIKE, ALIKE).comparable
    other = compare_conditions(ALIKE, {**ALIKE, name: "other"})
    assert not other.comparable
    assert other.why_not == f"{name}: {ALIKE[name]} and other"
    unknown = compare_conditions({**ALIKE, name: None}, {**ALIKE, name: None})
    assert not unknown.comparable
    assert unknown.why_not == f"{name} is not known of both"


def conditions_of(
    model: str, revision: str | None = "r", *, expert: int = 1, **attested: str
) -> dict[str, str | None]:
    given = runtime(mode="NONE").as_document()
    given["model"] = {"id": model} | ({"revision": revision} if revision else {})
    given["parallel"] = {"expert": expert}
    up = Up(
        Stage("own", RuntimeSpec.model_validate(given)),
        Instance("i0", "s", "p", "d", InstanceState.READY, datetime(2026, 1, 1, tzinfo=UTC), 1),
        "http://h",
        "m",
    )
    page = Series({tuple(sorted({"engine_version": "1", **attested}.items())): 1.0})
    read = Scrape("i0", 0.0, {Signal.ATTESTATION: page})
    return conditions(up, read, "traffic", simulated=True)


def test_the_revision_compared_is_the_one_attested() -> None:
    hub = conditions_of("org/model", model_revision="attested")
    assert hub["model revision"] == "attested"
    # What a hub's model is declared to be and no engine attests is not known.
    assert conditions_of("org/model")["model revision"] is None


def test_a_declared_revision_counts_for_its_folder_alone(tmp_path: Path) -> None:
    one, other = (str(tmp_path / name) for name in ("one", "other"))
    assert conditions_of(one) == conditions_of(one)
    assert compare_conditions(conditions_of(one), conditions_of(one)).comparable
    found = compare_conditions(conditions_of(one), conditions_of(other)).differing
    assert found["model revision"] == (f"r as declared of {one}", f"r as declared of {other}")
    assert "model revision" in compare_conditions(
        conditions_of(one), conditions_of(one, "later")
    ).differing  # fmt: skip
    # One name may lead to another folder every time.
    link = tmp_path / "current"
    link.symlink_to(one)
    before = conditions_of(str(link))
    link.unlink()
    link.symlink_to(other)
    assert set(compare_conditions(before, conditions_of(str(link))).differing) == {"model revision"}
    assert conditions_of(one, None)["model revision"] is None


def test_expert_parallelism_is_compared_and_an_older_record_does_not_know_it(
    tmp_path: Path,
) -> None:
    assert conditions_of("m", expert=8, expert_parallel="1")["expert parallel"] == "1"
    assert conditions_of("m", expert=8)["expert parallel"] == "8"
    path = store_record(record(), tmp_path)
    older = re.sub(r'"expert parallel": "same",\s*', "", path.read_text())
    path.write_text(older)
    (stage,) = load_record(path).stages
    assert "expert parallel" not in stage.conditions
    found = compare_conditions(stage.conditions, ALIKE)
    assert (dict(found.differing), found.unknown) == ({}, ("expert parallel",))


def test_figures_per_gib() -> None:
    found = summary_of(STAGE)
    assert found.memory_gib == 4.0
    assert found.concurrency_per_gib == 2.0
    assert found.tokens_per_s_per_gib == 12.5
    assert found.latency["itl p99"] is None
    measured_whole = replace(START, memory_bytes={"gpu_used_after_capture": 3.0 * GIB})
    assert memory_gib(replace(STAGE, start=measured_whole)) == 3.0
    # Beside other engines the GPU's use is theirs too, and the parts count.
    shared = replace(START, beside_others=True)
    parts = {**START.memory_bytes, "gpu_used_after_capture": 30.0 * GIB}
    assert memory_gib(replace(STAGE, start=replace(shared, memory_bytes=parts))) == 4.0
    alone = replace(shared, beside_others=False, memory_bytes=parts)
    assert memory_gib(replace(STAGE, start=alone)) == 30.0
    # The parts are of one worker of two.
    two = replace(STAGE, conditions={**ALIKE, "tensor parallel": "2"})
    assert memory_gib(replace(two, start=shared)) is None
    assert memory_gib(replace(two, start=alone)) == 30.0
    graphless = replace(START, memory_bytes={"weights": 1.0 * GIB, "kv_cache": 1.0 * GIB})
    assert memory_gib(replace(STAGE, start=graphless)) is None
    assert memory_gib(replace(STAGE, start=graphless, mode="NONE")) == 2.0


def test_only_engines_on_one_gpu_are_beside_each_other() -> None:
    assert share_a_gpu([(0,), (1,), (2, 3)]) == [False, False, False]
    assert share_a_gpu([(0,), (1, 0), (2,), (1,)]) == [True, True, False, True]
    assert share_a_gpu([(), ()]) == [False, False]


def test_what_an_engine_leaves_unsaid_of_its_memory_is_in_its_log() -> None:
    page = Series({(("kind", "gpu_used_after_capture"),): 30.0 * GIB})
    logged = {"weights_bytes": GIB, "kv_cache_bytes": 26 * GIB, "graph_bytes": GIB // 4}
    found = memory_of(scrape(0.0, memory=page), logged, gpus=1)
    assert found == {
        "weights": GIB,
        "kv_cache": 26 * GIB,
        "graphs": GIB / 4,
        "gpu_used_after_capture": 30 * GIB,
        "gpu_used_before_capture": 29.75 * GIB,
    }
    # Without graphs nothing was captured: there is no before.
    eager = memory_of(scrape(0.0, memory=page), {"weights_bytes": GIB}, gpus=1)
    assert "gpu_used_before_capture" not in eager
    # The log tells of one worker, and the page of the GPUs of all.
    assert "gpu_used_before_capture" not in memory_of(scrape(0.0, memory=page), logged, gpus=2)


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    refused = pytest.raises(ConflictError, match="another baseline run")
    with only_run(tmp_path), refused, only_run(tmp_path):
        pass
    with only_run(tmp_path):
        pass
