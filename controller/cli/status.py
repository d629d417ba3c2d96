"""``canaryctl status`` and ``history``: what is, and what was."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from canaryctl.controller.cli.output import Table, emit_json
from canaryctl.controller.cli.records import document, records
from canaryctl.controller.cli.release import follow, opened

if TYPE_CHECKING:
    from canaryctl.controller.model import Release, Service
    from canaryctl.controller.settings import Settings
    from canaryctl.controller.store import Store

WATCH_S = 1.0


@click.command()
@click.argument("name", metavar="[RELEASE|SERVICE]", required=False)
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@click.option("--wait", is_flag=True, help="For a release: go on with it here until it is final.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def status(name: str | None, watch: bool, wait: bool, as_json: bool) -> int | None:
    """Show services, or one service or release."""
    from canaryctl.common.errors import InputError

    if watch and as_json:
        raise InputError("--watch shows again and again, --json prints one document: give one")
    if wait:
        if name is None:
            raise InputError("--wait needs a release")
        with opened() as app:
            release = app.store.release(name)
            return follow(app, release, wait=True, until="final", timeout=None, as_json=as_json)
    with records() as (settings, store):
        while True:
            _show(settings, store, name, as_json)
            if not watch:
                return None
            time.sleep(WATCH_S)
            click.clear()


@click.command()
@click.argument("service", required=False)
@click.option("--limit", type=click.IntRange(min=1), default=20, help="How many; default 20.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def history(service: str | None, limit: int, as_json: bool) -> None:
    """List releases, the newest first."""
    with records() as (_, store):
        releases = store.releases(service, limit)
        if as_json:
            emit_json({"releases": [document(store, release) for release in releases]})
            return
        _releases_table(releases)


def _show(settings: "Settings", store: "Store", name: str | None, as_json: bool) -> None:
    services = {service.name: service for service in store.services()}
    if name is not None and name not in services:
        _show_release(store, store.release(name), as_json)
        return
    shown = [services[name]] if name is not None else list(services.values())
    if as_json:
        emit_json({"services": [_service_document(settings, store, service) for service in shown]})
        return
    if not shown:
        click.echo("no service yet: `canaryctl release artifact.yaml` makes one", err=True)
        return
    table = Table("service", "url", "stable", "instances", "release", "phase", "weight")
    for service in shown:
        facts = _service_document(settings, store, service)
        active = facts["active_release"] or {}
        table.add(
            service.name,
            facts["url"],
            facts["stable"] or "-",
            ", ".join(f"{i['id']} {i['state']}" for i in facts["instances"]) or "-",
            active.get("release", "-"),
            active.get("phase", "-"),
            active.get("weight", "-"),
        )
    table.print()


def _service_document(settings: "Settings", store: "Store", service: "Service") -> dict[str, Any]:
    active = store.active_release(service.name)
    stable = store.artifact(service.stable_digest) if service.stable_digest else None
    return {
        "service": service.name,
        "url": f"http://{settings.host}:{service.port}",
        "stable": stable.title if stable else None,
        "stable_digest": service.stable_digest,
        "instances": [
            {
                "id": instance.id,
                "state": instance.state.value,
                "artifact": store.artifact(instance.digest).title,
                "engine": _engine_words(store, instance.digest),
                "port": instance.port,
                "gpus": list(instance.gpus),
                "stages": {s.value: at.isoformat() for s, at in instance.stages.items()},
                "facts": dict(instance.facts),
            }
            for instance in store.instances(service=service.name, live_only=True)
        ],
        "active_release": document(store, active) if active else None,
    }


def _engine_words(store: "Store", digest: str) -> str:
    engine = store.artifact(digest).runtime.engine
    return f"{engine.name} {engine.version}"


def _show_release(store: "Store", release: "Release", as_json: bool) -> None:
    facts = document(store, release)
    if as_json:
        emit_json(facts)
        return
    for key in ("release", "service", "artifact", "kind", "phase", "outcome", "weight", "reason"):
        click.echo(f"{key + ':':<10}{facts[key]}")
    table = Table("gate", "outcome", "value", "baseline", "samples", "reason")
    for gate in facts["gates"]:
        table.add(
            gate["name"],
            gate["outcome"],
            _number(gate["value"]),
            _number(gate["baseline"]),
            gate["samples"],
            gate["reason"],
        )
    table.print()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _releases_table(releases: "Sequence[Release]") -> None:
    if not releases:
        click.echo("no release yet", err=True)
        return
    table = Table("release", "service", "artifact", "phase", "created", "reason")
    for release in releases:
        table.add(
            release.id,
            release.service,
            f"{release.document.name}@{release.document.version}",
            release.phase.value,
            f"{release.created_at:%Y-%m-%d %H:%M:%S}Z",
            release.reason or "-",
        )
    table.print()
