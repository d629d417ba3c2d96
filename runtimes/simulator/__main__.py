"""``python -m canaryctl.runtimes.simulator --host H --port P --config JSON``: a simulated engine.

Listens only when its stages are over. Exits 2 for wrong arguments, 1 when it cannot start, and
0 otherwise: when it is told to stop, and, like vLLM, when its engine has died.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from canaryctl.common.errors import InputError
from canaryctl.runtimes.simulator.api import make_app
from canaryctl.runtimes.simulator.attestation import attest
from canaryctl.runtimes.simulator.config import SimulatorConfig
from canaryctl.runtimes.simulator.core import EngineCore
from canaryctl.runtimes.simulator.faults import ActiveFaults, FaultRequest
from canaryctl.runtimes.simulator.startup import StartError, start

LOG = logging.getLogger("simulated")

_ABORT_S = 1  # for aborted requests to be told so


class _Server(uvicorn.Server):
    """Leaves signals to :func:`_serve`: uvicorn would end by the signal instead of exiting 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(listener: socket.socket, config: SimulatorConfig) -> int:
    args = config.args
    at_start = args.fault_at == "start"
    faults = ActiveFaults(
        set(args.faults) if at_start else set(), args.fault_factor, args.fault_share
    )
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    starting = asyncio.create_task(start(config, faults))
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return 0
    try:
        engine = starting.result()
    except StartError as error:
        LOG.error("Engine core initialization failed: %s", error)  # noqa: TRY400  no traceback
        return 1

    def die(after_s: float) -> None:
        LOG.error("EngineDeadError: the simulated engine core has died")
        loop.call_later(after_s, os._exit, 0)

    core = EngineCore(config, engine.memory, engine.batcher, faults, die)
    app = make_app(core, attest(config, engine, os.environ))
    server = _Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_ABORT_S,
        )
    )
    running = asyncio.create_task(core.run())
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    core.apply_conditions()
    if args.faults and not at_start:
        change = FaultRequest(args.faults, args.fault_factor, args.fault_share)
        loop.call_later(args.fault_after_s, core.switch, change)
    while not (server.started or serving.done()):
        await asyncio.sleep(0.005)
    LOG.info("Application startup complete.")
    # A crash of the model must not look like an engine that hangs.
    await asyncio.wait({running, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if running.done() and not core.dead:
        running.result()
    if core.dead:
        await stopping
    LOG.info("Shutting down: running requests are aborted")
    core.abort_all()
    server.should_exit = True
    await serving
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="canaryctl.runtimes.simulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--config", required=True, help="a JSON document: SimulatorConfig")
    options = parser.parse_args()
    logging.basicConfig(
        stream=sys.stdout,
        level=logging.INFO,
        format=f"(simulated pid={os.getpid()}) %(levelname)s %(asctime)s [%(name)s] %(message)s",
        datefmt="%m-%d %H:%M:%S",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        config = SimulatorConfig.from_json(options.config)
    except InputError as error:
        parser.error(str(error))
    with socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # Bound before the stages, so that a taken port is found at once.
            listener.bind((options.host, options.port))
        except OSError as error:
            LOG.error("cannot listen on %s:%d: %s", options.host, options.port, error)  # noqa: TRY400
            return 1
        return asyncio.run(_serve(listener, config))


if __name__ == "__main__":
    sys.exit(main())
