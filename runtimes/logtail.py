"""An engine's log, read as it grows, in bounded memory.

Facts of the start stand in the first part of a log, which is kept whole. Of what follows only
lines are kept that tell of trouble, or of compiling and capturing, and the last few of any kind
(they say why an engine ended). A log of any length therefore costs a tick no more than what was
added to it.
"""

import os
from collections import deque
from pathlib import Path

HEAD_BYTES = 512 * 1024  # kept whole
LAST_LINES = 200  # of any kind
PER_KIND = 500  # of each kind of trouble, the first ones
LINE_BYTES = 16 * 1024  # what is longer is cut there
READ_BYTES = 8 * 1024 * 1024  # at most, per call: a long backlog is read over several ticks
_CHUNK_BYTES = 1024 * 1024

# Each kind has its own room, so that a flood of one never displaces the other. Plain words: a
# search for them is ten times faster than a regular expression.
TROUBLE = (
    (
        b"out of memory",
        b"Out of memory",
        b"OutOfMemory",
        b"OUT_OF_MEMORY",
        b"MemoryError",
        b"ALLOC_FAILED",
        b"allocate memory",
        b"enough memory",
        b"available memory",
        b"Free memory",
    ),
    (
        *(b"Error", b"error:", b"Exception", b"Interrupt", b"Traceback"),
        *(b"CRITICAL", b"FATAL", b"Fatal", b"fatal", b"died", b"Killed", b"killed"),
    ),
    (
        *(b"Capturing a cudagraph", b"Graph capturing", b"CUDA graph warmup"),
        *(b"torch.compile", b"Compiling a graph", b"during inference: "),
    ),
)


class LogTail:
    """The lines of one log file so far, incrementally.

    Lines end at ``\\n`` or ``\\r`` (progress bars). Bytes that are no UTF-8 are replaced. A file
    that is not there yet has no lines. After truncation or replacement reading begins anew at
    its start, and what was kept stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._inode: int | None = None
        self._partial = b""
        self._head: list[str] = []
        self._head_bytes = 0
        self._count = 0  # lines after the head, so that kept ones stay in order
        self._trouble: dict[int, bytes] = {}
        self._room = [PER_KIND] * len(TROUBLE)
        self._last: deque[tuple[int, bytes]] = deque(maxlen=LAST_LINES)

    @property
    def offset(self) -> int:
        """Bytes read so far: the same after a call of :meth:`lines` that found nothing new."""
        return self._offset

    def lines(self) -> tuple[str, ...]:
        """Read what was added and return all lines kept so far, oldest first.

        A last line without its end is not among them until it is complete.
        """
        self._read()
        later = {**self._trouble, **dict(self._last)}
        return (
            *self._head,
            *(later[number].decode(errors="replace") for number in sorted(later)),
        )

    def _read(self) -> None:
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            stat = os.fstat(file.fileno())
            if stat.st_ino != self._inode or stat.st_size < self._offset:
                self._inode, self._offset = stat.st_ino, 0
                self._partial = b""
            file.seek(self._offset)
            end = self._offset + READ_BYTES
            while self._offset < end and (chunk := file.read(_CHUNK_BYTES)):
                self._offset += len(chunk)
                self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        *complete, rest = (self._partial + chunk).replace(b"\r", b"\n").split(b"\n")
        for line in complete:
            if line:
                self._keep(line[:LINE_BYTES])
        self._partial = rest[:LINE_BYTES]

    def _keep(self, line: bytes) -> None:
        if self._head_bytes < HEAD_BYTES:
            self._head_bytes += len(line) + 1
            self._head.append(line.decode(errors="replace"))
            return
        self._count += 1
        self._last.append((self._count, line))
        for kind, words in enumerate(TROUBLE):
            if self._room[kind] and any(word in line for word in words):
                self._room[kind] -= 1
                self._trouble[self._count] = line
                return
