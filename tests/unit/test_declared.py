"""What an artifact declares and an instance told, in the words of the gates."""

from datetime import UTC, datetime, timedelta

import pytest

from canaryctl.controller.declared import declared, start_facts
from canaryctl.controller.model import Instance, InstanceState
from canaryctl.gates.base import StartFacts
from canaryctl.runtimes.engines.base import Stage
from canaryctl.runtimes.spec import RuntimeSpec

T0 = datetime(2026, 11, 29, tzinfo=UTC)


def runtime(**sections: object) -> RuntimeSpec:
    given = {"engine": {"name": "vllm", "version": "0.25.1"}, "model": {"id": "m"}, **sections}
    return RuntimeSpec.model_validate(given)


def test_all_that_an_artifact_may_declare() -> None:
    full = runtime(
        engine={"name": "vllm", "version": "0.25.1", "torch": "2.11.0"},
        cuda={"toolkit": "13.0", "driver": ">=580.65"},
        gpu={"model": "H200"},
        model={"id": "m", "revision": "c1899de"},
        attention_backend="FLASH_ATTN",
        graph={"mode": "FULL", "capture_sizes": [1, 2]},
    )
    assert declared(full, (1, 2)) == {
        "engine_version": "0.25.1",
        "torch_version": "2.11.0",
        "cuda_version": "13.0",
        "driver_version": ">=580.65",
        "gpu_model": "H200",
        "model_revision": "c1899de",
        "attention_backend": "FLASH_ATTN",
        "graph_mode": "FULL",
        "graph_sizes": "1,2",
    }


def test_what_is_left_open_is_left_out_and_of_no_gpu_nothing_is_asked() -> None:
    eager = runtime(gpu={"count": 0, "model": "H200"}, graph={"mode": "NONE"})
    assert declared(eager, ()) == {
        "engine_version": "0.25.1",
        "graph_mode": "NONE",
        "graph_sizes": "none",
    }


@pytest.mark.parametrize(
    ("model", "compared"),
    [
        ("org/model", True),
        ("/models/mine", False),
        ("/hub/models--org--model/snapshots/c1899de", True),
    ],
)
def test_the_revision_of_a_folder_is_asked_where_the_folder_names_one(
    model: str, compared: bool
) -> None:
    names = declared(runtime(model={"id": model, "revision": "c1899de"}), ())
    assert ("model_revision" in names) is compared


def instance(**changes: object) -> Instance:
    given = {
        "id": "i0",
        "service": "chat",
        "pool": "r1",
        "digest": "d",
        "created_at": T0,
        "port": 1,
    }
    return Instance(**{**given, "state": InstanceState.READY, **changes})  # type: ignore[arg-type]


def test_what_log_and_stages_tell_of_a_start() -> None:
    seen = {
        Stage.STARTED: T0,
        Stage.CAPTURED: T0 + timedelta(seconds=40),
        Stage.WARMED: T0 + timedelta(seconds=42),
        Stage.READY: T0 + timedelta(seconds=42.5),
    }
    facts = {
        "stage_seconds": {"load": 1.5, "capture": 3.0, "init": 30.0},
        "graph_bytes": 532676608,
        "weights_bytes": None,
    }
    assert start_facts(instance(stages=seen, facts=facts)) == StartFacts(
        {"load": 1.5, "capture": 3.0, "warmup": 2.0, "ready": 42.5}, {"graphs": 532676608}
    )


def test_what_was_not_told_is_absent() -> None:
    assert start_facts(instance(stages={Stage.STARTED: T0})) == StartFacts({}, {})


def test_what_its_log_says_was_resolved() -> None:
    facts = {"resolved": {"graph_mode": "PIECEWISE"}, "resolved_by": {"graph_mode": "words"}}
    start = start_facts(instance(facts=facts))
    assert (start.resolved, start.resolved_by) == (facts["resolved"], facts["resolved_by"])


def test_late_work_beyond_what_is_named_is_counted() -> None:
    facts = {"late_work": ["a", "b"], "late_work_unnamed": 3}
    assert start_facts(instance(facts=facts)).late_count == 5
    assert start_facts(instance(facts={"late_work": ["a", "b"]})).late_count == 2


def test_the_fewest_replays_of_a_warmed_bucket_count() -> None:
    def run(bucket: int, replayed: int | None, kind: str = "decode") -> dict[str, object]:
        return {"kind": kind, "bucket": bucket, "repeat": 1, "seconds": 0.1, "replayed": replayed}

    runs = [run(4, 9), run(4, 7), run(8, 3), run(8, None), run(2, 0), run(2, None)]
    start = start_facts(instance(facts={"warmup": [*runs, run(64, None, "mixed")]}))
    assert start.runs == {"decode bucket 4": 2, "decode bucket 8": 2, "decode bucket 2": 2}
    assert start.replays == {"decode bucket 4": 7, "decode bucket 2": 0}


def test_a_mixed_bucket_counts_unless_no_graph_is_captured_for_it() -> None:
    def run(bucket: int, graph: int | None, replayed: int | None) -> dict[str, object]:
        of = {"kind": "mixed", "bucket": bucket, "repeat": 1, "seconds": 0.1}
        return {**of, "graph": graph, "replayed": replayed}

    batches = [run(100, 128, 2), run(256, 256, 1), run(900, 0, None), run(512, None, None)]
    start = start_facts(instance(facts={"warmup": batches}))
    assert start.runs == {"mixed bucket 100": 1, "mixed bucket 256": 1, "mixed bucket 512": 1}
    assert start.replays == {"mixed bucket 100": 2, "mixed bucket 256": 1}
