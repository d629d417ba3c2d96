"""``canaryctl serve``: the controller as a daemon."""

import click


@click.command()
def serve() -> None:
    """Act on every service: releases, gates on a schedule, restarts. Ends on SIGTERM or Ctrl-C.

    Engines and routers live on without it; it finds them again. It tells of itself at /metrics
    and /healthz on CANARYCTL_SERVE_PORT.
    """
    import logging
    import signal
    import threading

    from canaryctl.controller.cli.release import opened
    from canaryctl.controller.daemon import Daemon
    from canaryctl.controller.endpoint import Endpoint
    from canaryctl.controller.metrics import CONTENT_TYPE

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with opened() as app:
        daemon, settings = Daemon(app), app.settings
        with Endpoint(
            settings.host,
            settings.serve_port,
            metrics=lambda: (daemon.metrics.page(), CONTENT_TYPE),
            fault=daemon.fault,
        ):
            daemon.run(
                stop,
                on_ready=lambda: click.echo(
                    f"canaryctl serves; state in {settings.state_dir}", err=True
                ),
            )
