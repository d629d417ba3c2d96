"""The HTTP server of a simulated engine: OpenAI's routes, health, metrics and faults."""

import asyncio
import itertools
import json
import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from canaryctl.common.errors import InputError
from canaryctl.runtimes.simulator import answers
from canaryctl.runtimes.simulator.answers import AnswerForm
from canaryctl.runtimes.simulator.attestation import Attested
from canaryctl.runtimes.simulator.core import EngineCore, EngineDeadError, Stream
from canaryctl.runtimes.simulator.faults import FaultRequest
from canaryctl.runtimes.simulator.metrics import metrics_page, render
from canaryctl.runtimes.simulator.requests import (
    GenerationRequest,
    RequestError,
    parse_generation,
)

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COUNTED = ("/v1/completions", "/v1/chat/completions", "/v1/models")


def make_app(core: EngineCore, attested: Attested) -> ASGIApp:
    """The application of one engine."""
    api = _Api(core)
    registry = metrics_page(core, attested)

    async def metrics(_: Request) -> Response:
        return Response(render(registry), headers={"content-type": _METRICS_TYPE})

    app = Starlette(
        routes=[
            Route("/health", api.health),
            Route("/metrics", metrics),
            Route("/v1/models", api.models),
            Route("/v1/completions", api.completions, methods=["POST"]),
            Route("/v1/chat/completions", api.chat_completions, methods=["POST"]),
            Route("/simulator/faults", api.get_faults, methods=["GET"]),
            Route("/simulator/faults", api.post_faults, methods=["POST"]),
        ],
        exception_handlers={RequestError: _refused, HTTPException: _http_error},
    )
    return _CountRequests(app, core)


class _Api:
    def __init__(self, core: EngineCore) -> None:
        self._core = core
        config = core.config
        self._fingerprint = f"simulated-{config.version}-{config.graph_mode.lower()}"
        self._created = int(time.time())
        self._numbers = itertools.count(1)

    async def health(self, _: Request) -> Response:
        return Response(status_code=503 if self._core.dead else 200)

    async def models(self, _: Request) -> Response:
        config = self._core.config
        model = {
            "id": config.served_name,
            "object": "model",
            "created": self._created,
            "owned_by": "simulated",
            "root": config.model,
            "max_model_len": config.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, chat=False)

    async def chat_completions(self, request: Request) -> Response:
        return await self._generate(request, chat=True)

    async def get_faults(self, _: Request) -> Response:
        return JSONResponse(self._core.faults.as_document())

    async def post_faults(self, request: Request) -> Response:
        try:
            change = FaultRequest.parse(json.loads(await request.body()))
        except (InputError, ValueError) as error:
            raise RequestError(str(error)) from error
        self._core.switch(change)
        return JSONResponse(self._core.faults.as_document())

    async def _generate(self, request: Request, *, chat: bool) -> Response:
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response(status_code=499)
        wanted = parse_generation(body, self._core.config, chat=chat)
        try:
            stream = self._core.submit(
                wanted.prompt,
                prompt_tokens=wanted.prompt_tokens,
                most=wanted.most,
                least=wanted.least,
                ignore_eos=wanted.ignore_eos,
            )
        except EngineDeadError as error:
            raise RequestError(str(error), status=500) from error
        except ValueError as error:
            raise RequestError(str(error)) from error
        form = AnswerForm(
            id=f"{'chatcmpl' if chat else 'cmpl'}-simulated-{next(self._numbers)}",
            created=int(time.time()),
            model=self._core.config.served_name,
            fingerprint=self._fingerprint,
            chat=chat,
        )
        return _Generation(self._core, stream, wanted, form)


class _Generation(Response):
    """Answers one request while its tokens come; a client that goes away aborts it."""

    def __init__(
        self, core: EngineCore, stream: Stream, wanted: GenerationRequest, form: AnswerForm
    ) -> None:
        super().__init__()
        self._core, self._stream, self._wanted, self._form = core, stream, wanted, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._abort_on_disconnect(receive))
        try:
            if self._wanted.stream:
                await self._send_stream(send)
            else:
                await self._send_whole(scope, receive, send)
        finally:
            watch.cancel()
            self._core.abort(self._stream)

    async def _abort_on_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._core.abort(self._stream)

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        words: list[str] = []
        response: Response
        try:
            while self._stream.finish_reason is None:
                words += await self._stream.read()
            words += await self._stream.read()
        except EngineDeadError as error:
            response = JSONResponse(answers.error(str(error), status=500), status_code=500)
        else:
            reason = self._stream.finish_reason or ""
            wanted = self._wanted
            response = JSONResponse(
                self._form.whole(
                    words,
                    reason,
                    wanted.prompt_tokens,
                    logprobs=wanted.logprobs,
                    token_ids=wanted.token_ids,
                )
            )
        await response(scope, receive, send)

    async def _send_stream(self, send: Send) -> None:
        stream = self._stream
        before, after, after_last = self._form.pieces()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
            }
        )
        generated = 0
        written = self._form.opening()
        try:
            ended = False
            while not ended:
                words = await stream.read()
                ended = stream.finish_reason is not None
                generated += len(words)
                for word in words:
                    written += before + word.encode() + after
                if ended:
                    written = self._ended(written, after, after_last)
                await send({"type": "http.response.body", "body": written, "more_body": True})
                written = b""
        except EngineDeadError as error:
            written = answers.error_event(str(error))
        else:
            if self._wanted.include_usage:
                written = self._form.usage_chunk(self._wanted.prompt_tokens, generated)
        await send({"type": "http.response.body", "body": written + answers.DONE})

    def _ended(self, written: bytes, after: bytes, after_last: bytes) -> bytes:
        """The last word's chunk carries the reason."""
        reason = self._stream.finish_reason or ""
        if reason != "abort" and written.endswith(after):
            return written[: -len(after)] + after_last % reason.encode()
        return written + self._form.closing(reason)


class _CountRequests:
    """Counts requests by handler and status, as prometheus_fastapi_instrumentator does."""

    def __init__(self, app: ASGIApp, core: EngineCore) -> None:
        self._app, self._core = app, core

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in _COUNTED:
            await self._app(scope, receive, send)
            return
        status = 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            self._core.stats.http[scope["path"], scope["method"], f"{status // 100}xx"] += 1


async def _refused(_: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, RequestError) else 400
    param = error.param if isinstance(error, RequestError) else None
    return JSONResponse(answers.error(str(error), status=status, param=param), status_code=status)


async def _http_error(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return JSONResponse(answers.error(str(error), status=status), status_code=status)
