"""How baseline runs are shown: stages side by side, or one document."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from canaryctl.controller.baseline.figures import LATENCIES, Spread
from canaryctl.controller.baseline.record import (
    BaselineRecord,
    Comparison,
    StageRecord,
    compare_conditions,
)
from canaryctl.controller.baseline.slo import Slo
from canaryctl.controller.baseline.summary import (
    GIB,
    GRAPH_SHARES,
    QUANTILES,
    Summary,
    summary_of,
)
from canaryctl.controller.cli.output import Table
from canaryctl.gates.wording import seconds

UNKNOWN, NO_SLO = "unknown", "no SLO"
_STAGE_TIMES = ("load", "compile", "capture", "ready")


def record_document(record: BaselineRecord) -> dict[str, Any]:
    """The record with a summary in every stage, and whether its stages may be compared."""
    document = record.as_document()
    for stage, found in zip(record.stages, document["stages"], strict=True):
        found["summary"] = asdict(summary_of(stage))
    document["complete"] = record.complete
    document["comparable"] = {
        stage.name: _comparison(record, stage).why_not or None for stage in record.stages[1:]
    }
    return document


def print_record(record: BaselineRecord) -> None:
    order = "in turns" if record.interleaved else "one after the other"
    click.echo(f"{record.artifact}, {record.begun_at}")
    click.echo(f"traffic: {record.traffic}; {record.repeats} repeats, {order}")
    click.echo(f"SLO of each request: {_limits(record.slo)}\n")
    _print_stages([(stage.name, stage, record.slo) for stage in record.stages])
    for stage in record.stages:
        if stage.fault is not None:
            click.echo(f"{stage.name}: {stage.fault}")
        for why in sorted({why for run in stage.runs for why in run.unknown}):
            click.echo(f"{stage.name}: unknown {why}")
        if any(run.saturated for run in stage.runs):
            click.echo(f"{stage.name}: the client was saturated: its latencies are its own")
    for stage in record.stages[1:]:
        if stage.conditions and (why := _comparison(record, stage).why_not):
            click.echo(f"{stage.name} is not comparable with {record.stages[0].name}: {why}")


def print_compared(
    records: tuple[BaselineRecord, BaselineRecord], stages: tuple[StageRecord, StageRecord]
) -> None:
    a, b = records
    _print_stages([(r.artifact, stage, r.slo) for r, stage in zip(records, stages, strict=True)])
    if a.slo != b.slo:
        click.echo(f"their SLOs differ: {_limits(a.slo)}; and {_limits(b.slo)}")


def compared_document(
    records: tuple[BaselineRecord, BaselineRecord],
    stages: tuple[StageRecord, StageRecord],
    found: Comparison,
) -> dict[str, Any]:
    a, b = (
        {"artifact": record.artifact, "digest": record.digest, "begun_at": record.begun_at}
        | {
            "slo": record.slo,
            "conditions": dict(stage.conditions),
            "summary": asdict(summary_of(stage)),
        }
        for record, stage in zip(records, stages, strict=True)
    )
    return {
        "a": a,
        "b": b,
        "comparable": found.comparable,
        "differing": {name: list(pair) for name, pair in found.differing.items()},
        "unknown": list(found.unknown),
    }


def _comparison(record: BaselineRecord, stage: StageRecord) -> Comparison:
    return compare_conditions(record.stages[0].conditions, stage.conditions)


def _limits(slo: Slo | None) -> str:
    if slo is None:
        return UNKNOWN
    told = (f"{name.upper()} {seconds(limit_s)}" for name, limit_s in slo.items())
    return ", ".join(told) or "none"


def _print_stages(stages: list[tuple[str, StageRecord, Slo | None]]) -> None:
    """A column for each stage; a value is the median of its repeats (least–most)."""
    table = Table("", *(name for name, _, _ in stages))
    found = [(stage, summary_of(stage)) for _, stage, _ in stages]

    def within_slo(label: str, cell: Callable[[Summary], str]) -> None:
        slos = (slo for _, _, slo in stages)
        pairs = zip(found, slos, strict=True)
        table.add(label, *(NO_SLO if slo == {} else cell(s) for (_, s), slo in pairs))

    for name in GRAPH_SHARES:
        table.add(name, *(_spread(s.graphs[name], 100, "%", 1) for _, s in found))
    table.add("decode step mean", *(_spread(s.decode_step_s, 1000, " ms", 2) for _, s in found))
    table.add("graph memory", *(_graph_memory(stage) for stage, _ in found))
    table.add("memory before capture", *(_memory(s, "gpu_used_before_capture") for s, _ in found))
    table.add("memory after capture", *(_memory(s, "gpu_used_after_capture") for s, _ in found))
    for name in LATENCIES:
        for at in QUANTILES:
            label = f"{name.upper()} {at}"
            table.add(
                label, *(_spread(s.latency[f"{name} {at}"], 1000, " ms", 2) for _, s in found)
            )
    table.add("tokens/s", *(_spread(s.tokens_per_s, 1, "", 0) for _, s in found))
    within_slo("requests within SLO", lambda s: _spread(s.share_within_slo, 100, "%", 2))
    within_slo("tokens/s within SLO", lambda s: _spread(s.tokens_per_s_within_slo, 1, "", 0))
    table.add("failed", *(s.failed if stage.runs else UNKNOWN for stage, s in found))
    table.add("KV cache tokens", *(_start(stage, "kv_cache_tokens", 0) for stage, _ in found))
    table.add("max concurrency", *(_start(stage, "max_concurrency", 1) for stage, _ in found))
    within_slo("concurrency within SLO", lambda s: _spread(s.concurrency_within_slo, 1, "", 0))
    table.add("tokens/s per GiB", *(_number(s.tokens_per_s_per_gib, 2) for _, s in found))
    within_slo(
        "tokens/s within SLO per GiB", lambda s: _number(s.tokens_per_s_within_slo_per_gib, 2)
    )
    table.add("concurrency per GiB", *(_number(s.concurrency_per_gib, 2) for _, s in found))
    within_slo(
        "concurrency within SLO per GiB", lambda s: _number(s.concurrency_within_slo_per_gib, 2)
    )
    for name in _STAGE_TIMES:
        table.add(f"{name} time", *(_stage_time(stage, name) for stage, _ in found))
    table.print()


def _spread(value: Spread | None, scale: float, unit: str, digits: int) -> str:
    if value is None:
        return UNKNOWN
    middle, least, most = (
        f"{x * scale:.{digits}f}" for x in (value.median, value.least, value.most)
    )
    return f"{middle}{unit}" if least == most else f"{middle}{unit} ({least}–{most})"


def _memory(stage: StageRecord, kind: str) -> str:
    said = stage.start.memory_bytes if stage.start is not None else {}
    return UNKNOWN if kind not in said else f"{said[kind] / GIB:.2f} GiB"


def _graph_memory(stage: StageRecord) -> str:
    size = None if stage.start is None else stage.start.graph_bytes
    return UNKNOWN if size is None else f"{size / 2**20:.0f} MiB"


def _start(stage: StageRecord, name: str, digits: int) -> str:
    value = None if stage.start is None else getattr(stage.start, name)
    return _number(value, digits)


def _stage_time(stage: StageRecord, name: str) -> str:
    said = stage.start.stage_s if stage.start is not None else {}
    return UNKNOWN if name not in said else f"{said[name]:.1f} s"


def _number(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"
