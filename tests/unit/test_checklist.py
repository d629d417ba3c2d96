"""The pre-launch list: every line holds by evidence alone, and says what gets it."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.baseline.figures import Graphs, Latency, Run
from canaryctl.controller.baseline.record import CONDITIONS, BaselineRecord, StageRecord, Start
from canaryctl.controller.checklist import NO_GRAPHS, Evidence, Line, checklist
from canaryctl.controller.gridplans import StoredPlan
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.runtimes.grid.rules import EngineRules

NOW = datetime(2026, 1, 8, tzinfo=UTC)
DIGEST = "sha256:own"
SIZES = (1, 2, 4, 8)
HISTOGRAM, PLANNED = "histogram of traffic at hand", "grid planned from it"
HIT, FALLBACK, PADDING = "hit ratio measured", "fallback measured", "padding measured"
MEMORY, KV = "memory before and after capture recorded", "KV capacity recorded"
WARM, READY = "warm-up covers every bucket", "ready only after capture and warm-up"
COMPARED, RUNG = "TTFT, TPOT and ITL p95 and p99 compared", "eager or previous runtime healthy"
VERSIONS = "versions in the artifact"


def document(**runtime: Any) -> ArtifactDocument:
    return ArtifactDocument.model_validate(
        {
            "apiVersion": "canaryctl/v1",
            "kind": "RuntimeArtifact",
            "name": "a",
            "version": "1",
            "service": "chat",
            "runtime": {
                "engine": {"name": "simulated", "version": "0.25.1"},
                "model": {"id": "m", "revision": "r"},
                "graph": {"mode": "FULL_DECODE_ONLY", "capture_sizes": list(SIZES)},
                "limits": {"max_num_seqs": 8},
                "warmup_plan": {"decode_buckets": [1, 2, 3, 8], "repeat_per_bucket": 2},
                **runtime,
            },
            "gates": [
                {"name": "graph_fallback", "max_ratio": "1%"},
                {"name": "padding_ratio", "max_ratio": "150%"},
            ],
        }
    )


LATENCY = Latency(0.1, 0.2, 0.3, 10)
ALL = dict.fromkeys(("ttft", "tpot", "itl", "e2e"), LATENCY)
RUN = Run(
    10, 0, 2.0, 100, False, ALL, Graphs(9, 1.0, 0.99, 1.0, 0.005, 0.0, 0.3, 0),
    begun_at=NOW.timestamp() + 60,
)  # fmt: skip
START = Start(
    captured_sizes=SIZES,
    stage_s={},
    memory_bytes={"gpu_used_before_capture": 2.0**30, "gpu_used_after_capture": 2.0**31},
    kv_cache_tokens=1000,
    max_concurrency=8.0,
    reached={
        stage: (NOW + timedelta(seconds=n)).isoformat()
        for n, stage in enumerate(("started", "loaded", "compiled", "captured", "warmed", "ready"))
    },
    warmed={"decode 1": 2, "decode 2": 2, "decode 3": 2, "decode 8": 2},
)
ALIKE: dict[str, str | None] = {
    **dict.fromkeys(CONDITIONS, "same"),
    "engine": "simulated 0.25.1",
}
OWN = StageRecord("planned", DIGEST, "FULL_DECODE_ONLY", SIZES, ALIKE, START, (RUN, RUN))
EAGER = StageRecord("eager", "sha256:eager", "NONE", None, ALIKE, START, (RUN,))
RECORD = BaselineRecord("a@1", DIGEST, "chat", NOW.isoformat(), "t", 2, True, (EAGER, OWN))
PLAN = StoredPlan("Prometheus", "2026-01-07T12:00:00Z", "c", "FULL_DECODE_ONLY", SIZES,
                  {1: 5, 7: 2}, {}, (), "2026-01-07T00:00:00Z")  # fmt: skip
WHOLE = Evidence(
    document=document(),
    digest=DIGEST,
    simulated=True,
    sizes=SIZES,
    rules=EngineRules(8, 8192, "FULL_DECODE_ONLY"),
    now=NOW,
    max_age_s=7 * 86400,
    plan=PLAN,
    record=RECORD,
)


def line(name: str, evidence: Evidence) -> Line:
    (found,) = (line for line in checklist(evidence) if line.name == name)
    return found


def with_own(**changes: Any) -> Evidence:
    own = replace(OWN, **changes)
    return replace(WHOLE, record=replace(RECORD, stages=(EAGER, own)))


def with_start(**changes: Any) -> Evidence:
    return with_own(start=replace(START, **changes))


def with_graphs(**changes: Any) -> Evidence:
    assert RUN.graphs is not None
    worse = replace(RUN, graphs=replace(RUN.graphs, **changes))
    return with_own(runs=(RUN, worse))


def test_all_lines_hold_where_all_was_measured() -> None:
    found = checklist(WHOLE)
    assert [line.name for line in found if not line.holds] == []
    assert len(found) == 12
    assert all(line.do is None for line in found)


def test_without_evidence_every_line_is_a_no_that_says_what_to_run() -> None:
    found = checklist(replace(WHOLE, plan=None, record=None))
    assert [line.name for line in found if line.holds] == []
    assert all(line.do for line in found)


@pytest.mark.parametrize(
    ("name", "evidence", "said"),
    [
        (HISTOGRAM, replace(WHOLE, max_age_s=3600), "24h old, at most 1h expected"),
        (HISTOGRAM, replace(WHOLE, plan=replace(PLAN, observed_at=None)), "does not tell when"),
        (HISTOGRAM, replace(WHOLE, plan=replace(PLAN, decode={})), "0 steps"),
        (PLANNED, replace(WHOLE, plan=replace(PLAN, sizes=(1, 2))), "planned FULL_DECODE_ONLY 1,"),
        (PLANNED, replace(WHOLE, plan=replace(PLAN, mode="FULL")), "planned FULL "),
        (HIT, with_graphs(hit=None), "not measured"),
        (FALLBACK, with_graphs(fallback=0.02), "2.00% at worst.*allows 1.00%"),
        (PADDING, with_graphs(padding=0.6), "60.00% at worst.*allows 50.00%"),
        (MEMORY, with_start(memory_bytes={"gpu_used_after_capture": 1.0}), "does not say"),
        (KV, with_start(kv_cache_tokens=None), "not recorded"),
        (WARM, replace(WHOLE, document=document(warmup_plan={"decode_buckets": [1, 8]})),
         "leaves out decode 2, decode 4"),
        (WARM, with_start(warmed={**START.warmed, "decode 3": 1}), "decode 3"),
        (WARM, replace(WHOLE, record=None), "not seen to run"),
        (READY, with_start(reached={}), "no start"),
        (READY, with_start(reached={s: at for s, at in START.reached.items() if s != "warmed"}),
         "did not come by warmed"),
        (READY, with_own(runs=(RUN, replace(RUN, begun_at=None))), "is not recorded"),
        (READY, with_own(runs=(RUN, replace(RUN, begun_at=NOW.timestamp()))), "traffic -4.0 s"),
        (READY, replace(WHOLE, document=document(
            warmup_plan={"decode_buckets": [1], "block_ready_until_complete": False}
        )), "does not block"),
        (COMPARED, with_own(conditions={**ALIKE, "driver": "other"}), "driver: other and same"),
        (COMPARED, with_own(conditions={**ALIKE, "CUDA": None}), "CUDA is not known"),
        (COMPARED, with_own(runs=(replace(RUN, latency={**ALL, "itl": None}),)), "itl p95"),
        (COMPARED, with_own(runs=(replace(RUN, saturated=True),)), "saturated"),
        (COMPARED, replace(WHOLE, record=replace(RECORD, stages=(OWN,))), "no other stage"),
        (RUNG, replace(WHOLE, record=replace(RECORD, stages=(OWN,))), "neither"),
        (RUNG, replace(WHOLE, record=replace(
            RECORD, stages=(replace(EAGER, runs=(replace(RUN, failed=1),)), OWN)
        )), "9 of 10"),
        (VERSIONS, replace(WHOLE, document=document(model={"id": "m"})), "model.revision"),
        (VERSIONS, replace(WHOLE, simulated=False), "engine.torch, cuda.toolkit, cuda.driver"),
        (VERSIONS, with_own(conditions={**ALIKE, "engine": "simulated 0.26.0"}), "0.26.0"),
    ],
)  # fmt: skip
def test_a_line_is_a_no_that_says_why(name: str, evidence: Evidence, said: str) -> None:
    found = line(name, evidence)
    assert not found.holds
    assert found.do
    assert re.search(said, found.found), found.found


def test_a_stage_that_failed_is_no_evidence() -> None:
    for broken in (with_own(fault="it died"), with_own(runs=())):
        for name in (HIT, MEMORY, KV, COMPARED):
            assert not line(name, broken).holds


def test_shares_may_come_from_the_last_release() -> None:
    passed = GateResult("graph_fallback", Outcome.PASSED, "0 of 900 ran eager", samples=900)
    released = replace(WHOLE, record=None, release="r1", gates={"graph_fallback": passed})
    found = line(FALLBACK, released)
    assert found.holds
    assert "r1: 0 of 900" in found.found
    assert not line(HIT, released).holds
    for other in (
        replace(passed, outcome=Outcome.FAILED),
        replace(passed, outcome=Outcome.ERROR),
        replace(passed, samples=0, outcome=Outcome.INCONCLUSIVE),
    ):
        assert not line(FALLBACK, replace(released, gates={"graph_fallback": other})).holds


def test_a_previous_runtime_that_serves_is_a_rung() -> None:
    found = line(RUNG, replace(WHOLE, record=None, rung="old@1 serves with i-1"))
    assert (found.holds, found.found) == (True, "old@1 serves with i-1")


def test_graphs_are_not_asked_of_an_artifact_without() -> None:
    plain = replace(
        WHOLE, document=document(graph={"mode": "NONE"}), sizes=(), plan=None, rung="old"
    )
    found = checklist(plain)
    assert [line.found for line in found].count(NO_GRAPHS) == 7
    assert all(line.holds for line in found)
