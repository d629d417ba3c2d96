"""``canaryctl serve``: the controller as a daemon."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@click.command()
def serve() -> None:
    """Act on every service: releases, gates on a schedule, restarts. Ends on SIGTERM or Ctrl-C.

    Engines and routers live on without it; it finds them again. It tells of itself at /metrics
    and /healthz on CANARYCTL_SERVE_PORT.
    """
    import logging

    from canaryctl.controller.cli.release import opened
    from canaryctl.controller.daemon import Daemon
    from canaryctl.controller.endpoint import Endpoint
    from canaryctl.controller.metrics import CONTENT_TYPE

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with asked_to_end() as wait, opened() as app:
        daemon, settings = Daemon(app), app.settings
        with Endpoint(
            settings.host,
            settings.serve_port,
            metrics=lambda: (daemon.metrics.page(), CONTENT_TYPE),
            fault=daemon.fault,
        ):
            daemon.run(
                wait,
                on_ready=lambda: click.echo(
                    f"canaryctl serves; state in {settings.state_dir}", err=True
                ),
            )


@contextmanager
def asked_to_end() -> Iterator[Callable[[], object]]:
    """What returns once SIGTERM or SIGINT has come.

    A signal writes to a socket, whichever thread it meets. Python runs a handler in the main
    thread alone, and one that waits for a lock there has been seen to sleep on.
    """
    asked, asking = socket.socketpair()
    with asked, asking:
        asking.setblocking(False)
        signal.set_wakeup_fd(asking.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        try:
            yield lambda: asked.recv(1)
        finally:
            signal.set_wakeup_fd(-1)
