"""The daemon's HTTP pages, ``/metrics`` and ``/healthz``, served from a thread of their own."""

import logging
import socket
from collections.abc import Callable
from threading import Event, Thread
from typing import Final, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

log = logging.getLogger(__name__)

BIND_AGAIN_S: Final = 2.0
"""Another daemon of this machine may have the port; when it ends, this one takes it over."""


class Endpoint:
    """A context manager. ``metrics``: (the page, its content type). ``fault``: why the daemon
    is not well; None: it is.

    A port that is taken stops nothing: to act is worth more than to be watched acting.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Callable[[], tuple[bytes, str]],
        fault: Callable[[], str | None],
    ) -> None:
        self._host, self._port = host, port
        self._stopped = Event()
        self._server: uvicorn.Server | None = None
        self._thread = Thread(target=self._run, name="http", daemon=True)

        def metrics_page(_: Request) -> Response:
            page, kind = metrics()
            return Response(page, media_type=kind)

        def health_page(_: Request) -> Response:
            why = fault()
            if why is None:
                return JSONResponse({"status": "ok"})
            return JSONResponse({"status": "unwell", "reason": why}, status_code=503)

        self._app = Starlette(
            routes=[Route("/metrics", metrics_page), Route("/healthz", health_page)]
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        told = False
        while not self._stopped.is_set():
            try:
                listening = self._bind()
            except OSError as error:
                if not told:
                    log.warning(
                        "/metrics and /healthz are not served: %s port %s: %s; trying again. Set "
                        "CANARYCTL_SERVE_PORT to another port, or end what has this one",
                        self._host,
                        self._port,
                        error.strerror,
                    )
                told = True
                self._stopped.wait(BIND_AGAIN_S)
                continue
            with listening:
                self._serve(listening)

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.socket(family)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._host, self._port))
        except OSError:
            listening.close()
            raise
        return listening

    def _serve(self, listening: socket.socket) -> None:
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._server.should_exit = self._stopped.is_set()
        self._server.run(sockets=[listening])
