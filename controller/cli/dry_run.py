"""``canaryctl release --dry-run``: the plan of a release, before anything is recorded."""

from collections.abc import Mapping
from typing import Any

import click

from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.cli.output import Table, emit_json
from canaryctl.controller.forecast import ReleaseForecast
from canaryctl.controller.forecast_report import forecast_document, plan_lines
from canaryctl.gates.wording import about

UNKNOWN = "?"


def show(forecast: ReleaseForecast, *, as_json: bool) -> Exit:
    """Print it: 2 where it is refused."""
    document = forecast_document(forecast)
    if as_json:
        emit_json(document)
    else:
        _print(document)
    return Exit.OK if document["decidable"] else Exit.INPUT


def _print(document: Mapping[str, Any]) -> None:
    click.echo(
        f"{document['kind']} of {document['artifact']} for {document['service']}; "
        "nothing was recorded or started\n"
    )
    steps = Table("step", "weight", "canary", "lasts", "requests/s", "latency compared")
    for step in document["steps"]:
        steps.add(
            step["step"],
            f"{step['weight']} %",
            step["canary_replicas"],
            "until resumed" if step["pause"] else f"≥ {about(step['least_s'])}",
            _number(step["canary_requests_per_s"]),
            "yes" if step["unequal_load"] is None else f"no: {step['unequal_load']}",
        )
    steps.print()
    click.echo()
    gates = Table("gate", "fails 50 % / 90 %", "no harm", "passes 50 % / 90 %", "step", "after")
    for gate in document["gates"]:
        if gate["rule"] is None and not gate["refused"]:
            continue
        gates.add(
            gate["name"],
            _pair(gate, "fail"),
            _need(gate, "no_harm"),
            _pair(gate, "pass"),
            *_when(gate),
        )
    gates.print()
    click.echo()
    for line in plan_lines(document):
        click.echo(line)


def _when(gate: Mapping[str, Any]) -> tuple[str, str]:
    if gate["refused"]:
        return "-", "refused"
    if gate["likely"] is None:
        return "-", UNKNOWN
    return str(gate["likely"]["step"]), about(gate["likely"]["seconds"])


def _pair(gate: Mapping[str, Any], kind: str) -> str:
    return f"{_need(gate, f'{kind}_50')} / {_need(gate, f'{kind}_90')}"


def _need(gate: Mapping[str, Any], target: str) -> str:
    """Canary observations; of what is known in blocks only, these; ``never``, by the rule."""
    need = gate["needs"].get(target)
    if need is None:
        return "never" if target in gate["lacks"] else "-"
    if need["samples"] is None:
        return f"≥ {need['blocks']} blocks" if need["blocks"] else UNKNOWN
    return f"{'≥ ' if gate['least'] else ''}{need['samples']}"


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"
