"""Artifacts under any input: digests, diffs and the reader."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from canaryctl.controller.artifact.diff import diff_runtimes
from canaryctl.controller.artifact.digest import canonical_json, digest_of
from canaryctl.controller.artifact.loader import inspect_artifact
from canaryctl.controller.artifact.salvage import Salvage, validate
from canaryctl.runtimes.spec import GraphMode, RuntimeSpec

DATA = Path(__file__).parents[1] / "data" / "artifacts"
VALID = (DATA / "valid.yaml").read_bytes()

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
sizes = st.lists(st.integers(1, 600), max_size=6)
scalars = (
    words
    | st.integers(-(2**60), 2**60)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
)
runtimes = st.fixed_dictionaries(
    {
        "engine": st.fixed_dictionaries(
            {"name": words, "version": words},
            optional={
                "args": st.dictionaries(words, scalars | st.lists(scalars, max_size=3), max_size=4),
                "env": st.dictionaries(words, words, max_size=3),
                "torch": st.none() | words,
            },
        ),
        "model": st.fixed_dictionaries(
            {"id": words}, optional={"lora": st.lists(words, max_size=2)}
        ),
    },
    optional={
        "gpu": st.fixed_dictionaries(
            {}, optional={"memory_fraction": st.floats(0.01, 1), "share": st.booleans()}
        ),
        "graph": st.fixed_dictionaries(
            {},
            optional={
                "mode": st.sampled_from([mode.value for mode in GraphMode]),
                "capture_sizes": st.none() | sizes,
            },
        ),
        "warmup_plan": st.fixed_dictionaries({}, optional={"decode_buckets": sizes}),
        "memory": st.fixed_dictionaries({}, optional={"safety_margin_gib": st.floats(0, 100)}),
        "attention_backend": st.none() | words,
    },
)


def parse(document: Any) -> RuntimeSpec:
    return RuntimeSpec.model_validate_json(json.dumps(document), strict=True)


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return value


@given(runtimes)
def test_key_order_and_written_out_defaults_keep_the_digest(document: Any) -> None:
    runtime = parse(document)
    assert digest_of(parse(reversed_keys(document))) == digest_of(runtime)
    assert digest_of(parse(runtime.as_document())) == digest_of(runtime)


@given(runtimes)
def test_the_canonical_text_reads_back_as_the_same_runtime(document: Any) -> None:
    runtime = parse(document)
    text = canonical_json(runtime)
    assert text.isascii()
    assert canonical_json(parse(json.loads(text))) == text


@given(runtimes, runtimes)
def test_a_diff_is_empty_exactly_when_the_digests_agree(one: Any, other: Any) -> None:
    a, b = parse(one), parse(other)
    assert diff_runtimes(a, a) == ()
    assert (diff_runtimes(a, b) == ()) == (digest_of(a) == digest_of(b))
    there, back = diff_runtimes(a, b), diff_runtimes(b, a)
    assert [(c.path, c.before, c.added) for c in there] == [
        (c.path, c.after, c.removed) for c in back
    ]


junk = st.binary(max_size=12) | st.sampled_from(
    [
        b"&a ",
        b"*a ",
        b"<<: ",
        b"\t",
        b"\0",
        b"!!int ",
        b"'",
        b'"\\UFFFFFFFF"',
        b"[",
        b"{",
        b"- ",
        b": ",
    ]
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("props") / "artifact.yaml"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(VALID)), st.integers(0, 20), junk), min_size=1, max_size=4
    )
)
def test_no_file_breaks_the_reader(scratch: Path, edits: list[tuple[int, int, bytes]]) -> None:
    content = VALID
    for at, length, inserted in edits:
        content = content[:at] + inserted + content[at + length :]
    scratch.write_bytes(content)
    found = inspect_artifact(scratch)
    assert (found.artifact is None) == bool(found.mistakes)
    assert all(str(mistake).isprintable() for mistake in found.mistakes)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_a_valid_document_remains_of_any_mapping(data: st.DataObject) -> None:
    known = st.sampled_from(
        ["apiVersion", "name", "runtime", "gates", "rollout", "secrets", "graph"]
    )
    document = data.draw(st.dictionaries(known | words, json_values, max_size=5))
    salvage = Salvage(document, ())
    assert validate(json.loads(salvage.document.model_dump_json())) == salvage.document
