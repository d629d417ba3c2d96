"""Facts from vLLM's own log lines, read tolerantly.

The wording is that of vLLM 0.20 to 0.33, both model runners (``gpu_model_runner.py`` and
``gpu/model_runner.py`` differ by a word). Lines may carry any prefix: process, level, time,
file. Sizes are of one worker: where several report, the largest weights and graphs count and
the smallest KV cache, since a request needs room on every one.
"""

import re
from collections.abc import Iterable

from canaryctl.runtimes.engines.base import LogFacts, Stage
from canaryctl.runtimes.engines.log_reader import (
    OUT_OF_MEMORY,
    TRACEBACK,
    LogReader,
    bytes_of_gib,
    keep,
)
from canaryctl.runtimes.engines.vllm_resolved import Resolved

_LEVEL = re.compile(r"(?<![^\s(\[|])(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_LEVEL_SPAN = 120  # the level stands in the prefix; later words are the message's own

_LOADED = re.compile(r"Model loading took ([\d.]+) GiB(?: memory)? and ([\d.]+) s")
_COMPILED = re.compile(
    r"torch\.compile (?:takes|took|and initial profiling/warmup run together took) ([\d.]+) s"
)
_CAPTURED = re.compile(r"Graph capturing finished in ([\d.]+) secs, took (-?[\d.]+) GiB")
_KV_BYTES = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
_INITIALISED = re.compile(r"init engine \(.*?\) took ([\d.]+) s")

# What an engine that has initialised should not do any more. A request's text is logged too: the
# wording must be the line's first after its place in the source.
_PLACE = r"^[^\[]*\[[^\]]*\] "
_CAPTURING = re.compile(
    _PLACE + r"Capturing a cudagraph on \((\w+),\s*BatchDescriptor\(num_tokens=(\d+)"
)
_COMPILING = re.compile(
    _PLACE + r"Compiling a graph for (?:compile range|dynamic shape range) "
    r"\((\d+), (\d+)\) takes ([\d.]+) s"
)
_JIT = re.compile(_PLACE + r"(.{1,80}?) during inference: (\S+?)\.?(?:\s|$)")
_AGAIN = (
    (re.compile(_PLACE + _CAPTURED.pattern), "capture of graphs, {0} s"),
    (re.compile(_PLACE + _COMPILED.pattern), "torch.compile, {0} s"),
    (_CAPTURING, "capture of the {0} graph of bucket {1}"),
    (_COMPILING, "compilation for steps of {0} to {1} tokens, {2} s"),
    (_JIT, "{0} of {1}"),
)

_OUT_OF_MEMORY = re.compile(
    OUT_OF_MEMORY + r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|No available memory for the cache blocks"
    r"|Free memory on device .* is less than desired"
)
_FATAL = re.compile(
    r"EngineCore failed to start|EngineCore encountered a(?:n issue| fatal error)"
    r"|EngineDeadError|Engine core initialization failed|(?:died|exited) unexpectedly"
    r"|\w\.py: error: "  # argparse: an option that this version does not know
)
_EXCEPTION = re.compile(r"(?:^|[\])] )((?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?:: .*)?)$")
# What stands before a traceback that ends a request, a thread or a task, and not the engine.
_SURVIVED = re.compile(r"Exception in |Exception ignored|exception was never retrieved|future: ")
_DOWNGRADE = re.compile(
    r"cuda ?graph|capture.size|enforce.eager|attention.backend|fall(?:s|ing)? ?back", re.IGNORECASE
)


def read_vllm_log(lines: Iterable[str]) -> LogFacts:
    """Facts from the whole log so far, oldest line first; unknown lines are ignored."""
    return _Reader().facts_of(lines)


class _Reader(LogReader):
    def __init__(self) -> None:
        super().__init__()
        self._graph_bytes: int | None = None
        self._kv_bytes: int | None = None
        self._concurrency: float | None = None
        self._initialised = False
        self._resolved = Resolved()
        self._suspects: list[str] = []  # exceptions logged while starting: causes if it ends so
        self._previous = ""

    def _read(self, line: str) -> None:
        level = _LEVEL.search(line, 0, _LEVEL_SPAN)
        if self._initialised:
            self._read_late_work(line)
        else:
            self._resolved.read(line)
        self._read_progress(line)
        self._read_trouble(line, level.group(1) if level else None)
        self._previous = line

    def _facts(self) -> LogFacts:
        return LogFacts(
            stages=tuple(self._stages),
            stage_seconds=dict(self._seconds),
            graph_bytes=self._graph_bytes,
            weights_bytes=self._weights_bytes,
            kv_cache_bytes=self._kv_bytes,
            kv_cache_tokens=self._kv_tokens,
            max_concurrency=self._concurrency,
            out_of_memory=tuple(self._out_of_memory),
            fatal=tuple(dict.fromkeys((*self._suspects, *self._fatal)) if self._fatal else ()),
            warnings=tuple(self._warnings),
            resolved=dict(self._resolved.values),
            resolved_by=dict(self._resolved.words),
            late_work=tuple(self._late_work),
        )

    def _read_late_work(self, line: str) -> None:
        for pattern, words in _AGAIN:
            if found := pattern.search(line):
                self._late_work.append(words.format(*found.groups()))
                return

    def _read_progress(self, line: str) -> None:
        if found := _LOADED.search(line):
            self._weigh(found.group(1))
            self._took("load", found.group(2))
            self._complete(Stage.LOADED)
        if found := _COMPILED.search(line):
            self._took("compile", found.group(1))
            self._complete(Stage.COMPILED)
        if found := _CAPTURED.search(line):
            self._took("capture", found.group(1))
            # Memory freed meanwhile can make vLLM's own difference negative.
            self._graph_bytes = max(self._graph_bytes or 0, bytes_of_gib(found.group(2)))
            self._complete(Stage.CAPTURED)
        if found := _KV_BYTES.search(line):
            room = bytes_of_gib(found.group(1))
            self._kv_bytes = room if self._kv_bytes is None else min(self._kv_bytes, room)
        if found := _KV_TOKENS.search(line):
            tokens = int(found.group(1).replace(",", ""))
            self._kv_tokens = tokens if self._kv_tokens is None else min(self._kv_tokens, tokens)
            self._complete(Stage.LOADED)  # all that the weights and a first run left over
        if found := _CONCURRENCY.search(line):
            times = float(found.group(1))
            least = self._concurrency
            self._concurrency = times if least is None else min(least, times)
        if found := _INITIALISED.search(line):
            self._took("init", found.group(1))
            # Says nothing of graphs: what was to be compiled and captured is, or was not asked.
            self._complete(Stage.CAPTURED)
            self._initialised = True

    def _read_trouble(self, line: str, level: str | None) -> None:
        # A request's text is logged at INFO, and may say anything.
        if level in ("DEBUG", "INFO"):
            self._in_traceback = False
            return
        if _OUT_OF_MEMORY.search(line):
            keep(self._out_of_memory, line)
        if _FATAL.search(line):
            keep(self._fatal, line)
        if level == "WARNING":
            if _DOWNGRADE.search(line):
                keep(self._warnings, line)
            return
        if TRACEBACK in line:
            starting = not self._initialised and not _SURVIVED.search(self._previous)
            self._in_traceback = bool(self._fatal) or starting
        elif self._in_traceback and _EXCEPTION.search(line):
            # Without a level the interpreter printed it: nobody caught it.
            ended = bool(self._fatal) or level is None
            keep(self._fatal if ended else self._suspects, line)
