"""A small real HTTP server that behaves like an engine, or misbehaves when told to.

Run as a program: ``upstream.py NAME``. It prints its port and serves until it is ended.
``POST /_mode`` with one of MODES as its body changes how it answers ``/v1/completions``;
``GET /_served`` says how many completions have reached it.
"""

import asyncio
import json
import socket
import struct
import sys

MODES = (
    "ok",
    "reset",
    "close",
    "unavailable",
    "error",
    "gateway",
    "hang",
    "cut",  # a stream whose connection ends in the middle
    "short",  # a stream that ends in good order, but too early
    "error_event",  # a stream that ends with an error, as engines tell it
)


class Upstream:
    def __init__(self, name: str) -> None:
        self.name = name
        self.mode = "ok"
        self.served = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        body = await self._body(reader, headers)
        if path == "/_mode":
            self.mode = body.decode()
            if self.mode not in MODES:
                raise ValueError(f"unknown mode {self.mode}; one of: {', '.join(MODES)}")
            self._answer(writer, {"mode": self.mode})
        elif path == "/_served":
            self._answer(writer, {"served": self.served})
        else:
            self.served += 1
            return await self._complete(writer, method, headers, body)
        return True

    @staticmethod
    async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            parts = []
            while size := int(await reader.readline(), 16):
                parts.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readexactly(2)
            return b"".join(parts)
        return await reader.readexactly(int(headers.get("content-length", "0")))

    def _answer(
        self, writer: asyncio.StreamWriter, document: object, status: str = "200 OK"
    ) -> None:
        body = json.dumps(document).encode()
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
            "x-canaryctl-artifact: forged\r\nx-canaryctl-digest: forged\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )

    async def _complete(
        self, writer: asyncio.StreamWriter, method: str, headers: dict[str, str], body: bytes
    ) -> bool:
        match self.mode:
            case "reset":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
                return False
            case "close":
                return False
            case "hang":
                await asyncio.sleep(3600)
            case "unavailable":
                self._answer(writer, {"error": "engine dead"}, "503 Service Unavailable")
                return True
            case "error":
                self._answer(writer, {"error": "engine dead"}, "500 Internal Server Error")
                return True
            case "gateway":
                self._answer(writer, {"error": "bug"}, "502 Bad Gateway")
                return True
        asked = json.loads(body) if body.startswith(b"{") else {}
        if asked.get("stream"):
            await self._stream(writer, asked)
            return self.mode != "cut"
        await asyncio.sleep(float(asked.get("wait_s", 0)))
        usage = {"completion_tokens": asked.get("max_tokens", 0)}
        seen = {
            "usage": usage,
            "name": self.name,
            "method": method,
            "bytes": len(body),
            "headers": headers,
        }
        self._answer(writer, seen)
        await writer.drain()
        return True

    async def _stream(self, writer: asyncio.StreamWriter, asked: dict[str, object]) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        tokens = int(str(asked.get("max_tokens", 4)))
        for index in range(tokens):
            choice = {"index": 0, "text": f"{self.name}-{index} ", "finish_reason": None}
            self._chunk(writer, f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            await writer.drain()
            await asyncio.sleep(float(str(asked.get("gap_s", 0.002))))
            if self.mode == "cut" and index >= tokens // 2:
                return
        if self.mode == "error_event":
            self._chunk(writer, b'data: {"error": {"message": "engine dead"}}\n\n')
        if self.mode != "short":
            self._chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    @staticmethod
    def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def main(name: str) -> None:
    upstream = Upstream(name)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=2**20)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
