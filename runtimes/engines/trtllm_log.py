"""Facts from TensorRT-LLM's own log lines (backend pytorch), read tolerantly.

The wording is that of 1.1 to 1.3 (``model_loader``, ``model_engine``, ``resource_manager``) and of
uvicorn. An engine may warm up and capture twice: first with a small KV cache, to measure what is
left for the real one. Graphs are therefore captured only when the server says that it is up, and
of KV caches the last counts. How long capture took and what graphs hold is not said: unknown.
"""

import re
from collections.abc import Iterable

from canaryctl.runtimes.engines.base import LogFacts, Stage
from canaryctl.runtimes.engines.log_reader import OUT_OF_MEMORY, TRACEBACK, LogReader, keep

# "[12/20/2025-04:21:10] [TRT-LLM] [W] …", with the rank between, and "[TensorRT-LLM][WARNING] …"
# of the C++ runtime; Python's own logging and uvicorn write the level in full.
_LEVEL = re.compile(
    r"\[TRT-LLM\] (?:\[RANK \d+\] ?)?\[(V|I|W|E|F)\]"
    r"|\[TensorRT-LLM\]\[(INFO|WARNING|ERROR|DEBUG|TRACE)\]"
    r"|^(INFO|WARNING|ERROR|CRITICAL|DEBUG):|\b(INFO|WARNING|ERROR|CRITICAL|DEBUG)\b"
)
_LEVEL_SPAN = 80
_LEVELS = {"V": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}

_WEIGHTS = re.compile(r"Use ([\d.]+) GB for model weights")
_LOADED = re.compile(r"Model init total -- ([\d.]+)s")
_KV_TOKENS = re.compile(r"for max tokens in paged KV cache \((\d+)\)")
_CAPTURING = re.compile(
    r"Creating CUDA graph instances for \d+ batch sizes|Running piecewise CUDA graph warmup"
)
# One graph each: at the start, and when a server that is up captures once more.
_CAPTURED_ONE = re.compile(
    r"^(?:\[[\d/:-]+\] )?\[TRT-LLM\] (?:\[RANK \d+\] ?)?\[I\] "
    r"Run (generation only|piecewise) CUDA graph warmup for (?:batch size|num tokens)=(\d+)"
)
_UP = re.compile(r"Application startup complete|Uvicorn running on")

_OUT_OF_MEMORY = re.compile(OUT_OF_MEMORY)
_FATAL = re.compile(
    r"Failed to initialize executor|Executor worker returned error|Fatal error"
    r"|^Error: (?:No such option|Invalid value|Missing )",  # click: an option it does not know
)
_UNCAUGHT = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?:: .*)?$")
_DOWNGRADE = re.compile(
    r"cuda ?graph|piecewise|Adjusted max_seq_len|fall(?:s|ing)? ?back", re.IGNORECASE
)


def read_trtllm_log(lines: Iterable[str]) -> LogFacts:
    """Facts from the whole log so far, oldest line first; unknown lines are ignored."""
    return _Reader().facts_of(lines)


class _Reader(LogReader):
    def __init__(self) -> None:
        super().__init__()
        self._capturing = False
        self._up = False

    def _read(self, line: str) -> None:
        self._read_progress(line)
        self._read_trouble(line)

    def _facts(self) -> LogFacts:
        return LogFacts(
            stages=tuple(self._stages),
            stage_seconds=dict(self._seconds),
            weights_bytes=self._weights_bytes,
            kv_cache_tokens=self._kv_tokens,
            out_of_memory=tuple(self._out_of_memory),
            fatal=tuple(self._fatal),
            warnings=tuple(self._warnings),
            late_work=tuple(self._late_work),
        )

    def _read_progress(self, line: str) -> None:
        if found := _WEIGHTS.search(line):
            self._weigh(found.group(1))  # it says GB and divides by 2**30
        if found := _LOADED.search(line):
            self._took("load", found.group(1))
            self._complete(Stage.LOADED)
        if found := _KV_TOKENS.search(line):
            self._kv_tokens = int(found.group(1))
            self._complete(Stage.LOADED)
        if _CAPTURING.search(line):
            self._capturing = True
            self._complete(Stage.LOADED)
        if self._up and (found := _CAPTURED_ONE.search(line)):
            self._late_work.append(
                f"capture of the {found.group(1)} graph of bucket {found.group(2)}"
            )
        if _UP.search(line):
            self._up = True
            self._complete(Stage.CAPTURED if self._capturing else Stage.COMPILED)

    def _read_trouble(self, line: str) -> None:
        level = _level(line)
        # A request's text is logged at INFO, and may say anything.
        if level in ("DEBUG", "INFO"):
            self._in_traceback = False
            return
        if level == "WARNING":  # warm-up and tuning go on where a size does not fit
            if _DOWNGRADE.search(line) or _OUT_OF_MEMORY.search(line):
                keep(self._warnings, line)
            return
        if _OUT_OF_MEMORY.search(line):
            keep(self._out_of_memory, line)
        if _FATAL.search(line):
            keep(self._fatal, line)
        if line.startswith(TRACEBACK):  # with a level before it, it was caught and logged
            self._in_traceback = not self._up  # later ones end a request, not the engine
        elif self._in_traceback and _UNCAUGHT.search(line):
            keep(self._fatal, line)


def _level(line: str) -> str | None:
    found = _LEVEL.search(line, 0, _LEVEL_SPAN)
    if found is None:
        return None
    level = next(group for group in found.groups() if group is not None)
    return _LEVELS.get(level, level)
