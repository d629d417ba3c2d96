"""What a diff names, how it groups it, and what it keeps to itself."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from canaryctl.controller.artifact.diff import Group, diff_attested, diff_runtimes, group_of
from canaryctl.runtimes.spec import RuntimeSpec

BASE: dict[str, Any] = {
    "engine": {
        "name": "vllm",
        "version": "0.25.1",
        "torch": "2.11.0",
        "args": {"seed": 1},
        "env": {"OMP_NUM_THREADS": "1"},
    },
    "cuda": {"toolkit": "13.0", "driver": ">=580"},
    "gpu": {"model": "H200"},
    "model": {"id": "a", "revision": "r1"},
    "attention_backend": "FLASH_ATTN",
    "graph": {"capture_sizes": [1, 2, 4]},
}


def runtime(**sections: Any) -> RuntimeSpec:
    merged = {
        key: {**BASE.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in sections.items()
    }
    return RuntimeSpec.model_validate({**BASE, **merged})


@pytest.mark.parametrize(
    ("sections", "path", "group", "before", "after"),
    [
        ({"engine": {"version": "0.26.0"}}, "engine.version", "engine", "0.25.1", "0.26.0"),
        ({"engine": {"torch": "2.12.0"}}, "engine.torch", "torch", "2.11.0", "2.12.0"),
        ({"engine": {"image": "x"}}, "engine.image", "engine", None, "x"),
        ({"engine": {"args": {"seed": 2}}}, "engine.args.seed", "arguments", 1, 2),
        ({"engine": {"args": {"seed": 1.0}}}, "engine.args.seed", "arguments", 1, 1.0),
        ({"engine": {"args": {}}}, "engine.args.seed", "arguments", 1, None),
        (
            {"engine": {"env": {"OMP_NUM_THREADS": "2"}}},
            "engine.env.OMP_NUM_THREADS",
            "environment",
            "1",
            "2",
        ),
        ({"cuda": {"toolkit": "13.1"}}, "cuda.toolkit", "CUDA", "13.0", "13.1"),
        ({"cuda": {"driver": ">=590"}}, "cuda.driver", "driver", ">=580", ">=590"),
        ({"gpu": {"count": 2}}, "gpu.count", "GPU", 1, 2),
        ({"parallel": {"tensor": 2}}, "parallel.tensor", "parallelism", 1, 2),
        ({"model": {"revision": "r2"}}, "model.revision", "model", "r1", "r2"),
        ({"attention_backend": None}, "attention_backend", "attention backend", "FLASH_ATTN", None),
        ({"graph": {"mode": "NONE"}}, "graph.mode", "graph mode", "FULL_AND_PIECEWISE", "NONE"),
        ({"limits": {"max_num_seqs": 8}}, "limits.max_num_seqs", "limits", 256, 8),
        (
            {"warmup_plan": {"repeat_per_bucket": 1}},
            "warmup_plan.repeat_per_bucket",
            "warm-up",
            3,
            1,
        ),
        ({"memory": {"safety_margin_gib": 3}}, "memory.safety_margin_gib", "memory", 2.0, 3.0),
    ],
)
def test_one_change_is_one_line(
    sections: dict[str, Any], path: str, group: str, before: object, after: object
) -> None:
    (change,) = diff_runtimes(runtime(), runtime(**sections))
    assert (change.path, change.group, change.before, change.after) == (path, group, before, after)


def test_a_grid_says_which_sizes_came_and_went() -> None:
    (change,) = diff_runtimes(runtime(), runtime(graph={"capture_sizes": [2, 4, 8, 16]}))
    assert (change.group, change.added, change.removed) == (Group.GRID, (8, 16), (1,))
    (change,) = diff_runtimes(runtime(), runtime(graph={"capture_sizes": None}))
    assert (change.before, change.after, change.added) == ([1, 2, 4], None, ())


def test_speculation_appears_field_by_field() -> None:
    speculative = {"method": "ngram", "num_speculative_tokens": 3}
    changes = diff_runtimes(runtime(), runtime(speculative=speculative))
    assert [(c.path, c.after) for c in changes] == [
        ("speculative.method", "ngram"),
        ("speculative.num_speculative_tokens", 3),
    ]


def test_secrets_are_never_shown() -> None:
    before = runtime(engine={"env": {"HF_TOKEN": "old-value"}, "args": {"api-key": ["one"]}})
    after = runtime(engine={"env": {"HF_TOKEN": "new-value"}, "args": {"api-key": ["two"]}})
    changes = diff_runtimes(before, after)
    assert {c.path for c in changes} == {"engine.env.HF_TOKEN", "engine.args.api-key"}
    for word in ("old-value", "new-value", "one", "two"):
        assert word not in str(changes)


def test_equal_runtimes_have_no_changes_and_order_is_that_of_the_groups() -> None:
    assert diff_runtimes(runtime(), runtime()) == ()
    changes = diff_runtimes(
        runtime(), runtime(memory={"safety_margin_gib": 1}, engine={"version": "2", "args": {}})
    )
    assert [c.group for c in changes] == [Group.ENGINE, Group.ARGUMENTS, Group.MEMORY]


def test_every_field_of_a_runtime_has_a_group() -> None:
    for path in _paths(RuntimeSpec, ""):
        assert isinstance(group_of(path), Group)
    with pytest.raises(KeyError):
        group_of("cuda.unheard_of")


def _paths(model: type[BaseModel], above: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        inner = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if inner:
            yield from _paths(inner[0], f"{above}{name}.")
        else:
            yield above + name


def test_what_ran_is_compared_by_what_both_attested() -> None:
    a = {"torch_version": "2.11.0+cu130", "nccl_version": "2.28.9", "artifact": "sha256:a"}
    b = {"torch_version": "2.11.0+cu129", "dtype": "bfloat16", "artifact": "sha256:b"}
    assert diff_attested(a, b) == [
        {"name": "dtype", "before": None, "after": "bfloat16"},
        {"name": "nccl_version", "before": "2.28.9", "after": None},
        {"name": "torch_version", "before": "2.11.0+cu130", "after": "2.11.0+cu129"},
    ]
    assert diff_attested(a, a) == []
    assert diff_attested(None, b) == []
