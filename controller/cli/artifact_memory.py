"""The memory budget in ``artifact show``: predicted and measured, part by part."""

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from canaryctl.controller.cli.output import Table

if TYPE_CHECKING:
    from canaryctl.runtimes.spec import RuntimeSpec

UNKNOWN = "unknown"


def memory_document(digest: str, runtime: "RuntimeSpec") -> dict[str, Any]:
    """``predicted``: None without a GPU. ``measured``: of the last engine that was seen to start,
    a service's or a baseline run's; None: none was."""
    from canaryctl.controller.baseline.record import latest_record
    from canaryctl.controller.compose import memory_budget
    from canaryctl.controller.memory import measured
    from canaryctl.controller.settings import Settings
    from canaryctl.controller.store import open_store

    settings = Settings.from_environment()
    expected = memory_budget(runtime, settings)
    with closing(open_store(settings)) as store:
        seen = [i for i in store.instances() if i.digest == digest and measured(i.facts)]
    instance = max(seen, key=lambda i: i.created_at, default=None)
    record = latest_record(settings.state_dir, digest)
    stage = record.of_artifact if record is not None else None
    found: dict[str, Any] | None = None
    if instance is not None:
        held = instance.facts.get("max_concurrency")
        found = {
            "of": instance.id,
            "bytes": measured(instance.facts),
            "kv_cache_tokens": instance.facts.get("kv_cache_tokens"),
            "max_concurrency": held and min(held, float(runtime.limits.max_num_seqs)),
        }
    elif record is not None and stage is not None and stage.start is not None:
        found = {
            "of": f"the baseline run of {record.begun_at}",
            "bytes": measured({"memory_bytes": stage.start.memory_bytes}),
            "kv_cache_tokens": stage.start.kv_cache_tokens,
            "max_concurrency": stage.start.max_concurrency,
        }
    return {"predicted": None if expected is None else expected.as_document(), "measured": found}


def print_memory(memory: dict[str, Any]) -> None:
    expected, found = memory["predicted"] or {}, memory["measured"] or {}
    if not expected and not found:
        return
    click.echo("\nmemory of one GPU; measured: " + found.get("of", "never"))
    table = Table("part", "predicted", "measured", "predicted by")
    told = expected.get("told", {})
    sizes = expected.get("bytes", {})
    for part in sizes or found["bytes"]:
        measured = "" if part == "safety_margin" else _gib(found.get("bytes", {}).get(part))
        table.add(part.replace("_", " "), _gib(sizes.get(part)), measured, told.get(part, ""))
    for name in ("kv_cache_tokens", "max_concurrency"):
        values = (_number(side.get(name)) for side in (expected, found))
        table.add(name.replace("_", " "), *values, "")
    table.print()
    if expected.get("fault"):
        click.echo(expected["fault"])
    click.echo("tokens/s and concurrency per GiB, within the SLO: `canaryctl baseline show`")


def _gib(size: float | None) -> str:
    return UNKNOWN if size is None else f"{size / 2**30:.2f} GiB"


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}".removesuffix(".0")
