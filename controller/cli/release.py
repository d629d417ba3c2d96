"""``canaryctl release``, ``retry`` and ``rollback``: record a release, then act on it or watch."""

from collections.abc import Callable
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.cli.output import emit_json
from canaryctl.controller.cli.records import document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from canaryctl.controller.artifact.loader import LoadedArtifact
    from canaryctl.controller.compose import App
    from canaryctl.controller.model import Release


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--wait|--detach``, ``--until``, ``--timeout`` and ``--json``, the same everywhere."""
    options = (
        click.option(
            "--wait/--detach",
            default=True,
            help="Act on it here until it is final (default), or leave it to `canaryctl serve`.",
        ),
        click.option(
            "--until",
            type=click.Choice(["final", "promoted"]),
            default="final",
            help="promoted: return when all traffic is on the canary and watching begins.",
        ),
        click.option("--timeout", metavar="DURATION", help="Give up waiting, such as 30m; exit 4."),
        click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def rate_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--rate``: what the plan of a release is made for."""
    return click.option(
        "--rate",
        type=click.FloatRange(min=0, min_open=True),
        metavar="PER_SECOND",
        help="Plan for so many requests a second to the service instead of counting them.",
    )(command)


@click.command()
@click.argument("file", type=Path, metavar="ARTIFACT.YAML")
@click.option("--supersede", is_flag=True, help="Roll the active release back first.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only show the plan: when each gate can decide. Exit 2 where one never can.",
)
@rate_option
@waiting_options
def release(
    file: Path,
    supersede: bool,
    dry_run: bool,
    rate: float | None,
    wait: bool,
    until: str,
    timeout: str | None,
    as_json: bool,
) -> int:
    """Release an artifact: canary, gates, then promotion or rollback by itself.

    Exit codes: 0 promoted, 2 invalid input or a plan that cannot decide its gates, 3 rolled
    back, 4 still held at the timeout, 5 refused (another release is active), 6 failed and needs
    a person.
    """
    from canaryctl.controller.artifact.loader import load_artifact
    from canaryctl.controller.cli.checks import document_checks

    loaded = load_artifact(file, document_checks())
    with opened() as app:
        if dry_run:
            return _show_plan(app, loaded, rate, as_json)
        if supersede:
            _supersede(app, loaded, rate, as_json)
        return submit(
            app,
            lambda: app.submitter.release(loaded, actor=getuser(), now=app.clock.now(), rate=rate),
            wait=wait,
            until=until,
            timeout=timeout,
            as_json=as_json,
        )


@click.command()
@click.argument("release_id", metavar="RELEASE")
@click.option("--reason", default="", help="Why; kept in the release's log.")
@rate_option
@waiting_options
def retry(
    release_id: str,
    reason: str,
    rate: float | None,
    wait: bool,
    until: str,
    timeout: str | None,
    as_json: bool,
) -> int:
    """Try a release that has ended again: the same document, evidence of its own."""
    from canaryctl.common.errors import InputError
    from canaryctl.controller.states import FINAL

    with opened() as app:
        before = app.store.release(release_id)
        if before.phase not in FINAL:
            raise InputError(f"{before.id} is {before.phase.value}; only what has ended is retried")
        return submit(
            app,
            lambda: app.submitter.retry(
                before, actor=getuser(), reason=reason, now=app.clock.now(), rate=rate
            ),
            wait=wait,
            until=until,
            timeout=timeout,
            as_json=as_json,
        )


@click.command()
@click.argument("service")
@click.option("--to", default="previous", help="previous (default), eager, or an artifact.")
@click.option("--reason", default="", help="Why; kept in the release's log.")
@waiting_options
def rollback(
    service: str,
    to: str,
    reason: str,
    wait: bool,
    until: str,
    timeout: str | None,
    as_json: bool,
) -> int:
    """Go back to an earlier runtime: a release of its own, judged by the hard gates only."""
    with opened() as app:
        return submit(
            app,
            lambda: app.submitter.rollback(
                service, to, actor=getuser(), reason=reason, now=app.clock.now()
            ),
            wait=wait,
            until=until,
            timeout=timeout,
            as_json=as_json,
        )


@contextmanager
def opened() -> "Iterator[App]":
    """The application as the environment configures it, closed afterwards."""
    from canaryctl.controller.compose import compose
    from canaryctl.controller.settings import Settings

    app = compose(Settings.from_environment())
    try:
        yield app
    finally:
        app.close()


def submit(
    app: "App",
    create: "Callable[[], Release]",
    *,
    wait: bool,
    until: str,
    timeout: str | None,
    as_json: bool,
) -> int:
    """Record a release and wait for it; one that is stable already is reported as it stands."""
    from canaryctl.controller.submit import AlreadyStableError

    try:
        created = create()
    except AlreadyStableError as error:
        click.echo(str(error), err=True)
        if as_json and error.release is not None:
            emit_json(document(app.store, app.store.release(error.release)))
        return Exit.OK
    return follow(app, created, wait=wait, until=until, timeout=timeout, as_json=as_json)


def follow(
    app: "App", created: "Release", *, wait: bool, until: str, timeout: str | None, as_json: bool
) -> int:
    """Wait for a recorded release, show its progress, and end with its exit code."""
    from canaryctl.common.errors import InputError
    from canaryctl.common.units import parse_duration
    from canaryctl.controller.cli.progress import Progress
    from canaryctl.controller.loop import wait_for
    from canaryctl.controller.report import EXIT_CODES, outcome_of

    try:
        timeout_s = parse_duration(timeout) if timeout is not None else None
    except ValueError as error:
        raise InputError(f"--timeout: {error}") from None
    if not wait:
        return _detached(app, created, as_json)
    leased = app.controller(created.service)
    try:
        with Progress(app.store, created, to_stderr=as_json) as progress:
            waited = wait_for(
                created.id,
                leased,
                app.store,
                app.clock,
                until_promoted=until == "promoted",
                timeout_s=timeout_s,
                on_tick=progress.show,
            )
    finally:
        leased.close()
    if not waited.settled and not waited.timed_out and until == "final":
        click.echo("some instances are still draining; `canaryctl serve` goes on", err=True)
    if as_json:
        emit_json(document(app.store, waited.release))
    return EXIT_CODES[outcome_of(waited.release)]


def _detached(app: "App", created: "Release", as_json: bool) -> int:
    if as_json:
        emit_json(document(app.store, created))
    else:
        click.echo(created.id)
    if app.store.holder(f"service:{created.service}", app.clock.now()) is None:
        click.echo(
            "recorded; nobody acts on it until `canaryctl serve` runs "
            f"(or `canaryctl status {created.id} --wait`)",
            err=True,
        )
    return Exit.OK


def _show_plan(app: "App", loaded: "LoadedArtifact", rate: float | None, as_json: bool) -> int:
    from canaryctl.controller.cli.dry_run import show
    from canaryctl.controller.submit import AlreadyStableError

    try:
        draft = app.submitter.draft(loaded, now=app.clock.now())
    except AlreadyStableError as error:
        click.echo(str(error), err=True)
        return Exit.OK
    return show(app.submitter.forecast(draft, rate), as_json=as_json)


def _supersede(app: "App", loaded: "LoadedArtifact", rate: float | None, as_json: bool) -> None:
    """The active release is rolled back, and only then the new one is recorded. It is left
    alone where the new one would be refused."""
    from canaryctl.controller.cli.progress import Progress
    from canaryctl.controller.loop import wait_for
    from canaryctl.controller.model import Verb

    active = app.store.active_release(loaded.document.service)
    if active is None:
        return
    app.submitter.check(app.submitter.draft(loaded, now=app.clock.now()), rate)
    title = f"{loaded.document.name}@{loaded.document.version}"
    app.store.add_request(
        active.id, Verb.SUPERSEDE, getuser(), f"superseded by {title}", app.clock.now()
    )
    leased = app.controller(active.service)
    try:
        with Progress(app.store, active, to_stderr=as_json) as progress:
            wait_for(active.id, leased, app.store, app.clock, on_tick=progress.show)
    finally:
        leased.close()
