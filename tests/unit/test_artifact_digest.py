"""A runtime's name by content. The constants hold on every machine and Python."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from canaryctl.controller.artifact.digest import canonical_json, digest_of, short
from canaryctl.controller.artifact.loader import load_artifact
from canaryctl.runtimes.spec import RuntimeSpec

DATA = Path(__file__).parents[1] / "data" / "artifacts"
SMALL: dict[str, Any] = {"engine": {"name": "simulated", "version": "1"}, "model": {"id": "tiny"}}
CANONICAL = (
    '{"cuda":{},"engine":{"args":{},"env":{},"name":"simulated","version":"1","volumes":[]},'
    '"gpu":{"count":1,"memory_fraction":0.9,"share":false},'
    '"graph":{"mode":"FULL_AND_PIECEWISE"},'
    '"limits":{"max_model_len":4096,"max_num_batched_tokens":8192,"max_num_seqs":256},'
    '"memory":{"safety_margin_gib":2.0},"model":{"id":"tiny","lora":[]},'
    '"parallel":{"expert":1,"pipeline":1,"tensor":1},'
    '"warmup_plan":{"block_ready_until_complete":true,"decode_buckets":[],'
    '"mixed_token_buckets":[],"repeat_per_bucket":3}}'
)


def runtime(**changes: Any) -> RuntimeSpec:
    return RuntimeSpec.model_validate(SMALL | changes)


def test_the_canonical_text_is_this_one() -> None:
    assert canonical_json(runtime()) == CANONICAL


def test_the_digest_is_the_text_s_sha256() -> None:
    digest = digest_of(runtime())
    assert digest == "sha256:" + hashlib.sha256(CANONICAL.encode()).hexdigest()
    assert short(digest) == digest[7:19]
    assert len(short(digest)) == 12


@pytest.mark.parametrize(
    "changes",
    [
        {"graph": {"mode": "FULL_AND_PIECEWISE", "capture_sizes": None}},
        {"gpu": {"share": False, "memory_fraction": 0.9, "count": 1}},
        {"memory": {"safety_margin_gib": 2}},
        {"limits": {}},
        {"speculative": None, "attention_backend": None},
    ],
)
def test_defaults_order_and_whole_numbers_make_no_difference(changes: dict[str, Any]) -> None:
    assert digest_of(runtime(**changes)) == digest_of(runtime())


@pytest.mark.parametrize(
    "changes",
    [
        {"graph": {"capture_sizes": [1, 2, 4]}},
        {"gpu": {"memory_fraction": 0.91}},
        {"attention_backend": "FLASHINFER"},
        {"engine": {"name": "simulated", "version": "1", "args": {"x": 1}}},
        {"engine": {"name": "simulated", "version": "1", "args": {"x": 1.0}}},
        {"engine": {"name": "simulated", "version": "1", "args": {"x": True}}},
        {"engine": {"name": "simulated", "version": "1", "args": {"x": "1"}}},
        {"engine": {"name": "simulated", "version": "1", "volumes": ["a", "b"]}},
        {"engine": {"name": "simulated", "version": "1", "volumes": ["b", "a"]}},
        {"model": {"id": "tïny"}},
    ],
)
def test_whatever_changes_the_runtime_changes_the_digest(changes: dict[str, Any]) -> None:
    others = [runtime()]
    assert digest_of(runtime(**changes)) not in {digest_of(other) for other in others}


def test_argument_types_are_kept_apart() -> None:
    digests = {
        digest_of(runtime(engine={"name": "simulated", "version": "1", "args": {"x": value}}))
        for value in (1, 1.0, True, "1", "true")
    }
    assert len(digests) == 5


def test_the_release_is_no_part_of_it(tmp_path: Path) -> None:
    text = (DATA / "valid.yaml").read_text()
    other = tmp_path / "other.yaml"
    other.write_text(
        text.replace("replicas: 1", "replicas: 3")
        .replace("interval: 15s", "interval: 30s")
        .replace("name: chat-qwen3-0.6b", "name: another")
        .replace("from_env: HF_TOKEN", "from_env: OTHER")
    )
    assert load_artifact(other).digest == load_artifact(DATA / "valid.yaml").digest
