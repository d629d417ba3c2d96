"""What differs between two runtimes, by place and by kind."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from canaryctl.controller.artifact.secrets import shown
from canaryctl.runtimes.spec import RuntimeSpec


class Group(StrEnum):
    """What a person calls the thing that changed. In the order of a report."""

    ENGINE = "engine"
    TORCH = "torch"
    CUDA = "CUDA"
    DRIVER = "driver"
    GPU = "GPU"
    PARALLELISM = "parallelism"
    MODEL = "model"
    ATTENTION = "attention backend"
    GRAPH_MODE = "graph mode"
    GRID = "graph grid"
    LIMITS = "limits"
    SPECULATIVE = "speculative decoding"
    ARGUMENTS = "arguments"
    ENVIRONMENT = "environment"
    WARMUP = "warm-up"
    MEMORY = "memory"


_GROUPS = {
    "engine": Group.ENGINE,
    "engine.torch": Group.TORCH,
    "engine.args": Group.ARGUMENTS,
    "engine.env": Group.ENVIRONMENT,
    "cuda.toolkit": Group.CUDA,
    "cuda.driver": Group.DRIVER,
    "gpu": Group.GPU,
    "parallel": Group.PARALLELISM,
    "model": Group.MODEL,
    "attention_backend": Group.ATTENTION,
    "graph.mode": Group.GRAPH_MODE,
    "graph.capture_sizes": Group.GRID,
    "limits": Group.LIMITS,
    "speculative": Group.SPECULATIVE,
    "warmup_plan": Group.WARMUP,
    "memory": Group.MEMORY,
}
_SIZE_LISTS = frozenset(
    {"graph.capture_sizes", "warmup_plan.decode_buckets", "warmup_plan.mixed_token_buckets"}
)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. ``before`` and ``after``: JSON values, None where not set; a secret
    shows as "(hidden)" in both. ``added`` and ``removed``: of a list of sizes that both have.
    """

    path: str
    group: Group
    before: Any
    after: Any
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


def diff_runtimes(a: RuntimeSpec, b: RuntimeSpec) -> tuple[Change, ...]:
    """From ``a`` to ``b``, by group and path; empty exactly when the digests are the same."""
    before, after = dict(_leaves(a.as_document(), "")), dict(_leaves(b.as_document(), ""))
    changes = [
        _change(path, before.get(path), after.get(path))
        for path in before.keys() | after.keys()
        if not _same(before.get(path), after.get(path))
    ]
    order = list(Group)
    return tuple(sorted(changes, key=lambda change: (order.index(change.group), change.path)))


def diff_attested(
    a: Mapping[str, str] | None, b: Mapping[str, str] | None
) -> list[dict[str, str | None]]:
    """By name, what engines attested differently: ``name``, ``before``, ``after`` (None: not
    told). Nothing where one attested nothing. The artifact's own digest always differs."""
    if a is None or b is None:
        return []
    return [
        {"name": name, "before": a.get(name), "after": b.get(name)}
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name) and name != "artifact"
    ]


def group_of(path: str) -> Group:
    """The group of a dotted path; KeyError for one that no runtime has."""
    while path not in _GROUPS:
        if "." not in path:
            raise KeyError(path)
        path = path.rpartition(".")[0]
    return _GROUPS[path]


def _change(path: str, before: Any, after: Any) -> Change:
    group = group_of(path)
    if path in _SIZE_LISTS and isinstance(before, list) and isinstance(after, list):
        return Change(
            path,
            group,
            before,
            after,
            added=tuple(size for size in after if size not in set(before)),
            removed=tuple(size for size in before if size not in after),
        )
    name = path.rpartition(".")[2]
    return Change(path, group, _visible(name, before), _visible(name, after))


def _visible(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [shown(name, item) for item in value]
    return shown(name, value)


def _same(one: Any, other: Any) -> bool:
    """1, 1.0 and true are equal in Python and three command lines."""
    return bool(one == other) and repr(one) == repr(other)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif value is not None:
        yield path, value
