"""``canaryctl remove``: the end of a service on this machine. Its history stays."""

import click

from canaryctl.controller.cli.release import opened

WAIT_S = 120.0


@click.command()
@click.argument("service")
def remove(service: str) -> None:
    """Drain and stop a service's engines, then its router. Its releases stay on record.

    A release that is active is refused: abort it first.
    """
    from canaryctl.common.errors import ConflictError
    from canaryctl.common.errors import TemporaryError as Unfinished
    from canaryctl.controller.errors import ActiveReleaseError

    with opened() as app:
        active = app.store.active_release(app.store.service(service).name)
        if active is not None:
            raise ActiveReleaseError(
                f"release {active.id} of {service} is {active.phase.value}; "
                f"end it first: `canaryctl abort {active.id}`"
            )
        leased = app.controller(service)
        try:
            if leased.retire() is None:
                raise ConflictError(
                    f"another controller acts on {service}; stop it first (`canaryctl serve`?)"
                )
            until = app.clock.now().timestamp() + WAIT_S
            while not ((tick := leased.tick()) is not None and tick.settled):
                if app.clock.now().timestamp() > until:
                    raise Unfinished(f"{service} still drains after {WAIT_S:g} s; try again")
                app.clock.sleep(0.25)
            app.router.remove(service)
        finally:
            leased.close()
    click.echo(f"{service}: nothing of it runs any more")
