"""Faults of a runtime spec that are the same for every real engine."""

from collections.abc import Iterable
from pathlib import Path

from canaryctl.runtimes.spec import RuntimeSpec


def program_faults(spec: RuntimeSpec) -> Iterable[str]:
    """One way to start it, and no path that means something else in the engine's directory."""
    engine = spec.engine
    ways = {"command": engine.command, "venv": engine.venv, "image": engine.image}
    given = [name for name, way in ways.items() if way]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        yield f"engine: found {found}, expected exactly one of command, venv and image"
    if engine.venv is not None and not Path(engine.venv).is_absolute():
        yield f"engine.venv: found {engine.venv!r}, expected an absolute path"
    for name, path in (("id", spec.model.id), ("tokenizer", spec.model.tokenizer)):
        if path is not None and path.startswith(("./", "../", "~")):
            yield f"model.{name}: found {path!r}, expected a hub name or an absolute path"


def warmup_faults(spec: RuntimeSpec) -> Iterable[str]:
    """Buckets of the warm-up plan that can never run."""
    plan, limits = spec.warmup_plan, spec.limits
    for name, buckets, limit_name, limit in (
        ("decode_buckets", plan.decode_buckets, "max_num_seqs", limits.max_num_seqs),
        (
            "mixed_token_buckets",
            plan.mixed_token_buckets,
            "max_num_batched_tokens",
            limits.max_num_batched_tokens,
        ),
    ):
        beyond = [size for size in buckets if size > limit]
        if beyond:
            yield (
                f"warmup_plan.{name}: {listed(beyond)} can never run, limits.{limit_name} is"
                f" {limit}; leave them out or raise it"
            )


def listed(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))
