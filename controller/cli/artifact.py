"""``canaryctl artifact``: files and stored artifacts, checked, shown, compared, listed."""

from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from canaryctl.controller.artifact.mistakes import printable
from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.cli.output import Table, emit_json

if TYPE_CHECKING:
    from canaryctl.controller.artifact.diff import Change
    from canaryctl.controller.artifact.loader import Inspection
    from canaryctl.controller.model import Artifact
    from canaryctl.controller.store import Store
    from canaryctl.runtimes.spec import RuntimeSpec

_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


@click.group(no_args_is_help=False)
def artifact() -> None:
    """Check, show and compare artifacts."""


@artifact.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=Path)
@_as_json
def validate(files: tuple[Path, ...], as_json: bool) -> Exit:
    """Name every mistake in artifact files.

    Exit code 2 where one has a mistake. Nothing is started and nothing is stored.
    """
    from canaryctl.controller.artifact.loader import inspect_artifact
    from canaryctl.controller.cli.checks import document_checks

    checks = document_checks()
    inspections = [(file, inspect_artifact(file, checks)) for file in files]
    if as_json:
        emit_json({"files": [_inspection_json(file, found) for file, found in inspections]})
    else:
        for file, found in inspections:
            _print_inspection(file, found)
    good = all(found.artifact is not None for _, found in inspections)
    return Exit.OK if good else Exit.INPUT


@artifact.command()
@click.argument("reference", metavar="REF|FILE")
@_as_json
def show(reference: str, as_json: bool) -> None:
    """Show one artifact, whole.

    REF is a digest or the beginning of one, NAME@VERSION, or NAME for its latest version.
    """
    from canaryctl.controller.cli.artifact_memory import memory_document, print_memory

    found = find(reference)
    runtime = _visible(found.runtime.as_document())
    memory = memory_document(found.digest, found.runtime)
    if as_json:
        emit_json({**found.about(), "runtime": runtime, "memory": memory})
        return
    for key, value in found.about().items():
        if value is not None:
            click.echo(f"{key + ':':<12}{value}")
    import yaml

    click.echo(yaml.safe_dump({"runtime": runtime}, sort_keys=False, allow_unicode=False), nl=False)
    print_memory(memory)


@artifact.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@_as_json
def diff(before: str, after: str, as_json: bool) -> None:
    """Name what changed from runtime A to runtime B, and in what ran of each.

    Each is a FILE (a name with / or .yaml, or one that exists), or a REF as for show.
    """
    from canaryctl.controller.artifact.diff import diff_attested, diff_runtimes

    a, b = find(before), find(after)
    changes = diff_runtimes(a.runtime, b.runtime)
    ran = [_ran(one) for one in (a, b)]
    differs = diff_attested(*ran)
    if as_json:
        emit_json(
            {
                "a": a.about(),
                "b": b.about(),
                "same": not changes,
                "changes": [_change_json(change) for change in changes],
                "ran": {"a": ran[0], "b": ran[1], "changes": differs},
            }
        )
        return
    for letter, one in (("a", a), ("b", b)):
        click.echo(f"{letter}  {one.name}@{one.version}  {one.digest}")
    if not changes:
        click.echo("the same runtime")
    else:
        table = Table("what", "where", "change")
        for change in changes:
            table.add(change.group, change.path, _change_text(change))
        table.print()
    for letter, told in zip("ab", ran, strict=True):
        if told is None and any(ran):
            click.echo(f"{letter} attested nothing yet: no instance of it is known that did")
    if differs:
        click.echo("what ran, as the engines attested it:")
        table = Table("what", "a", "b")
        for found in differs:
            table.add(found["name"], found["before"] or "-", found["after"] or "-")
        table.print()


@artifact.command("list")
@click.option("--service", metavar="NAME", help="Only those of one service.")
@_as_json
def list_(service: str | None, as_json: bool) -> None:
    """List the stored artifacts."""
    from canaryctl.controller.artifact.digest import short

    with closing(_store()) as store:
        stored = [Found.of(artifact) for artifact in store.artifacts(service)]
    if as_json:
        emit_json({"artifacts": [one.about() for one in stored]})
        return
    if not stored:
        click.echo("no artifact is stored; a release stores the one it is given", err=True)
        return
    table = Table("name", "version", "service", "digest", "engine", "created")
    for one in stored:
        engine = f"{one.runtime.engine.name} {one.runtime.engine.version}"
        created = f"{one.created_at:%Y-%m-%d %H:%M}Z"
        table.add(one.name, one.version, one.service, short(one.digest), engine, created)
    table.print()


@dataclass(frozen=True, slots=True)
class Found:
    """An artifact of a file (no ``created_at``) or of the store."""

    name: str
    version: str
    service: str
    digest: str
    runtime: "RuntimeSpec"
    created_at: datetime | None = None
    eager_of: str | None = None

    @classmethod
    def of(cls, stored: "Artifact") -> "Found":
        return cls(
            name=stored.name,
            version=stored.version,
            service=stored.service,
            digest=stored.digest,
            runtime=stored.runtime,
            created_at=stored.created_at,
            eager_of=stored.eager_of,
        )

    def about(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "service": self.service,
            "digest": self.digest,
            "created_at": self.created_at.isoformat() if self.created_at else None,
            "eager_of": self.eager_of,
        }


def find(reference: str) -> Found:
    if not _means_a_file(reference):
        with closing(_store()) as store:
            return Found.of(store.artifact(reference))
    from canaryctl.controller.artifact.loader import load_artifact
    from canaryctl.controller.cli.checks import document_checks

    loaded = load_artifact(Path(reference), document_checks())
    return Found(
        name=loaded.document.name,
        version=loaded.document.version,
        service=loaded.document.service,
        digest=loaded.digest,
        runtime=loaded.document.runtime,
    )


def _ran(found: Found) -> dict[str, str] | None:
    """What the latest instance of the runtime that attested anything said of itself."""
    if found.created_at is None:
        return None  # a file, of which nothing is stored
    with closing(_store()) as store:
        told = [
            instance.facts["attested"]
            for instance in store.instances(service=found.service)
            if instance.digest == found.digest and instance.facts.get("attested")
        ]
    return dict(told[-1]) if told else None


def _means_a_file(reference: str) -> bool:
    return "/" in reference or reference.endswith((".yaml", ".yml")) or Path(reference).exists()


def _store() -> "Store":
    from canaryctl.controller.settings import Settings
    from canaryctl.controller.store import open_store

    return open_store(Settings.from_environment())


def _visible(value: Any, name: str = "") -> Any:
    """A runtime's document with what looks like a secret hidden."""
    from canaryctl.controller.artifact.secrets import shown

    match value:
        case dict():
            return {key: _visible(inner, key) for key, inner in value.items()}
        case list():
            return [_visible(inner, name) for inner in value]
    return shown(name, value)


def _change_json(change: "Change") -> dict[str, Any]:
    return {
        "path": change.path,
        "group": change.group,
        "before": change.before,
        "after": change.after,
        "added": change.added,
        "removed": change.removed,
    }


def _change_text(change: "Change") -> str:
    if change.added or change.removed:
        parts = [f"+{size}" for size in change.added] + [f"-{size}" for size in change.removed]
        return " ".join(parts)
    return f"{_value_text(change.before)} → {_value_text(change.after)}"


def _value_text(value: Any) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case list():
            return "[" + ", ".join(map(_value_text, value)) + "]"
    return str(value)


def _inspection_json(file: Path, found: "Inspection") -> dict[str, Any]:
    loaded = found.artifact
    return {
        "file": str(file),
        "valid": loaded is not None,
        "name": loaded.document.name if loaded else None,
        "version": loaded.document.version if loaded else None,
        "service": loaded.document.service if loaded else None,
        "digest": loaded.digest if loaded else None,
        "mistakes": [
            {
                "line": mistake.position.line if mistake.position else None,
                "column": mistake.position.column if mistake.position else None,
                "where": mistake.where,
                "message": mistake.message,
            }
            for mistake in found.mistakes
        ],
    }


def _print_inspection(file: Path, found: "Inspection") -> None:
    loaded = found.artifact
    if loaded is not None:
        name = f"{loaded.document.name}@{loaded.document.version}"
        click.echo(f"{printable(str(file))}: valid, {name}, {loaded.digest}")
        return
    for mistake in found.mistakes:
        click.echo(f"error: {mistake}", err=True)
