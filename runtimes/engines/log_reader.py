"""What reading any engine's log has in common; the wording belongs to each engine's own reader."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable

from canaryctl.runtimes.engines.base import LogFacts, Stage

_GIB = 2**30
TRACEBACK = "Traceback (most recent call last):"
OUT_OF_MEMORY = (
    r"OutOfMemoryError|out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED"
    r"|(?<!\w)MemoryError\b"
)
"""As torch, CUDA and Python say it; a pattern to add an engine's own words to."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
LINE_LIMIT = 500  # characters kept of a line that is evidence
_LINES_LIMIT = 20  # lines kept of each kind: the first ones name the cause


class LogReader(ABC):
    """Folds lines into facts, once."""

    def __init__(self) -> None:
        self._stages: list[Stage] = []
        self._seconds: dict[str, float] = {}
        self._weights_bytes: int | None = None
        self._kv_tokens: int | None = None
        self._out_of_memory: list[str] = []
        self._fatal: list[str] = []
        self._warnings: list[str] = []
        self._late_work: list[str] = []
        self._in_traceback = False  # of an exception that may have ended the engine

    def facts_of(self, lines: Iterable[str]) -> LogFacts:
        """Facts from the whole log so far, oldest line first; unknown lines are ignored."""
        for line in lines:
            text = _ANSI.sub("", line).strip()
            if text:
                self._complete(Stage.STARTED)
                self._read(text)
        return self._facts()

    @abstractmethod
    def _read(self, line: str) -> None: ...

    @abstractmethod
    def _facts(self) -> LogFacts: ...

    def _complete(self, stage: Stage) -> None:
        """Stages run in order, so a later one tells of those before it."""
        for earlier in Stage:
            if earlier.order <= stage.order and earlier not in self._stages:
                self._stages.append(earlier)

    def _took(self, stage: str, seconds: str) -> None:
        self._seconds[stage] = max(self._seconds.get(stage, 0.0), float(seconds))

    def _weigh(self, gib: str) -> None:
        """Weights of one worker: of several, the largest count."""
        self._weights_bytes = max(self._weights_bytes or 0, bytes_of_gib(gib))


def bytes_of_gib(number: str) -> int:
    return max(0, round(float(number) * _GIB))


def keep(kept: list[str], line: str) -> None:
    """Keep the beginning of a line, each once, the first ones."""
    line = line[:LINE_LIMIT]
    if line not in kept and len(kept) < _LINES_LIMIT:
        kept.append(line)
