"""``canaryctl checklist``: is this artifact ready to be launched, by what was measured?"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.cli.output import Table, emit_json

if TYPE_CHECKING:
    from canaryctl.controller.artifact.loader import LoadedArtifact
    from canaryctl.controller.checklist import Evidence
    from canaryctl.controller.compose import App


@click.command()
@click.argument("artifact", metavar="ARTIFACT", type=Path)
@click.option("--max-age", default="7d", metavar="TIME", help="Of the traffic's histogram; 7d.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def checklist(artifact: Path, max_age: str, as_json: bool) -> Exit:
    """Answer the pre-launch list for ARTIFACT from stored evidence.

    Exit code 0 only when every line holds; 1 otherwise. Missing evidence is a no, and the line
    says what gets it.
    """
    from canaryctl.common.errors import InputError
    from canaryctl.common.units import parse_duration
    from canaryctl.controller.artifact.loader import load_artifact
    from canaryctl.controller.checklist import checklist as answer
    from canaryctl.controller.cli.checks import document_checks
    from canaryctl.controller.cli.release import opened

    try:
        max_age_s = parse_duration(max_age)
    except ValueError as error:
        raise InputError(f"--max-age: {error}") from None
    loaded = load_artifact(artifact, document_checks())
    with opened() as app:
        lines = answer(_evidence(app, artifact, loaded, max_age_s))
    good = all(line.holds for line in lines)
    if as_json:
        emit_json(
            {
                "artifact": f"{loaded.document.name}@{loaded.document.version}",
                "digest": loaded.digest,
                "ready": good,
                "lines": [asdict(line) for line in lines],
            }
        )
    else:
        table = Table("", "what", "found", "to do")
        for line in lines:
            table.add("yes" if line.holds else "NO", line.name, line.found, line.do or "")
        table.print()
    return Exit.OK if good else Exit.ERROR


def _evidence(app: "App", path: Path, loaded: "LoadedArtifact", max_age_s: float) -> "Evidence":
    from canaryctl.controller.baseline.record import latest_record
    from canaryctl.controller.checklist import Evidence
    from canaryctl.controller.gridplans import beside, in_state, load_plan
    from canaryctl.controller.gridsetup import rules_of
    from canaryctl.runtimes.engines.registry import engine

    document, state_dir = loaded.document, app.settings.state_dir
    adapter = engine(document.runtime.engine.name)
    plans = [p for p in (in_state(state_dir, loaded.digest), beside(path)) if p.exists()]
    releases = (r for r in app.store.releases(document.service) if r.digest == loaded.digest)
    release = next(releases, None)
    return Evidence(
        document=document,
        digest=loaded.digest,
        simulated=adapter.simulated,
        sizes=adapter.resolved_grid(document.runtime),
        rules=rules_of(document.runtime),
        now=app.clock.now(),
        max_age_s=max_age_s,
        plan=load_plan(plans[0]) if plans else None,
        record=latest_record(state_dir, loaded.digest),
        gates={}
        if release is None
        else {r.gate: r.result for r in app.store.gate_records(release.id)},
        release=None if release is None else release.id,
        rung=_serving(app, document.service, loaded.digest),
    )


def _serving(app: "App", service: str, digest: str) -> str | None:
    """The service's stable runtime where it is another one and runs on this machine now."""
    from canaryctl.controller.model import InstanceState
    from canaryctl.runtimes.placements.base import Liveness
    from canaryctl.runtimes.placements.registry import placement

    found = next((s for s in app.store.services() if s.name == service), None)
    if found is None or found.stable_digest in (None, digest):
        return None
    place = placement("process", app.settings.state_dir)
    running = [
        instance.id
        for instance in app.store.instances(pool=found.stable_pool, live_only=True)
        if instance.state is InstanceState.READY
        and place.status(instance.id, instance.digest, instance.handle).liveness is Liveness.RUNNING
    ]
    if len(running) < found.stable_replicas:
        return None
    title = app.store.artifact(str(found.stable_digest)).title
    return f"{title} serves with {', '.join(running)}"
